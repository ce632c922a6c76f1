#include "hosts/reduction.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace farandole {
namespace {

Reduction host_sum_reduction(Reduction reduction) {
  if (reduction.op == ReduceOp::kAverage || reduction.op == ReduceOp::kAverageOfPresent)
    reduction.op = ReduceOp::kSum;
  reduction.postscale = 1;
  return reduction;
}

}  // namespace

std::vector<HostStream> HostsReduction::equal_parts(const Group& group, std::int64_t bytes) {
  const std::int64_t host_count = group.parts->hosts();
  const std::int64_t part_bytes = round_up(rounds_for(bytes, host_count), kPieceAlignment);
  std::vector<HostStream> parts(static_cast<std::size_t>(host_count));
  for (std::int64_t host = 0; host < host_count; ++host) {
    const std::int64_t begin = std::min(host * part_bytes, bytes);
    parts[static_cast<std::size_t>(host)].add({.bytes = std::min(part_bytes, bytes - begin),
                                               .input_offset = begin,
                                               .output_offset = begin});
  }
  return parts;
}

std::vector<HostStream> HostsReduction::parts_by_rows(const Group& group, std::int64_t rows,
                                                      std::int64_t row_bytes) {
  const HostParts& host_parts = *group.parts;
  const int members = host_parts.group_members();
  std::vector<HostStream> parts;
  for (const std::vector<int>& members_on_host : host_parts.members) {
    HostStream& part = parts.emplace_back();
    for (std::size_t index = 0; index < members_on_host.size(); ++index)
      part.add(
          {.receiver = static_cast<int>(index),
           .bytes = scattered_rows(rows, members, members_on_host[index]) * row_bytes,
           .input_offset = first_scattered_row(rows, members, members_on_host[index]) * row_bytes});
  }
  return parts;
}

HostsReduction::HostsReduction(Group& group, const StepIdentity& identity, Options options)
    : notes_(group, identity, HostSum::note_sizes(*group.parts, options.tensor.bytes())),
      scratch_(&group.scratch),
      options_(std::move(options)),
      host_sum_(notes_, *scratch_, options_.tensor, host_sum_reduction(options_.tensor.reduction)),
      layout_(notes_, parts().hosts(), 2 * parts().hosts()),
      lane_(parts()),
      result_reduction_(options_.tensor.reduction) {
  result_reduction_.prescale = 1;
}

std::optional<std::int64_t> HostsReduction::on_all_arrived() {
  const auto present_count = notes_.present_count_in_group();
  if (present_count == 0) return std::nullopt;
  result_reduction_.divisor = result_reduction_.op == ReduceOp::kAverageOfPresent
                                  ? static_cast<int>(present_count)
                                  : parts().group_members();
  if (fits_into_notes()) {
    if (!options_.tensor.joined) reduce_notes();
    return 0;
  }
  std::int64_t longest_part_bytes = 0;
  for (int host = 0; host < parts().hosts(); ++host)
    longest_part_bytes = std::max(longest_part_bytes, part(host).bytes());
  window_count_ = layout_.windows_for(longest_part_bytes);
  if (lane_.has_lane()) lane_.begin(notes_.entry_barrier().identity());
  return window_count_;
}

// Reduces the host sums in the notes, for the blocks that this member gets.
void HostsReduction::reduce_notes() const {
  for (int host = 0; host < parts().hosts(); ++host) {
    if (!wants_results_of(host)) continue;
    part(host).visit({0, part(host).bytes()}, [&](const Block& block, StreamRange) {
      if (!block.is_for(group().member)) return;
      scratch_->inputs.clear();
      for (int sender = 0; sender < parts().hosts(); ++sender)
        if (notes_.present_count(sender) > 0)
          scratch_->inputs.push_back(notes_.payload(sender) + block.input_offset);
      reduce_inputs(result_reduction_, *scratch_, options_.tensor.output + block.output_offset,
                    block.bytes);
    });
  }
}

void HostsReduction::stage(std::int64_t window) {
  if (skips_staging()) return;
  for (int host = 0; host < parts().hosts(); ++host) {
    const StreamRange chunk = layout_.chunk(part(host), window);
    const StreamRange own_slice =
        lane_.has_lane() ? slice(host, window) : StreamRange{chunk.end, chunk.end};
    host_sum_.stage(part(host), chunk, own_slice, layout_.chunk_offset(window, host));
  }
}

const std::byte* HostsReduction::own_sum_at(int host, std::int64_t window, const Block& block,
                                            StreamRange piece) const {
  if (sends_input()) return host_sum_.input_at(block, piece);
  return own_staging_at(published_offset(window, host)) + (piece.begin - slice(host, window).begin);
}

std::byte* HostsReduction::result_at(int host, std::int64_t window, const Block& block,
                                     StreamRange piece) const {
  if (skips_staging())
    return options_.tensor.output + block.output_offset + (piece.begin - block.begin);
  return own_staging_at(result_offset(window, host)) + (piece.begin - slice(host, window).begin);
}

void HostsReduction::begin(std::int64_t window) {
  if (!lane_.has_lane()) return;
  if (window == 0) {
    receive(0);
    receive(1);
  }
  if (notes_.present_count(parts().host) > 0) contribute(window);
  complete_mark(window).sent = lane_.mark().sent;
  windows_begun_ = window + 1;
}

// Sends our slice of each other host's part to that host: the sum over the members of our host, or
// our input itself if it is equal to this sum.
void HostsReduction::contribute(std::int64_t window) {
  for (int host = 0; host < parts().hosts(); ++host) {
    const StreamRange own_slice = slice(host, window);
    if (sends_input()) {
      if (host == parts().host) continue;
      part(host).visit(own_slice, [&](const Block& block, StreamRange piece) {
        lane_.send(host, own_sum_at(host, window, block, piece), piece.bytes());
      });
      continue;
    }
    host_sum_.reduce_slice(part(host), own_slice, published_offset(window, host));
    if (host != parts().host)
      lane_.send(host, own_staging_at(published_offset(window, host)), own_slice.bytes());
  }
}

// Begins to receive the host sums of a window and, in an allreduce, the results of the previous
// window. The memory for both is free when the host sums of window − 2 have been reduced. This
// function is called at that time, long before begin(window). So data that arrives before
// begin(window) goes directly to its place, without a copy.
void HostsReduction::receive(std::int64_t window) {
  if (window > window_count_) return;
  const int our_host = parts().host;
  for (int host = 0; host < parts().hosts(); ++host)
    if (host != our_host && notes_.present_count(host) > 0)
      lane_.receive(host, contribution_at(window, host), slice(our_host, window).bytes());
  contributed_mark(window).received = lane_.mark().received;
  if (!options_.is_allreduce || window == 0) return;
  for (int host = 0; host < parts().hosts(); ++host) {
    if (host == our_host) continue;
    part(host).visit(slice(host, window - 1), [&](const Block& block, StreamRange piece) {
      lane_.receive(host, result_at(host, window - 1, block, piece), piece.bytes());
    });
  }
  complete_mark(window - 1).received = lane_.mark().received;
}

// In the streams of an allreduce, the results of a window come after the host sums of the next
// window. So a window is combined only after the next window has begun.
bool HostsReduction::drive() {
  const std::int64_t windows_ready =
      options_.is_allreduce && windows_begun_ < window_count_ ? windows_begun_ - 1 : windows_begun_;
  if (windows_combined_ >= windows_ready ||
      !lane_.has_received(contributed_mark(windows_combined_)))
    return false;
  combine(windows_combined_++);
  return true;
}

// Reduces our slice of our host's part over the hosts. In an allreduce, sends the result to the
// other hosts.
void HostsReduction::combine(std::int64_t window) {
  const int our_host = parts().host;
  const StreamRange own_slice = slice(our_host, window);
  part(our_host).visit(own_slice, [&](const Block& block, StreamRange piece) {
    std::byte* const to = result_at(our_host, window, block, piece);
    scratch_->inputs.clear();
    for (int host = 0; host < parts().hosts(); ++host)
      if (notes_.present_count(host) > 0)
        scratch_->inputs.push_back(host == our_host ? own_sum_at(our_host, window, block, piece)
                                                    : contribution_at(window, host) +
                                                          (piece.begin - own_slice.begin));
    reduce_inputs(result_reduction_, *scratch_, to, piece.bytes());
    if (!options_.is_allreduce) return;
    for (int host = 0; host < parts().hosts(); ++host)
      if (host != our_host) lane_.send(host, to, piece.bytes());
  });
  if (options_.is_allreduce) complete_mark(window).sent = lane_.mark().sent;
  receive(window + 2);
}

bool HostsReduction::is_complete(std::int64_t window) {
  return !lane_.has_lane() ||
         (windows_combined_ > window && lane_.has_sent(complete_mark(window)) &&
          lane_.has_received(complete_mark(window)));
}

void HostsReduction::fetch(std::int64_t window) {
  if (options_.tensor.joined || skips_staging()) return;
  for (int host = 0; host < parts().hosts(); ++host) {
    if (!wants_results_of(host)) continue;
    for (int lane = 0; lane < parts().lanes(); ++lane) {
      const StreamRange slice = layout_.slice(part(host), window, lane);
      const std::byte* const from =
          notes_.entry_barrier().staging(lane) + result_offset(window, host);
      part(host).visit(slice, [&](const Block& block, StreamRange range) {
        if (!block.is_for(group().member)) return;
        std::memcpy(options_.tensor.output + block.output_offset + (range.begin - block.begin),
                    from + (range.begin - slice.begin), static_cast<std::size_t>(range.bytes()));
      });
    }
  }
}

}  // namespace farandole
