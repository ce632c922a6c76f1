// HostNotes: the first stage of every step of a group that has members on several hosts. After this
// stage, every member knows that all members on all hosts have entered the step, and it can read
// the notes of all hosts. Only then may the step write user memory or move data between hosts.
//
// Each member enters the step on the flag board of its host. When all members of our host have
// entered the same step, local member 0 sends the note of our host to the other hosts. When local
// member 0 has the entries of all hosts, and all entries are for the same step, it copies the notes
// into its staging memory. Then it publishes phase 1, for which the other local members wait.
//
// A note consists of a header and a payload. The payload depends on the operation: counts, or the
// data itself if it is small. Local member 0 makes the note from the data that the members of our
// host publish before they enter. If the entries of a host are invalid, its note says so, and the
// step is then a mismatch on all members of all hosts.
//
// Cost: 2 waits for flags, and a one-way latency between the hosts. A host sends its note to each
// other host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "collective/entry_barrier.h"
#include "collective/lane.h"

namespace farandole {

struct NoteHeader {
  // The number of members that contribute data: the members that have not called join().
  std::int64_t present_count = 0;
  // A number that must be equal on all hosts, such as the number of bytes of the tensor.
  std::int64_t declared_count = 0;
};

// The number of bytes of each host's payload. All members of all hosts must use equal sizes.
struct NoteSizes {
  // The largest part of the staging memory that the notes may use.
  static constexpr std::int64_t kStagingBytesMax = 1024 * 1024;

  std::vector<std::int64_t> payload_bytes;
  // How many bytes of each payload the members of a host keep. If the list is empty, they keep all
  // bytes.
  std::vector<std::int64_t> kept_bytes = {};

  // Returns how many bytes of staging memory the notes use.
  std::int64_t staging_bytes() const;
  // Whether the notes are small enough for an entry and for the staging memory.
  bool fit_into_staging() const;
};

// Returns how many bytes of data a note may carry; larger tensors use windows. The limit is lower
// for many hosts, because each host sends its note to every other host and keeps the notes of all
// hosts.
constexpr std::int64_t note_data_bytes_max(int hosts) {
  constexpr std::int64_t kOneNoteBytes = 16 * 1024;
  constexpr std::int64_t kAllNotesBytes = 256 * 1024;
  return kAllNotesBytes / hosts < kOneNoteBytes ? kAllNotesBytes / hosts : kOneNoteBytes;
}

// One object per step. Only one thread at a time may use it: the holder of the progress lock.
class HostNotes {
 public:
  // The phase that local member 0 publishes when all notes are in its staging memory.
  static constexpr std::uint32_t kPhase = 1;
  // Copies to `into` the part of a payload that the members of our host need.
  using CopyKeptPart = std::function<void(std::span<const std::byte> payload, std::byte* into)>;

  // sizes.fit_into_staging() must be true. `copy_kept_part` is needed if the payloads are not kept
  // completely. `group` is borrowed and must outlive this object.
  HostNotes(const Group& group, const StepIdentity& identity, NoteSizes sizes,
            CopyKeptPart copy_kept_part = {});

  const EntryBarrier& entry_barrier() const { return entry_barrier_; }
  const HostParts& parts() const { return *entry_barrier_.group().parts; }
  bool is_over() const { return state_ == State::kOver; }

  // Does a bounded amount of work; see Progress. kDone: all notes can be read. The algorithm has
  // these functions:
  //   std::int64_t publish_input(): publishes the data from which our host's note is made, and
  //     returns our declared count; called before we enter;
  //   std::optional<NoteHeader> write_note(std::span<std::byte> payload): called on local member 0
  //     when all local members have entered. Empty if an entry is invalid.
  template <class Algorithm>
  Progress advance(Algorithm& algorithm);

  // The place where a member publishes `bytes` bytes before it enters: in the flag line, or in the
  // staging memory after the notes. The windows of the step may overwrite this data when all notes
  // have arrived.
  std::byte* own_published_data(std::int64_t bytes) const;
  const std::byte* published_data(int member, std::int64_t bytes) const;
  // The offset at which the notes end in the staging memory. After this offset, the staging memory
  // of every member is free for the windows of the step.
  std::int64_t end() const { return end_; }

  // Call the following functions only after kDone.

  // Returns false if a note is invalid or the declared counts of the hosts differ.
  bool are_valid() const;
  std::int64_t present_count(int host) const { return header(host).present_count; }
  std::int64_t present_count_in_group() const;
  // The kept part of the payload of a host.
  const std::byte* payload(int host) const;
  // The whole payload of our host.
  const std::byte* own_payload() const {
    return entry_barrier_.staging(0) + own_note_offset_ + sizeof(NoteHeader);
  }

 private:
  enum class State : std::uint8_t { kEnter, kArrive, kExchange, kOver };

  NoteHeader header(int host) const;
  bool makes_note() const { return entry_barrier_.group().member == 0; }
  void keep_note(int host, const NoteHeader& header, std::span<const std::byte> payload) const;
  std::span<std::byte> note_to_send() const;
  void send_note(std::optional<NoteHeader> header) const;
  Progress exchange();
  Progress collect_notes();

  EntryBarrier entry_barrier_;
  NoteSizes sizes_;
  CopyKeptPart copy_kept_part_;
  // These offsets are in the staging memory of local member 0.
  std::vector<std::int64_t> note_offsets_;  // for each host: where the kept part of its note begins
  std::int64_t own_note_offset_ = 0;        // the note that our host sends
  std::int64_t end_;
  int notes_collected_ = 0;  // on local member 0: how many hosts' notes have arrived
  bool is_same_step_ = true;
  State state_ = State::kEnter;
};

template <class Algorithm>
Progress HostNotes::advance(Algorithm& algorithm) {
  if (state_ == State::kEnter) {
    entry_barrier_.enter(algorithm.publish_input());
    state_ = State::kArrive;
  }
  if (state_ == State::kArrive) {
    const Progress arrival_progress = entry_barrier_.check_arrivals();
    if (arrival_progress != Progress::kDone && arrival_progress != Progress::kMismatch)
      return arrival_progress;
    const bool is_valid = arrival_progress == Progress::kDone;
    if (makes_note())
      send_note(is_valid ? algorithm.write_note(note_to_send().subspan(sizeof(NoteHeader)))
                         : std::optional<NoteHeader>());
    if (!is_valid) return arrival_progress;
    state_ = State::kExchange;
  }
  return exchange();
}

}  // namespace farandole
