// HostsBarrier: a barrier of a group that has members on several hosts. The hosts only exchange
// notes. Cost: 2 waits and a one-way latency.
#pragma once

#include <vector>

#include "hosts/notes.h"

namespace farandole {

class HostsBarrier final : public StepBetweenHosts {
 public:
  HostsBarrier(const Group& group, const StepIdentity& identity)
      : notes_(group, identity,
               {.payload_bytes = std::vector<std::int64_t>(group.parts->members.size(), 0)}) {}

  Progress advance() override {
    const Progress notes_progress = notes_.advance(*this);
    return notes_progress != Progress::kDone || notes_.are_valid() ? notes_progress
                                                                   : Progress::kMismatch;
  }

  // These functions implement the algorithm; see HostNotes.
  static std::int64_t publish_input() { return 0; }
  static std::optional<NoteHeader> write_note(std::span<std::byte>) { return NoteHeader{}; }

 private:
  HostNotes notes_;
};

}  // namespace farandole
