#include "hosts/reduction.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace farandole {
namespace {

bool is_average(ReduceOp op) {
  return op == ReduceOp::kAverage || op == ReduceOp::kAverageOfPresent;
}

NoteSizes note_sizes(const Group& group, std::int64_t bytes) {
  const int hosts = group.parts->hosts();
  return {.payloads = std::vector<std::int64_t>(static_cast<std::size_t>(hosts),
                                                bytes <= note_data_bytes_max(hosts) ? bytes : 0)};
}

}  // namespace

std::vector<HostStream> HostsReduction::equal_parts(const Group& group, std::int64_t bytes) {
  const std::int64_t hosts = group.parts->hosts();
  const std::int64_t full = round_up(rounds_for(bytes, hosts), kPieceAlignment);
  std::vector<HostStream> parts(static_cast<std::size_t>(hosts));
  for (std::int64_t host = 0; host < hosts; ++host) {
    const std::int64_t begin = std::min(host * full, bytes);
    parts[static_cast<std::size_t>(host)].add(
        {.bytes = std::min(full, bytes - begin), .input = begin, .output = begin});
  }
  return parts;
}

std::vector<HostStream> HostsReduction::parts_by_rows(const Group& group, std::int64_t rows,
                                                      std::int64_t row_bytes) {
  const HostParts& hosts = *group.parts;
  const int members = hosts.group_members();
  std::vector<HostStream> parts;
  for (const std::vector<int>& members_on_host : hosts.members) {
    HostStream& part = parts.emplace_back();
    for (std::size_t index = 0; index < members_on_host.size(); ++index)
      part.add({.to = static_cast<int>(index),
                .bytes = scattered_rows(rows, members, members_on_host[index]) * row_bytes,
                .input = first_scattered_row(rows, members, members_on_host[index]) * row_bytes});
  }
  return parts;
}

HostsReduction::HostsReduction(Group& group, const StepIdentity& identity, Options options)
    : notes_(group, identity, note_sizes(group, options.tensor.bytes())),
      scratch_(&group.scratch),
      options_(std::move(options)),
      layout_(notes_, hosts().hosts(), 2 * hosts().hosts()),
      lane_(hosts()),
      to_host_sum_(options_.tensor.reduction),
      to_result_(options_.tensor.reduction) {
  if (is_average(to_host_sum_.op)) to_host_sum_.op = ReduceOp::kSum;
  to_host_sum_.postscale = 1;
  to_result_.prescale = 1;
}

std::int64_t HostsReduction::show() {
  const AllreduceOptions& tensor = options_.tensor;
  if (is_small() && !tensor.joined && tensor.count > 0)
    std::memcpy(notes_.own_shown_data(tensor.bytes()), tensor.input,
                static_cast<std::size_t>(tensor.bytes()));
  return declared_count_of(tensor);
}

std::optional<NoteHeader> HostsReduction::write_note(std::span<std::byte> payload) {
  const EntryBarrier& entry_barrier = notes_.entry_barrier();
  const std::int64_t bytes = options_.tensor.bytes();
  NoteHeader header = {.declared_count = bytes};
  scratch_->inputs.clear();
  for (int member = 0; member < group().members(); ++member) {
    const std::int64_t declared_count = entry_barrier.declared_count(member);
    if (declared_count != bytes && declared_count != kJoinedDeclaredCount + bytes)
      return std::nullopt;
    if (has_joined(entry_barrier, member)) continue;
    ++header.present;
    scratch_->inputs.push_back(notes_.shown_data(member, bytes));
  }
  if (header.present > 0)
    reduce_inputs(to_host_sum_, payload.data(), static_cast<std::int64_t>(payload.size()));
  else
    std::ranges::fill(payload, std::byte{0});
  return header;
}

// Reduces the collected inputs of the scratch list.
void HostsReduction::reduce_inputs(const Reduction& reduction, std::byte* output,
                                   std::int64_t bytes) const {
  if (bytes == 0) return;
  const std::array outputs = {output};
  reduce(reduction, scratch_->inputs, outputs, bytes / options_.tensor.element_bytes());
}

std::optional<std::int64_t> HostsReduction::all_arrived() {
  const auto present = notes_.present_in_group();
  if (present == 0) return std::nullopt;
  to_result_.divisor = to_result_.op == ReduceOp::kAverageOfPresent ? static_cast<int>(present)
                                                                    : hosts().group_members();
  if (is_small()) {
    if (!options_.tensor.joined) reduce_notes();
    return 0;
  }
  std::int64_t longest = 0;
  for (int host = 0; host < hosts().hosts(); ++host)
    longest = std::max(longest, part(host).bytes());
  window_count_ = layout_.windows_for(longest);
  if (lane_.exist()) lane_.begin(notes_.entry_barrier().identity());
  return window_count_;
}

// Every member reduces the host sums of the blocks that it gets.
void HostsReduction::reduce_notes() const {
  for (int host = 0; host < hosts().hosts(); ++host) {
    if (!wants(host)) continue;
    part(host).visit({0, part(host).bytes()}, [&](const Block& block, StreamRange) {
      if (!block.is_for(group().member)) return;
      scratch_->inputs.clear();
      for (int from = 0; from < hosts().hosts(); ++from)
        if (notes_.present(from) > 0)
          scratch_->inputs.push_back(notes_.payload(from) + block.input);
      reduce_inputs(to_result_, options_.tensor.output + block.output, block.bytes);
    });
  }
}

// Copies the data that the other members of our host reduce. We read the slice that we reduce
// directly from our input.
void HostsReduction::stage(std::int64_t window) {
  if (options_.tensor.joined) return;
  for (int host = 0; host < hosts().hosts(); ++host) {
    const StreamRange chunk = layout_.chunk(part(host), window);
    const StreamRange ours =
        lane_.exist() ? slice(host, window) : StreamRange{chunk.end, chunk.end};
    std::byte* const to = own(layout_.chunk_offset(window, host));
    const auto copy = [&](const Block& block, StreamRange range) {
      std::memcpy(to + (range.begin - chunk.begin), input_at(block, range),
                  static_cast<std::size_t>(range.bytes()));
    };
    part(host).visit({chunk.begin, ours.begin}, copy);
    part(host).visit({ours.end, chunk.end}, copy);
  }
}

const std::byte* HostsReduction::input_at(const Block& block, StreamRange range) const {
  return options_.tensor.input + block.input + (range.begin - block.begin);
}

// Reduces the slice of our lane over the inputs of the members of our host. Writes the result to
// the place of this slice in the chunk that we show. No other member reads that place.
void HostsReduction::reduce_slice(std::int64_t window, int host) const {
  const EntryBarrier& entry_barrier = notes_.entry_barrier();
  const StreamRange all = slice(host, window);
  part(host).visit(all, [&](const Block& block, StreamRange range) {
    const std::int64_t offset = shown_offset(window, host) + (range.begin - all.begin);
    scratch_->inputs.clear();
    for (int member = 0; member < group().members(); ++member)
      if (!has_joined(entry_barrier, member))
        scratch_->inputs.push_back(member == group().member
                                       ? input_at(block, range)
                                       : entry_barrier.staging(member) + offset);
    reduce_inputs(to_host_sum_, own(offset), range.bytes());
  });
}

void HostsReduction::begin(std::int64_t window) {
  if (!lane_.exist()) return;
  const int our_host = hosts().host;
  const bool is_present = notes_.present(our_host) > 0;
  for (int host = 0; host < hosts().hosts(); ++host) {
    if (is_present) reduce_slice(window, host);
    if (host == our_host) continue;
    if (is_present) lane_.send(host, own(shown_offset(window, host)), slice(host, window).bytes());
    if (notes_.present(host) > 0)
      lane_.receive(host, contribution(window, host), slice(our_host, window).bytes());
  }
  contributed(window) = complete(window) = lane_.mark();
  begun_ = window + 1;
  if (!options_.is_allreduce) return;
  if (window > 0) receive_results(window - 1);
  if (begun_ == window_count_) receive_results(window);
}

void HostsReduction::receive_results(std::int64_t window) {
  for (int host = 0; host < hosts().hosts(); ++host)
    if (host != hosts().host)
      lane_.receive(host, own(result_offset(window, host)), slice(host, window).bytes());
  complete(window).received = lane_.mark().received;
}

// In the streams of an allreduce, the results of a window come after the host sums of the next
// window.
bool HostsReduction::drive() {
  const std::int64_t last = options_.is_allreduce && begun_ < window_count_ ? begun_ - 1 : begun_;
  if (combined_ >= last || !lane_.have_received(contributed(combined_))) return false;
  combine(combined_++);
  return true;
}

// Reduces our slice of our host's part over the hosts, and sends it to the other hosts.
void HostsReduction::combine(std::int64_t window) {
  const int our_host = hosts().host;
  const std::int64_t bytes = slice(our_host, window).bytes();
  std::byte* const result = own(result_offset(window, our_host));
  scratch_->inputs.clear();
  for (int host = 0; host < hosts().hosts(); ++host)
    if (notes_.present(host) > 0)
      scratch_->inputs.push_back(host == our_host ? own(shown_offset(window, our_host))
                                                  : contribution(window, host));
  reduce_inputs(to_result_, result, bytes);
  if (!options_.is_allreduce) return;
  for (int host = 0; host < hosts().hosts(); ++host)
    if (host != our_host) lane_.send(host, result, bytes);
  complete(window).sent = lane_.mark().sent;
}

bool HostsReduction::is_complete(std::int64_t window) {
  return !lane_.exist() || (combined_ > window && lane_.have_sent(complete(window)) &&
                            lane_.have_received(complete(window)));
}

void HostsReduction::fetch(std::int64_t window) {
  if (options_.tensor.joined) return;
  for (int host = 0; host < hosts().hosts(); ++host) {
    if (!wants(host)) continue;
    for (int lane = 0; lane < hosts().lanes(); ++lane) {
      const StreamRange slice = layout_.slice(part(host), window, lane);
      const std::byte* const from =
          notes_.entry_barrier().staging(lane) + result_offset(window, host);
      part(host).visit(slice, [&](const Block& block, StreamRange range) {
        if (!block.is_for(group().member)) return;
        std::memcpy(options_.tensor.output + block.output + (range.begin - block.begin),
                    from + (range.begin - slice.begin), static_cast<std::size_t>(range.bytes()));
      });
    }
  }
}

}  // namespace farandole
