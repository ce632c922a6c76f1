#include "hosts/notes.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "collective/staging.h"

namespace farandole {
namespace {

constexpr auto kHeaderBytes = static_cast<std::int64_t>(sizeof(NoteHeader));
// The header of a host whose entries are invalid.
constexpr NoteHeader kInvalid = {.present = -1};

}  // namespace

std::int64_t HostNotes::bytes_for(std::span<const std::int64_t> payload_bytes) {
  std::int64_t sum = 0;
  for (const std::int64_t bytes : payload_bytes)
    sum += round_up(kHeaderBytes + bytes, kPieceAlignment);
  return round_up(sum, kPartAlignment);
}

HostNotes::HostNotes(const Group& group, const StepIdentity& identity,
                     std::vector<std::int64_t> payload_bytes)
    : entry_barrier_(group, identity),
      payload_bytes_(std::move(payload_bytes)),
      end_(bytes_for(payload_bytes_)) {
  CHECK(group.parts && static_cast<int>(payload_bytes_.size()) == group.parts->hosts(),
        "every host has a note");
  std::int64_t begin = 0;
  for (const std::int64_t bytes : payload_bytes_) {
    CHECK(bytes + kHeaderBytes <= static_cast<std::int64_t>(kNoteBytesMax),
          "supports() must be ok");
    begins_.push_back(begin);
    begin += round_up(kHeaderBytes + bytes, kPieceAlignment);
  }
  CHECK(end_ <= kAllBytesMax, "supports() must be ok");
}

std::byte* HostNotes::own_room(std::int64_t bytes) const {
  return bytes <= static_cast<std::int64_t>(kInlineBytes) ? entry_barrier_.own_inline_payload()
                                                          : entry_barrier_.own_staging() + end_;
}

const std::byte* HostNotes::room(int member, std::int64_t bytes) const {
  return bytes <= static_cast<std::int64_t>(kInlineBytes) ? entry_barrier_.inline_payload(member)
                                                          : entry_barrier_.staging(member) + end_;
}

std::byte* HostNotes::own_note(int host) const {
  return entry_barrier_.own_staging() + begins_[static_cast<std::size_t>(host)];
}

std::span<std::byte> HostNotes::own_payload() const {
  const int host = parts().host;
  return {own_note(host) + kHeaderBytes,
          static_cast<std::size_t>(payload_bytes_[static_cast<std::size_t>(host)])};
}

void HostNotes::send_note(const std::optional<NoteHeader>& header) const {
  const NoteHeader sent = header.value_or(kInvalid);
  std::byte* const note = own_note(parts().host);
  std::memcpy(note, &sent, sizeof(sent));
  const std::size_t bytes = sizeof(sent) + own_payload().size();
  parts().lane->send_entry(entry_barrier_.identity(), {note, bytes});
}

Progress HostNotes::exchange() {
  if (makes_note()) {
    if (const Progress collected = collect_notes(); collected != Progress::kDone) return collected;
    entry_barrier_.board().publish_phase(kPhase);
  } else if (!entry_barrier_.board().has_reached(0, kPhase)) {
    return Progress::kPending;
  }
  state_ = State::kOver;
  return Progress::kDone;
}

Progress HostNotes::collect_notes() {
  for (; collected_ < parts().hosts(); ++collected_) {
    if (collected_ == parts().host) continue;
    const auto entry = parts().lane->entry(collected_, entry_barrier_.identity());
    if (!entry) return Progress::kPending;
    same_step_ = same_step_ && entry->id == entry_barrier_.identity().id;
    const auto bytes = payload_bytes_[static_cast<std::size_t>(collected_)] + kHeaderBytes;
    std::byte* const note = own_note(collected_);
    if (static_cast<std::int64_t>(entry->note.size()) == bytes)
      std::memcpy(note, entry->note.data(), entry->note.size());
    else
      std::memcpy(note, &kInvalid, sizeof(kInvalid));
  }
  return same_step_ ? Progress::kDone : Progress::kMisprediction;
}

NoteHeader HostNotes::header(int host) const {
  NoteHeader header;
  std::memcpy(&header, entry_barrier_.staging(0) + begins_[static_cast<std::size_t>(host)],
              sizeof(header));
  return header;
}

const std::byte* HostNotes::payload(int host) const {
  return entry_barrier_.staging(0) + begins_[static_cast<std::size_t>(host)] + kHeaderBytes;
}

bool HostNotes::are_valid() const {
  for (int host = 0; host < parts().hosts(); ++host) {
    const NoteHeader theirs = header(host);
    if (theirs.present < 0 || theirs.present > parts().members_on(host) ||
        theirs.declared_count != header(0).declared_count)
      return false;
  }
  return true;
}

std::int64_t HostNotes::present_in_group() const {
  std::int64_t sum = 0;
  for (int host = 0; host < parts().hosts(); ++host) sum += present(host);
  return sum;
}

}  // namespace farandole
