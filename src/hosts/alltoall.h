// HostsAlltoall: the all-to-all of a group that has members on several hosts. A host's note carries
// the splits of its members for the whole group, and the length of the longest stream from this
// host. The other hosts keep only the splits for their own members. supports() in start_step.h says
// which groups are too large for these notes. The stream from one host to another consists of the
// rows from each member of the sending host to each member of the receiving host, sender by sender.
//
// Cost: each row that leaves its host is on the wire once. The step takes two one-way latencies and
// the waits of HostCopies. A member that sends n bytes and gets m bytes moves 2 (n + m) bytes, or
// fewer if it is alone on its host (see HostCopies).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collective/alltoall.h"
#include "hosts/copies.h"
#include "hosts/notes.h"
#include "hosts/windows.h"

namespace farandole {

class HostsAlltoall final : public StepBetweenHosts {
 public:
  static NoteSizes note_sizes(const HostParts& parts);

  // There is a split for each member of the whole group. The input is borrowed until the step has
  // ended.
  HostsAlltoall(Group& group, const StepIdentity& identity, Alltoall::Options options);

  Progress advance() override { return advance_between_hosts(notes_, windows_, *this, copies_); }

  // These functions implement the algorithm; see HostNotes and advance_between_hosts().
  std::int64_t publish_input();
  std::optional<NoteHeader> write_note(std::span<std::byte> payload) const;
  std::optional<std::int64_t> on_all_arrived();

 private:
  const HostParts& parts() const { return notes_.parts(); }
  const std::vector<int>& members_on(int host) const {
    return parts().members[static_cast<std::size_t>(host)];
  }
  std::int64_t splits_bytes() const;
  void copy_kept_part(std::span<const std::byte> payload, std::byte* into) const;
  // Returns how many rows a member of our host sends to a member on any host.
  std::int64_t rows_sent(int sender_index, int receiver) const;
  // Returns how many rows a member of a host sends to a member of our host.
  std::int64_t rows_received(int sender_host, int sender_index, int receiver_index) const;
  std::optional<std::int64_t> longest_stream(std::span<const std::byte> splits) const;
  bool read_received_rows();
  std::optional<HostCopies::Streams> streams() const;
  HostStream outgoing_to(int host) const;
  HostStream incoming_from(int host) const;

  StepScratch* scratch_;  // owned by the group; only this step uses it until this step ends
  Alltoall::Options options_;
  HostNotes notes_;
  HostWindows windows_;
  HostCopies copies_;
};

}  // namespace farandole
