// HostsBroadcast: the broadcast of a group that has members on several hosts. The note of the
// root's host carries a small tensor. If the tensor is larger, the root's host sends it as a stream
// to each other host.
//
// Cost for n bytes on h hosts with p members each: the root's host sends (h − 1) n bytes. A small
// tensor takes 2 waits and one one-way latency; a larger one takes one latency more, and the waits
// of HostCopies. The root moves 2n bytes, and so does each other member.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "collective/broadcast.h"
#include "hosts/copies.h"
#include "hosts/notes.h"
#include "hosts/windows.h"

namespace farandole {

class HostsBroadcast final : public StepBetweenHosts {
 public:
  // The root is a member of the whole group. The memory is borrowed until the step has ended.
  HostsBroadcast(const Group& group, const StepIdentity& identity,
                 const Broadcast::Options& options);

  Progress advance() override { return advance_between_hosts(notes_, windows_, *this, copies_); }

  // See HostNotes and advance_between_hosts().
  std::int64_t show();
  std::optional<NoteHeader> write_note(std::span<std::byte> payload) const;
  std::optional<std::int64_t> all_arrived();

 private:
  const HostParts& hosts() const { return notes_.parts(); }
  bool is_root() const;
  bool is_small() const { return options_.bytes <= note_data_bytes_max(hosts().hosts()); }
  HostCopies::Streams streams() const;

  Broadcast::Options options_;
  int root_host_ = 0;
  int root_ = 0;  // the root's index in its host part
  HostNotes notes_;
  HostWindows windows_;
  HostCopies copies_;
};

}  // namespace farandole
