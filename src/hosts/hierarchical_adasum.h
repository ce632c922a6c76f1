// HierarchicalAdasum: the Adasum of the averages of hosts, for a group that has members on several
// hosts. The members of each host average their inputs in shared memory, and the hosts combine
// these averages. The input of a member that has called join() counts as zeros. The flat Adasum,
// which combines the inputs of all members, is GatheredReduction.
//
// The averages are sent twice: the first pass adds up their dot products, the second pass adds the
// weighted averages. In a window, local member k averages slice k of the chunk over the members of
// its host. It sends this average through lane k to every other host, and combines it with the
// averages of the other hosts. Members of different hosts compute the same values from the same
// bytes, so all members get the same bits.
//
// Cost for n bytes on h hosts with p members each: a small tensor travels in the notes, which takes
// 2 waits and a one-way latency. Otherwise each host sends 2 (h − 1) n bytes; the flat Adasum sends
// p times as many. The step takes a one-way latency for the notes, and then 2 waits and a one-way
// latency per window of each pass, with two windows on the wire.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "collective/allreduce.h"
#include "hosts/host_sum.h"
#include "hosts/notes.h"
#include "hosts/streams.h"
#include "hosts/windows.h"

namespace farandole {

class HierarchicalAdasum final : public StepBetweenHosts {
 public:
  // check_reduction() must accept the reduction, and the group may have 255 members at most. The
  // memory is borrowed until the step has ended.
  HierarchicalAdasum(Group& group, const StepIdentity& identity, const AllreduceOptions& tensor);

  Progress advance() override { return advance_between_hosts(notes_, windows_, *this, *this); }

  // These functions implement the algorithm; see HostNotes, advance_between_hosts() and
  // BasicHostWindows.
  std::int64_t publish_input() const { return host_average_.publish_input(); }
  std::optional<NoteHeader> write_note(std::span<std::byte> payload) const {
    return host_average_.write_note(payload);
  }
  std::optional<std::int64_t> on_all_arrived();
  void stage(std::int64_t window) const;
  void begin(std::int64_t window);
  bool drive();
  bool is_complete(std::int64_t window);
  void fetch(std::int64_t window);

 private:
  const Group& group() const { return notes_.entry_barrier().group(); }
  const HostParts& parts() const { return notes_.parts(); }
  StreamRange chunk(std::int64_t window) const {
    return layout_.chunk(whole_tensor_, window % windows_in_pass_);
  }
  StreamRange slice(std::int64_t window, int lane) const {
    return layout_.slice(chunk(window), lane);
  }
  StreamRange own_slice(std::int64_t window) const { return slice(window, group().member); }
  std::byte* own_staging_at(std::int64_t offset) const {
    return notes_.entry_barrier().own_staging() + offset;
  }
  // The offset at which each member of our host stages our slice, in the member's staging memory.
  std::int64_t published_offset(std::int64_t window) const {
    return layout_.chunk_offset(window, 0) + own_slice(window).begin - chunk(window).begin;
  }
  // The offset at which our lane receives the averages of the other hosts, in our staging memory.
  // After the last window of the first pass, the lane stores its dot products there.
  std::int64_t received_offset(std::int64_t window) const {
    return layout_.slice_offset(window, 0);
  }
  std::int64_t result_offset(std::int64_t window) const {
    return layout_.slice_offset(window, parts().hosts());
  }
  LaneStreams::Mark& complete_mark(std::int64_t window) {
    return complete_marks_[static_cast<std::size_t>(window % 2)];
  }

  void reduce_notes();
  void combine(std::int64_t window);
  void compute_weights(std::int64_t window);

  HostNotes notes_;
  HostWindows windows_;
  StepScratch* scratch_;  // owned by the group; only this step uses it until this step ends
  AllreduceOptions tensor_;
  HostSum host_average_;
  HostStream whole_tensor_;
  WindowLayout layout_;
  LaneStreams lane_;
  std::int64_t windows_in_pass_ = 0;
  std::int64_t windows_begun_ = 0;     // number of windows whose averages we have begun to send
  std::int64_t windows_combined_ = 0;  // number of windows whose slice we have combined
  bool has_weights_ = false;
  // The positions in the streams of our lane at which all data of a window is sent and received.
  // The index is the window modulo 2, because only the positions of the two windows on the wire are
  // kept.
  std::array<LaneStreams::Mark, 2> complete_marks_;
};

}  // namespace farandole
