#include "hosts/hierarchical_adasum.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "device/cpu/adasum.h"

namespace farandole {
namespace {

// Returns the number of slices of a window: one for the average of each host, and one for the
// result.
int slices_in_window(const HostParts& parts) { return parts.hosts() + 1; }

Reduction average_on(const HostParts& parts, DType dtype) {
  return {.dtype = dtype, .op = ReduceOp::kAverage, .divisor = parts.members_on(parts.host)};
}

std::size_t dot_product_count_of(const HostParts& parts) {
  return dot_product_count(parts.members.size());
}

}  // namespace

HierarchicalAdasum::HierarchicalAdasum(Group& group, const StepIdentity& identity,
                                       const AllreduceOptions& tensor)
    : notes_(group, identity, HostSum::note_sizes(*group.parts, tensor.bytes())),
      scratch_(&group.scratch),
      tensor_(tensor),
      host_average_(notes_, *scratch_, tensor_, average_on(parts(), tensor.reduction.dtype)),
      layout_(notes_, 1, slices_in_window(parts())),
      lane_(parts()) {
  whole_tensor_.add({.bytes = tensor.bytes()});
  windows_in_pass_ = layout_.windows_for(tensor.bytes());
  CHECK(static_cast<std::int64_t>(dot_product_count_of(parts()) * sizeof(double)) <=
            slices_in_window(parts()) * layout_.slice_bytes(),
        "the dot products of 255 hosts fit into the slices of a window");
}

std::optional<std::int64_t> HierarchicalAdasum::on_all_arrived() {
  if (notes_.present_count_in_group() == 0) return std::nullopt;
  if (HostSum::fits_into_notes(parts(), tensor_.bytes())) {
    if (!tensor_.joined) reduce_notes();
    return 0;
  }
  scratch_->dot_products.assign(dot_product_count_of(parts()), 0);
  scratch_->weights.assign(parts().members.size(), 0);
  if (lane_.has_lane()) lane_.begin(notes_.entry_barrier().identity());
  return 2 * windows_in_pass_;
}

void HierarchicalAdasum::reduce_notes() {
  scratch_->inputs.clear();
  for (int host = 0; host < parts().hosts(); ++host)
    scratch_->inputs.push_back(notes_.present_count(host) > 0 ? notes_.payload(host) : nullptr);
  reduce_inputs(tensor_.reduction, *scratch_, tensor_.output, tensor_.bytes());
}

void HierarchicalAdasum::stage(std::int64_t window) const {
  const StreamRange window_chunk = chunk(window);
  host_average_.stage(
      whole_tensor_, window_chunk,
      lane_.has_lane() ? own_slice(window) : StreamRange{window_chunk.end, window_chunk.end},
      layout_.chunk_offset(window, 0));
}

void HierarchicalAdasum::begin(std::int64_t window) {
  if (!lane_.has_lane()) return;
  const bool is_present = notes_.present_count(parts().host) > 0;
  const std::int64_t bytes = own_slice(window).bytes();
  if (is_present)
    host_average_.reduce_slice(whole_tensor_, own_slice(window), published_offset(window));
  for (int host = 0; host < parts().hosts(); ++host) {
    if (host == parts().host) continue;
    if (is_present) lane_.send(host, own_staging_at(published_offset(window)), bytes);
    if (notes_.present_count(host) > 0)
      lane_.receive(host, own_staging_at(layout_.slice_offset(window, host)), bytes);
  }
  complete_mark(window) = lane_.mark();
  windows_begun_ = window + 1;
}

// The second pass needs the weights, and the weights need the dot products of all lanes.
bool HierarchicalAdasum::drive() {
  if (windows_combined_ == windows_begun_ || !lane_.has_received(complete_mark(windows_combined_)))
    return false;
  if (windows_combined_ >= windows_in_pass_ && !has_weights_) return false;
  combine(windows_combined_++);
  return true;
}

void HierarchicalAdasum::combine(std::int64_t window) {
  const std::int64_t count = own_slice(window).bytes() / tensor_.element_bytes();
  scratch_->inputs.clear();
  for (int host = 0; host < parts().hosts(); ++host)
    scratch_->inputs.push_back(notes_.present_count(host) == 0 ? nullptr
                               : host == parts().host
                                   ? own_staging_at(published_offset(window))
                                   : own_staging_at(layout_.slice_offset(window, host)));
  const Adasum adasum(tensor_.reduction.dtype);
  if (window >= windows_in_pass_) {
    const std::array outputs = {own_staging_at(result_offset(window))};
    return adasum.add_weighted(scratch_->inputs, scratch_->weights, outputs, count);
  }
  adasum.add_dot_products(scratch_->inputs, count, scratch_->dot_products);
  if (window + 1 == windows_in_pass_)
    std::memcpy(own_staging_at(received_offset(window)), scratch_->dot_products.data(),
                scratch_->dot_products.size() * sizeof(double));
}

bool HierarchicalAdasum::is_complete(std::int64_t window) {
  return !lane_.has_lane() || (windows_combined_ > window && lane_.has_sent(complete_mark(window)));
}

void HierarchicalAdasum::fetch(std::int64_t window) {
  if (window + 1 == windows_in_pass_) compute_weights(window);
  if (window < windows_in_pass_ || tensor_.joined) return;
  for (int lane = 0; lane < parts().lanes(); ++lane) {
    const StreamRange range = slice(window, lane);
    if (range.bytes() > 0)
      std::memcpy(tensor_.output + range.begin,
                  notes_.entry_barrier().staging(lane) + result_offset(window),
                  static_cast<std::size_t>(range.bytes()));
  }
}

// Adds up the dot products of all lanes, in the same order on all members, and computes the weights
// from the sums.
void HierarchicalAdasum::compute_weights(std::int64_t window) {
  auto& sums = scratch_->dot_products;
  std::ranges::fill(sums, 0);
  for (int lane = 0; lane < parts().lanes(); ++lane)
    add_partial_dot_products(sums, notes_.entry_barrier().staging(lane) + received_offset(window));
  compute_adasum_weights(sums, tensor_.reduction.prescale * tensor_.reduction.postscale,
                         scratch_->weights);
  has_weights_ = true;
}

}  // namespace farandole
