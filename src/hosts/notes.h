// HostNotes: the first stage of every step of a group that has members on several hosts. After it,
// every member knows that all members on all hosts have entered the step, and has read a note from
// each host. Only then may the step write user memory or move data between hosts.
//
// Each member enters the step on the flag board of its host. When all of them have entered the same
// step, local member 0 sends the note of our host to the other hosts. When it has the entries of
// all hosts and all are for the same step, it copies all notes into its staging memory and
// publishes phase 1, for which the other local members wait.
//
// A note begins with a header; the operation chooses its payload: counts, or the data itself if it
// is small. Local member 0 makes the note from the data that the other members showed before they
// entered. If the entries of a host are invalid, its note says so, and then the step is a mismatch
// on all members of all hosts.
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
  std::int64_t present = 0;  // members that contribute data: all but those that have joined
  // Equal on all members of all hosts, for example the bytes of the tensor.
  std::int64_t declared_count = 0;
};

// How many bytes the payloads have, by host. All members of all hosts must give the same.
struct NoteSizes {
  // The largest part of the staging memory that the notes may use.
  static constexpr std::int64_t kStagingBytesMax = 1024 * 1024;

  std::vector<std::int64_t> payloads;
  // How many bytes of each payload the members of a host keep; if empty, all of them.
  std::vector<std::int64_t> kept = {};

  // How much staging memory the notes use.
  std::int64_t staging_bytes() const;
  // Whether the notes are small enough.
  bool fit() const;
};

// The most data that a note may carry instead of windows. The notes of many hosts are smaller,
// because every host sends its note to all others and keeps the notes of all others.
constexpr std::int64_t note_data_bytes_max(int hosts) {
  constexpr std::int64_t kOneNote = 16 * 1024;
  constexpr std::int64_t kAllNotes = 256 * 1024;
  return kAllNotes / hosts < kOneNote ? kAllNotes / hosts : kOneNote;
}

// One object per step. Only one thread at a time may use it: the holder of the progress lock.
class HostNotes {
 public:
  // The phase that local member 0 publishes when all notes are in its staging memory.
  static constexpr std::uint32_t kPhase = 1;
  // Copies to `into` the part of a payload that the members of our host need.
  using Keep = std::function<void(std::span<const std::byte> payload, std::byte* into)>;

  // The sizes must fit(). `keep` is needed if not all of each payload is kept. `group` is borrowed
  // and must outlive this object.
  HostNotes(const Group& group, const StepIdentity& identity, NoteSizes sizes, Keep keep = {});

  const EntryBarrier& entry_barrier() const { return entry_barrier_; }
  const HostParts& parts() const { return *entry_barrier_.group().parts; }
  bool is_over() const { return state_ == State::kOver; }

  // Does a bounded amount of work; see Progress. kDone: all notes can be read. The algorithm has
  // these functions:
  //   std::int64_t publish_input(): publishes the data from which our host's note is made; called
  //   before we
  //     enter. Returns our declared count;
  //   std::optional<NoteHeader> write_note(std::span<std::byte> payload): called on local member 0
  //     when all local members have entered. Empty if an entry is invalid.
  template <class Algorithm>
  Progress advance(Algorithm& algorithm);

  // Where a member publishes `bytes` bytes before it enters: in the flag line, or in staging memory
  // after the notes. The windows of the step may overwrite it once all notes have arrived.
  std::byte* own_published_data(std::int64_t bytes) const;
  const std::byte* published_data(int member, std::int64_t bytes) const;
  // The offset from which the staging memory of every member is free for the windows of the step.
  std::int64_t end() const { return end_; }

  // Only after kDone:
  // False if a note is invalid, or if the declared counts of the hosts differ.
  bool are_valid() const;
  std::int64_t present(int host) const { return header(host).present; }
  std::int64_t present_in_group() const;
  // The kept part of the payload of a host.
  const std::byte* payload(int host) const;
  // The whole payload of our host.
  const std::byte* own_payload() const {
    return entry_barrier_.staging(0) + own_begin_ + sizeof(NoteHeader);
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
  Keep keep_;
  // Where the notes begin in the staging memory of local member 0.
  std::vector<std::int64_t> begins_;  // for each host: where the kept part of its note begins
  std::int64_t own_begin_ = 0;        // the note that our host sends
  std::int64_t end_;
  int collected_ = 0;  // local member 0: how many hosts' notes have arrived
  bool same_step_ = true;
  State state_ = State::kEnter;
};

template <class Algorithm>
Progress HostNotes::advance(Algorithm& algorithm) {
  if (state_ == State::kEnter) {
    entry_barrier_.enter(algorithm.publish_input());
    state_ = State::kArrive;
  }
  if (state_ == State::kArrive) {
    const Progress arrived = entry_barrier_.check_arrivals();
    if (arrived != Progress::kDone && arrived != Progress::kMismatch) return arrived;
    const bool is_valid = arrived == Progress::kDone;
    if (makes_note())
      send_note(is_valid ? algorithm.write_note(note_to_send().subspan(sizeof(NoteHeader)))
                         : std::optional<NoteHeader>());
    if (!is_valid) return arrived;
    state_ = State::kExchange;
  }
  return exchange();
}

}  // namespace farandole
