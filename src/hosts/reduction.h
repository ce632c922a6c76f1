// HostsReduction: the allreduce and the reduce-scatter of a group that has members on several
// hosts. The tensor is divided into one part per host. In an allreduce, the parts are nearly equal
// ranges. In a reduce-scatter, the part of a host consists of the rows that the members of this
// host get. Each host reduces its inputs to its host sum in shared memory, and sends each part of
// the host sum to the host of this part. The host of a part adds the host sums of this part. In an
// allreduce, this host then sends the result to all hosts.
//
// In a window, local member k reduces slice k of every chunk over the members of its host and sends
// it through lane k. A lane sends R0 R1 G0 R2 G1 … : Rw is its slice of the host sums of window w.
// Gw is its slice of the results of window w; a reduce-scatter has no Gw. Sender and receiver use
// this order. So a member sends Gw when it has begun window w + 1 and has received Rw from all
// hosts.
//
// Sums are formed in rank order on each host, and then over the hosts in the order of hosts. All
// members get the same bits, but these may differ from the result of a group on one host. Inputs of
// type float16 and bfloat16 are added in float32 and rounded to their type twice: the host sum
// before it is sent, and the result. The prescale is applied to the inputs; the postscale and the
// division of an average are applied to the result. If all members of a host have called join(),
// the host sends no host sum.
//
// If a member is alone on its host and has not called join(), it stages and fetches nothing: it
// sends from its input and receives the results into its output. Only the host sums of other hosts
// arrive in its staging memory. The output may be the input, because a host sends the result of a
// slice only after it has received our contribution to this slice. If there is a prescale, the
// member sends scaled copies of its input from its staging memory.
//
// Cost for n bytes on h hosts with p members and L lanes each:
// - if the notes can carry the host sum: 2 waits and a one-way latency; each host sends (h − 1) n
//   bytes, local member 0 moves (p + 1) n bytes and each member (h + 1) n bytes;
// - otherwise: 2 waits for the notes and 2 waits per window; a one-way latency for the notes, and
//   then one latency per window (two in an allreduce), with two windows on the wire. Each host
//   sends 2 (h − 1)/h · n bytes in an allreduce, which is the lower bound, and half of this number
//   in a reduce-scatter. Each member moves (2 − 2/L) n bytes to stage and 2n to fetch (2/(hp) · n
//   in a reduce-scatter). A member with a lane also moves (p + 1)/L · n bytes for the host sums and
//   (h + 1)/(hL) · n for the results. If p is 1, a member moves (h + 1)/h · n bytes in all, and 2n
//   more if there is a prescale.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collective/allreduce.h"
#include "device/cpu/reduce.h"
#include "hosts/host_sum.h"
#include "hosts/notes.h"
#include "hosts/streams.h"
#include "hosts/windows.h"

namespace farandole {

class HostsReduction final : public StepBetweenHosts {
 public:
  struct Options {
    AllreduceOptions tensor;  // the divisor in these options is not used
    // For each host: the part of the tensor that this host reduces. A block's `input_offset` is its
    // position in the tensor. In an allreduce, all members of all hosts get all parts; in a
    // reduce-scatter, the members of a host get only blocks of their own part.
    std::vector<HostStream> parts = {};
    bool is_allreduce = true;
  };

  // Returns the parts of an allreduce of this many bytes.
  static std::vector<HostStream> equal_parts(const Group& group, std::int64_t bytes);
  // Returns the parts of a reduce-scatter of this many rows.
  static std::vector<HostStream> parts_by_rows(const Group& group, std::int64_t rows,
                                               std::int64_t row_bytes);

  // supports() and check_reduction() must be ok. The memory is borrowed until the step has ended.
  // If the step is given up, the memory stays borrowed until the lane no longer uses it.
  HostsReduction(Group& group, const StepIdentity& identity, Options options);

  Progress advance() override { return advance_between_hosts(notes_, windows_, *this, *this); }

  // These functions implement the algorithm; see HostNotes, advance_between_hosts() and
  // BasicHostWindows.
  std::int64_t publish_input() const { return host_sum_.publish_input(); }
  std::optional<NoteHeader> write_note(std::span<std::byte> payload) const {
    return host_sum_.write_note(payload);
  }
  std::optional<std::int64_t> on_all_arrived();
  void stage(std::int64_t window);
  void begin(std::int64_t window);
  bool drive();
  bool is_complete(std::int64_t window);
  void fetch(std::int64_t window);

 private:
  const Group& group() const { return notes_.entry_barrier().group(); }
  const HostParts& parts() const { return notes_.parts(); }
  bool fits_into_notes() const {
    return HostSum::fits_into_notes(parts(), options_.tensor.bytes());
  }
  const HostStream& part(int host) const { return options_.parts[static_cast<std::size_t>(host)]; }
  // Whether we get results from this host's part.
  bool wants_results_of(int host) const { return options_.is_allreduce || host == parts().host; }
  bool skips_staging() const { return group().members() == 1 && !options_.tensor.joined; }
  bool sends_input() const { return skips_staging() && options_.tensor.reduction.prescale == 1; }
  StreamRange slice(int host, std::int64_t window) const {
    return layout_.slice(part(host), window, group().member);
  }
  std::byte* own_staging_at(std::int64_t offset) const {
    return notes_.entry_barrier().own_staging() + offset;
  }
  // Where our slice of the host sum of another host arrives in our staging memory.
  std::byte* contribution_at(std::int64_t window, int host) const {
    return own_staging_at(layout_.slice_offset(window, host));
  }
  // The offset in our staging memory of the result of our slice of a host's part.
  std::int64_t result_offset(std::int64_t window, int host) const {
    return layout_.slice_offset(window, parts().hosts() + host);
  }
  // The offset in a member's staging memory of our lane's slice of a host's part.
  std::int64_t published_offset(std::int64_t window, int host) const {
    return layout_.chunk_offset(window, host) + slice(host, window).begin -
           layout_.chunk(part(host), window).begin;
  }

  // Where a piece of our slice is in our host sum and in the result.
  const std::byte* own_sum_at(int host, std::int64_t window, const Block& block,
                              StreamRange piece) const;
  std::byte* result_at(int host, std::int64_t window, const Block& block, StreamRange piece) const;

  // Two positions in the streams of our lane. At contributed_mark(), the host sums of all other
  // hosts have arrived. At complete_mark(), all data of the window is sent and received. Both
  // positions are kept only for the two windows on the wire.
  LaneStreams::Mark& contributed_mark(std::int64_t window) {
    return contributed_marks_[static_cast<std::size_t>(window % 2)];
  }
  LaneStreams::Mark& complete_mark(std::int64_t window) {
    return complete_marks_[static_cast<std::size_t>(window % 2)];
  }

  void reduce_notes() const;
  void contribute(std::int64_t window);
  void receive(std::int64_t window);
  void combine(std::int64_t window);

  HostNotes notes_;
  HostWindows windows_;
  StepScratch* scratch_;  // owned by the group; only this step uses it until this step ends
  Options options_;
  HostSum host_sum_;
  WindowLayout layout_;
  LaneStreams lane_;
  Reduction result_reduction_;
  std::int64_t window_count_ = 0;
  std::int64_t windows_begun_ = 0;     // number of windows whose host sums we have begun to send
  std::int64_t windows_combined_ = 0;  // number of windows whose results we have reduced
  std::array<LaneStreams::Mark, 2> contributed_marks_;
  std::array<LaneStreams::Mark, 2> complete_marks_;
};

}  // namespace farandole
