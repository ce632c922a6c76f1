// HostsBroadcast: the broadcast of a group that has members on several hosts. A small tensor
// travels in the note of the root's host. A larger tensor is divided into one part for each host
// except the root's. The root's host sends each part to the host of the part, which forwards it to
// the other hosts. So no host sends the whole tensor more than once.
//
// In a window, the root stages a chunk of each part. Lane k of the root's host sends slice k of
// each chunk, straight out of the root's staging memory. Lane k of another host forwards slice k of
// its part from the memory into which it receives the slice, while further bytes still arrive. If
// the lane waited for the whole slice, two windows on the wire would not be enough to keep all
// links busy. A member that is alone on its host needs no staging memory: the root sends from its
// input; another member receives into its output and forwards from its output.
//
// Cost for n bytes on h hosts with p members each. A small tensor takes 2 waits and a one-way
// latency, and the root's host sends (h − 1) n bytes. A larger tensor takes a one-way latency for
// the notes. After this, each window takes 2 waits and two latencies (one if h = 2), with two
// windows on the wire. The root's host sends n bytes, and each other host (h − 2)/(h − 1) · n
// bytes. A member that is not alone on its host moves 2n bytes. A member that is alone on its host
// moves 2n bytes if it is the root and its output is not its input; otherwise it moves no bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "collective/broadcast.h"
#include "hosts/notes.h"
#include "hosts/streams.h"
#include "hosts/windows.h"

namespace farandole {

class HostsBroadcast final : public StepBetweenHosts {
 public:
  // Returns how many chunks a window has; see WindowLayout. A window needs no further memory for
  // slices.
  static int chunks_in_window(const HostParts& parts) { return parts.hosts() - 1; }

  // The root is a member of the whole group. The memory is borrowed until the step has ended.
  HostsBroadcast(const Group& group, const StepIdentity& identity,
                 const Broadcast::Options& options);

  Progress advance() override { return advance_between_hosts(notes_, windows_, *this, *this); }

  // These functions implement the algorithm; see HostNotes, advance_between_hosts() and
  // BasicHostWindows.
  std::int64_t publish_input();
  std::optional<NoteHeader> write_note(std::span<std::byte> payload) const;
  std::optional<std::int64_t> on_all_arrived();
  void stage(std::int64_t window) const;
  void begin(std::int64_t window);
  bool drive();
  bool is_complete(std::int64_t window);
  void fetch(std::int64_t window) const;

 private:
  const HostParts& parts() const { return notes_.parts(); }
  bool is_on_root_host() const { return root_host_ == parts().host; }
  bool is_root() const {
    return is_on_root_host() && root_index_ == notes_.entry_barrier().group().member;
  }
  bool fits_into_notes() const { return options_.bytes <= note_data_bytes_max(parts().hosts()); }
  const std::byte* staging(int member) const { return notes_.entry_barrier().staging(member); }

  // The root's host has no part, so `host` must not be the root's host. Ranges are positions in the
  // tensor.
  int part_index(int host) const { return host < root_host_ ? host : host - 1; }
  std::int64_t part_bytes() const;  // the last parts may be shorter
  StreamRange chunk(int host, std::int64_t window) const;
  StreamRange slice(int host, std::int64_t window) const {
    return layout_.slice(chunk(host, window), notes_.entry_barrier().group().member);
  }
  bool is_alone() const { return notes_.entry_barrier().group().members() == 1; }
  // The offset of the byte at `position` of the tensor in the staging memory of each member.
  std::int64_t staging_offset(int host, std::int64_t window, std::int64_t position) const {
    return layout_.chunk_offset(window, part_index(host)) + position - chunk(host, window).begin;
  }
  // Calls visit(host) for each host that has a part.
  template <class Visit>
  void for_each_part(const Visit& visit) const {
    for (int host = 0; host < parts().hosts(); ++host)
      if (host != root_host_) visit(host);
  }
  void copy_out(StreamRange range, const std::byte* from) const;
  const std::byte* source(StreamRange range, int host_of_part, std::int64_t window) const;
  std::byte* target(StreamRange range, int host_of_part, std::int64_t window) const;
  void copy_from_own_host(std::int64_t window) const;

  // Two positions in the streams of our lane. At arrived_mark(), the slice that we forward has
  // arrived. At complete_mark(), all data of the window is sent and received. Both positions are
  // kept only for the two windows on the wire.
  LaneStreams::Mark& arrived_mark(std::int64_t window) {
    return arrived_marks_[static_cast<std::size_t>(window % 2)];
  }
  LaneStreams::Mark& complete_mark(std::int64_t window) {
    return complete_marks_[static_cast<std::size_t>(window % 2)];
  }

  Broadcast::Options options_;
  int root_host_ = 0;
  int root_index_ = 0;  // the root's index in its host part
  HostNotes notes_;
  HostWindows windows_;
  WindowLayout layout_;
  LaneStreams lane_;
  std::int64_t windows_begun_ = 0;      // number of windows that we have begun to send or receive
  std::int64_t windows_forwarded_ = 0;  // number of windows with a completely queued slice
  std::int64_t forwarded_bytes_ = 0;    // queued bytes of our slice of the next window
  std::array<LaneStreams::Mark, 2> arrived_marks_;
  std::array<LaneStreams::Mark, 2> complete_marks_;
};

}  // namespace farandole
