// HostsAllgather: the all-gather of a group that has members on several hosts. The notes carry the
// number of rows of each member. A host sends the same stream to every other host: the rows of its
// members in rank order.
//
// Cost on h hosts, if the members of a host together contribute s bytes: the host sends (h − 1) s
// bytes, and the step takes two one-way latencies and the waits of HostCopies. A member that
// contributes n bytes of a result of N bytes moves 2 (n + N) bytes, or fewer if it is alone on its
// host (see HostCopies).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "collective/allgather.h"
#include "hosts/copies.h"
#include "hosts/notes.h"
#include "hosts/windows.h"

namespace farandole {

class HostsAllgather final : public StepBetweenHosts {
 public:
  static NoteSizes note_sizes(const HostParts& parts);

  // The input is borrowed until the step has ended.
  HostsAllgather(Group& group, const StepIdentity& identity, Allgather::Options options);

  Progress advance() override { return advance_between_hosts(notes_, windows_, *this, copies_); }

  // These functions implement the algorithm; see HostNotes and advance_between_hosts().
  std::int64_t publish_input() const { return options_.rows; }
  std::optional<NoteHeader> write_note(std::span<std::byte> payload) const;
  std::optional<std::int64_t> on_all_arrived();

 private:
  const HostParts& parts() const { return notes_.parts(); }
  bool read_rows();
  HostCopies::Streams streams() const;

  StepScratch* scratch_;  // owned by the group; only this step uses it until this step ends
  Allgather::Options options_;
  HostNotes notes_;
  HostWindows windows_;
  HostCopies copies_;
};

}  // namespace farandole
