#include "hosts/notes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "collective/staging.h"

namespace farandole {
namespace {

constexpr auto kHeaderBytes = static_cast<std::int64_t>(sizeof(NoteHeader));
// The header of a host whose entries are invalid.
constexpr NoteHeader kInvalidHeader = {.present_count = -1};

std::int64_t note_bytes(std::int64_t payload) {
  return round_up(kHeaderBytes + payload, kPieceAlignment);
}

}  // namespace

std::int64_t NoteSizes::staging_bytes() const {
  std::int64_t sum = 0;
  for (const std::int64_t bytes : kept_bytes.empty() ? payload_bytes : kept_bytes)
    sum += note_bytes(bytes);
  if (!kept_bytes.empty()) sum += note_bytes(std::ranges::max(payload_bytes));
  return round_up(sum, kPartAlignment);
}

bool NoteSizes::fit_into_staging() const {
  return std::ranges::max(payload_bytes) + kHeaderBytes <=
             static_cast<std::int64_t>(kNoteBytesMax) &&
         staging_bytes() <= kStagingBytesMax;
}

// The kept notes are in the order of the hosts. If whole payloads are kept, the note that we send
// is one of them; otherwise it comes after them.
HostNotes::HostNotes(const Group& group, const StepIdentity& identity, NoteSizes sizes,
                     CopyKeptPart copy_kept_part)
    : entry_barrier_(group, identity),
      sizes_(std::move(sizes)),
      copy_kept_part_(std::move(copy_kept_part)),
      end_(sizes_.staging_bytes()) {
  CHECK(group.parts && sizes_.payload_bytes.size() == group.parts->members.size(),
        "every host has a note");
  CHECK(sizes_.fit_into_staging(), "supports() must be ok");
  std::int64_t begin = 0;
  for (const std::int64_t bytes :
       sizes_.kept_bytes.empty() ? sizes_.payload_bytes : sizes_.kept_bytes) {
    note_offsets_.push_back(begin);
    begin += note_bytes(bytes);
  }
  own_note_offset_ =
      copy_kept_part_ ? begin : note_offsets_[static_cast<std::size_t>(parts().host)];
}

std::byte* HostNotes::own_published_data(std::int64_t bytes) const {
  return bytes <= static_cast<std::int64_t>(kInlineBytes) ? entry_barrier_.own_inline_payload()
                                                          : entry_barrier_.own_staging() + end_;
}

const std::byte* HostNotes::published_data(int member, std::int64_t bytes) const {
  return bytes <= static_cast<std::int64_t>(kInlineBytes) ? entry_barrier_.inline_payload(member)
                                                          : entry_barrier_.staging(member) + end_;
}

std::span<std::byte> HostNotes::note_to_send() const {
  const std::int64_t payload = sizes_.payload_bytes[static_cast<std::size_t>(parts().host)];
  return {entry_barrier_.own_staging() + own_note_offset_,
          static_cast<std::size_t>(kHeaderBytes + payload)};
}

void HostNotes::send_note(std::optional<NoteHeader> header) const {
  const NoteHeader sent_header = header.value_or(kInvalidHeader);
  const std::span<std::byte> note = note_to_send();
  std::memcpy(note.data(), &sent_header, sizeof(sent_header));
  parts().lane->send_entry(entry_barrier_.identity(), note);
  if (copy_kept_part_) keep_note(parts().host, sent_header, note.subspan(sizeof(sent_header)));
}

void HostNotes::keep_note(int host, const NoteHeader& header,
                          std::span<const std::byte> payload) const {
  std::byte* const into =
      entry_barrier_.own_staging() + note_offsets_[static_cast<std::size_t>(host)];
  std::memcpy(into, &header, sizeof(header));
  if (header.present_count < 0 || payload.empty()) return;
  if (copy_kept_part_)
    copy_kept_part_(payload, into + sizeof(header));
  else
    std::memcpy(into + sizeof(header), payload.data(), payload.size());
}

Progress HostNotes::exchange() {
  if (makes_note()) {
    if (const Progress collect_progress = collect_notes(); collect_progress != Progress::kDone)
      return collect_progress;
    entry_barrier_.board().publish_phase(kPhase);
  } else if (!entry_barrier_.board().has_reached(0, kPhase)) {
    return Progress::kPending;
  }
  state_ = State::kOver;
  return Progress::kDone;
}

Progress HostNotes::collect_notes() {
  for (; notes_collected_ < parts().hosts(); ++notes_collected_) {
    if (notes_collected_ == parts().host) continue;
    const auto entry = parts().lane->entry(notes_collected_, entry_barrier_.identity());
    if (!entry) return Progress::kPending;
    is_same_step_ = is_same_step_ && entry->id == entry_barrier_.identity().id;
    NoteHeader header = kInvalidHeader;
    const auto payload = sizes_.payload_bytes[static_cast<std::size_t>(notes_collected_)];
    const bool has_expected_size =
        static_cast<std::int64_t>(entry->note.size()) == payload + kHeaderBytes;
    if (has_expected_size) std::memcpy(&header, entry->note.data(), sizeof(header));
    keep_note(notes_collected_, header,
              entry->note.subspan(has_expected_size ? sizeof(header) : 0));
  }
  return is_same_step_ ? Progress::kDone : Progress::kMisprediction;
}

NoteHeader HostNotes::header(int host) const {
  NoteHeader header;
  std::memcpy(&header, entry_barrier_.staging(0) + note_offsets_[static_cast<std::size_t>(host)],
              sizeof(header));
  return header;
}

const std::byte* HostNotes::payload(int host) const {
  return entry_barrier_.staging(0) + note_offsets_[static_cast<std::size_t>(host)] + kHeaderBytes;
}

bool HostNotes::are_valid() const {
  for (int host = 0; host < parts().hosts(); ++host) {
    const NoteHeader host_header = header(host);
    if (host_header.present_count < 0 || host_header.present_count > parts().members_on(host) ||
        host_header.declared_count != header(0).declared_count)
      return false;
  }
  return true;
}

std::int64_t HostNotes::present_count_in_group() const {
  std::int64_t sum = 0;
  for (int host = 0; host < parts().hosts(); ++host) sum += present_count(host);
  return sum;
}

}  // namespace farandole
