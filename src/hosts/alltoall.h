// HostsAlltoall: the all-to-all of a group that has members on several hosts. The notes carry the
// splits of all members, so they grow with the square of the group; supports() has the limit. The
// stream from one host to another is the rows from each member of the one to each member of the
// other, sender by sender.
//
// Cost: each row that leaves its host is on the wire once; two one-way latencies, and the waits of
// HostCopies. A member that sends n bytes and gets m bytes moves 2 (n + m) bytes.
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
  // The bytes that each host's note has beside its header.
  static std::vector<std::int64_t> payloads(const HostParts& hosts);

  // The splits are those for all members of the whole group. The input is borrowed until the step
  // has ended.
  HostsAlltoall(Group& group, const StepIdentity& identity, Alltoall::Options options);

  Progress advance() override { return advance_between_hosts(notes_, windows_, *this, copies_); }

  // See HostNotes and advance_between_hosts().
  std::int64_t show();
  std::optional<NoteHeader> write_note(std::span<std::byte> payload) const;
  std::optional<std::int64_t> all_arrived();

 private:
  const HostParts& hosts() const { return notes_.parts(); }
  const std::vector<int>& members_on(int host) const {
    return hosts().members[static_cast<std::size_t>(host)];
  }
  int own_member() const;
  std::int64_t splits_bytes() const;
  std::int64_t split(int from, int to) const;  // in rows; call it after read_splits()
  void read_splits();
  bool splits_fit() const;
  std::int64_t longest_stream() const;
  void add_rows(HostStream& stream, int from_host, int to_host) const;
  HostCopies::Streams streams();

  StepScratch* scratch_;  // owned by the group; used only by this step until it ends
  Alltoall::Options options_;
  HostNotes notes_;
  HostWindows windows_;
  HostCopies copies_;
  std::vector<std::int64_t> sent_before_;  // by member: our rows for the members before it
};

}  // namespace farandole
