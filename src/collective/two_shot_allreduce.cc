#include "collective/two_shot_allreduce.h"

#include <cstring>

#include "base/check.h"
#include "device/cpu/adasum.h"

namespace farandole {
namespace {

// Slices begin at multiples of a cache line, so that two members never write to the same line.
// Slices of kPagesMin pages or more begin at multiples of a page, so that each page is written by
// one member.
constexpr std::int64_t kLineBytes = 64;
constexpr std::int64_t kPageBytes = 4096;
constexpr std::int64_t kPagesMin = 16;

// How many bytes of staging memory the parts cycle through. Before a member writes a part again, it
// has written this many other bytes, and the others' caches no longer hold the part. More memory
// would not fit into our own cache and would sometimes be slow.
constexpr std::int64_t kRotationBytes = 1 << 20;

// Up to this size, each of two members reduces the whole tensor. If the tensor is larger than the
// second-level cache, it is faster if each member reduces only its slice, because this moves less
// data.
constexpr std::int64_t kWholeReductionBytesMax = 512 * 1024;

}  // namespace

TwoShotAllreduce::TwoShotAllreduce(Group& group, const StepIdentity& identity,
                                   const AllreduceOptions& options)
    : shots_(EntryBarrier(group, identity)),
      scratch_(&group.scratch),
      options_(options),
      has_dot_product_pass_(options.is_adasum() && group.members() > 1),
      stages_input_(!options.joined && group.members() > 1 &&
                    !shots_.entry_barrier().is_visible(
                        {options.input, static_cast<std::size_t>(options.bytes())})) {
  CHECK(!options.is_adasum() || group.ranks.size() <= kAdasumMembersMax,
        "the dot products of all members fit into a part of the staging memory");
}

TwoShotAllreduce::Range TwoShotAllreduce::window(std::int64_t index) const {
  if (is_one_window_) return {0, options_.count};
  return staged_window(index % staged_windows());
}

TwoShotAllreduce::Range TwoShotAllreduce::staged_window(std::int64_t index) const {
  const std::int64_t full_window = kRoundBytes / options_.element_bytes();
  const std::int64_t begin = index * full_window;
  return {begin, std::min(full_window, options_.count - begin)};
}

TwoShotAllreduce::Range TwoShotAllreduce::slice(Range window, int member) const {
  const std::int64_t members = shots_.entry_barrier().group().members();
  const std::int64_t even_share = (window.count + members - 1) / members;
  const bool is_large = even_share * options_.element_bytes() >= kPagesMin * kPageBytes;
  const std::int64_t full_slice =
      round_up(even_share, (is_large ? kPageBytes : kLineBytes) / options_.element_bytes());
  const std::int64_t begin = std::min(full_slice * member, window.count);
  return {begin, std::min(full_slice, window.count - begin)};
}

std::int64_t TwoShotAllreduce::part_offset(std::int64_t index) const {
  const std::int64_t dot_products_space =
      has_dot_product_pass_ ? round_up(dot_products_bytes(), kPartAlignment) : 0;
  const std::int64_t part_bytes = published_bytes() + dot_products_space;
  const Parts parts = {.bytes = part_bytes,
                       .rounds = passes() * staged_windows(),
                       .staging_bytes = std::max(kRotationBytes, kPartsMin * part_bytes)};
  return parts.offset(shots_.entry_barrier().identity(), index);
}

std::int64_t TwoShotAllreduce::dot_products_bytes() const {
  const auto members = static_cast<std::size_t>(shots_.entry_barrier().group().members());
  return static_cast<std::int64_t>(dot_product_count(members) * sizeof(double));
}

std::span<const std::byte> TwoShotAllreduce::input() const {
  if (options_.joined) return {};
  return {options_.input, static_cast<std::size_t>(options_.bytes())};
}

std::span<const std::byte> TwoShotAllreduce::output() const {
  if (options_.joined) return {};
  return {options_.output, static_cast<std::size_t>(options_.bytes())};
}

// Copies the slices that the other members reduce. Our own slice is read from the input directly.
void TwoShotAllreduce::stage(std::int64_t index) {
  if (!stages_input_ || options_.count == 0) return;
  const EntryBarrier& entry_barrier = shots_.entry_barrier();
  const std::int64_t size = options_.element_bytes();
  const Range whole_window = window(index);
  const Range own_slice = slice(whole_window, entry_barrier.group().member);
  std::byte* const to = entry_barrier.own_staging() + part_offset(index);
  const std::byte* const from = options_.input + whole_window.begin * size;
  const auto copy = [&](std::int64_t begin, std::int64_t end) {
    if (begin < end)
      std::memcpy(to + begin * size, from + begin * size,
                  static_cast<std::size_t>((end - begin) * size));
  };
  copy(0, own_slice.begin);
  copy(own_slice.begin + own_slice.count, whole_window.count);
}

void TwoShotAllreduce::enter(EntryBarrier& entry_barrier) const {
  entry_barrier.enter_exposing(declared_count_of(options_), input(), output());
}

std::optional<std::int64_t> TwoShotAllreduce::on_all_arrived() {
  const EntryBarrier& entry_barrier = shots_.entry_barrier();
  const int contributing_members = count_contributing_members(entry_barrier, options_.bytes());
  if (contributing_members == 0) return std::nullopt;
  set_divisor(options_.reduction, contributing_members);
  if (options_.count == 0) return 0;
  const auto bytes = static_cast<std::size_t>(options_.bytes());
  const int members = entry_barrier.group().members();
  bool all_expose = true;
  bool may_reduce_all =
      members == 2 && !has_dot_product_pass_ && options_.bytes() <= kWholeReductionBytesMax;
  others_fetch_ = false;
  for (int member = 0; member < members; ++member) {
    if (has_joined(entry_barrier, member)) continue;
    if (!entry_barrier.exposes_enough(member, options_.bytes())) return std::nullopt;
    const Entry entry = entry_barrier.board().entry(member);
    may_reduce_all = may_reduce_all && entry.input != entry.output;
    all_expose = all_expose && entry_barrier.input(member, bytes) != nullptr;
    others_fetch_ = others_fetch_ || entry_barrier.output(member, bytes) == nullptr;
  }
  reduces_all_ = all_expose && may_reduce_all;
  // A member that is alone, or that reduces the whole tensor itself, fetches nothing.
  if (members == 1 || reduces_all_) others_fetch_ = false;
  is_one_window_ = members == 1 || (all_expose && !others_fetch_);
  scratch_->dot_products.assign(dot_product_count(static_cast<std::size_t>(members)), 0);
  scratch_->weights.assign(static_cast<std::size_t>(members), 0);
  return passes() * windows();
}

// Reduces at most kBytesPerAdvance of our slice, or of the whole tensor if every member reduces the
// whole tensor. Returns false while a part is left to reduce.
bool TwoShotAllreduce::reduce(std::int64_t index) {
  if (is_dot_product_window(index)) return add_dot_products(index);
  Range own_slice = slice(window(index), shots_.entry_barrier().group().member);
  if (reduces_all_) own_slice = {0, options_.joined ? 0 : options_.count};
  const std::int64_t chunk = kBytesPerAdvance / options_.element_bytes();
  const std::int64_t count = std::min(chunk, own_slice.count - reduced_);
  if (count > 0) reduce_range(index, {own_slice.begin + reduced_, count});
  reduced_ += count;
  if (reduced_ < own_slice.count) return false;
  reduced_ = 0;
  return true;
}

// Collects the addresses of the members' inputs. `offset_in_tensor` is the offset in an exposed
// tensor. `offset_in_staging` is the offset in the staging memory of a member that does not expose
// its input.
void TwoShotAllreduce::collect_inputs(std::int64_t offset_in_tensor,
                                      std::int64_t offset_in_staging) const {
  const EntryBarrier& entry_barrier = shots_.entry_barrier();
  const Group& group = entry_barrier.group();
  const auto bytes = static_cast<std::size_t>(options_.bytes());
  scratch_->inputs.clear();
  for (int member = 0; member < group.members(); ++member) {
    if (has_joined(entry_barrier, member)) {
      if (options_.is_adasum()) scratch_->inputs.push_back(nullptr);
      continue;
    }
    const bool is_own = member == group.member;
    const std::byte* const exposed = is_own ? options_.input : entry_barrier.input(member, bytes);
    scratch_->inputs.push_back(exposed != nullptr
                                   ? exposed + offset_in_tensor
                                   : entry_barrier.staging(member) + offset_in_staging);
  }
}

// `range` is relative to the window.
void TwoShotAllreduce::reduce_range(std::int64_t index, Range range) {
  const EntryBarrier& entry_barrier = shots_.entry_barrier();
  const Group& group = entry_barrier.group();
  const std::int64_t size = options_.element_bytes();
  const std::int64_t offset_in_window = range.begin * size;
  const std::int64_t offset_in_tensor = window(index).begin * size + offset_in_window;
  const auto bytes = static_cast<std::size_t>(options_.bytes());
  collect_inputs(offset_in_tensor, part_offset(index) + offset_in_window);
  scratch_->outputs.clear();
  for (int member = 0; member < group.members(); ++member) {
    if (has_joined(entry_barrier, member)) continue;
    const bool is_own = member == group.member;
    std::byte* const member_output = is_own         ? options_.output
                                     : reduces_all_ ? nullptr
                                                    : entry_barrier.output(member, bytes);
    if (member_output != nullptr) scratch_->outputs.push_back(member_output + offset_in_tensor);
  }
  if (others_fetch_)
    scratch_->outputs.push_back(entry_barrier.own_staging() + part_offset(index) +
                                offset_in_window);
  if (has_dot_product_pass_)
    Adasum(options_.reduction.dtype)
        .add_weighted(scratch_->inputs, scratch_->weights, scratch_->outputs, range.count);
  else
    farandole::reduce(options_.reduction, scratch_->inputs, scratch_->outputs, range.count);
}

// Works on slices of windows of the staged size, even if nothing is staged. So the rounding of the
// result does not depend on where the tensors are.
bool TwoShotAllreduce::add_dot_products(std::int64_t index) {
  const Group& group = shots_.entry_barrier().group();
  const std::int64_t size = options_.element_bytes();
  const Range whole_window = staged_window(is_one_window_ ? reduced_ : index);
  const Range own_slice = slice(whole_window, group.member);
  collect_inputs((whole_window.begin + own_slice.begin) * size,
                 part_offset(index) + own_slice.begin * size);
  Adasum(options_.reduction.dtype)
      .add_dot_products(scratch_->inputs, own_slice.count, scratch_->dot_products);
  if (is_one_window_ && ++reduced_ < staged_windows()) return false;
  reduced_ = 0;
  if (!is_dot_product_window(index + 1)) publish_dot_products(index);
  return true;
}

void TwoShotAllreduce::publish_dot_products(std::int64_t index) const {
  const EntryBarrier& entry_barrier = shots_.entry_barrier();
  std::memcpy(entry_barrier.own_staging() + part_offset(index) + published_bytes(),
              scratch_->dot_products.data(), static_cast<std::size_t>(dot_products_bytes()));
}

void TwoShotAllreduce::compute_weights(std::int64_t index) const {
  const EntryBarrier& entry_barrier = shots_.entry_barrier();
  const Group& group = entry_barrier.group();
  std::ranges::fill(scratch_->dot_products, 0);
  for (int member = 0; member < group.members(); ++member) {
    add_partial_dot_products(scratch_->dot_products, entry_barrier.staging(member) +
                                                         part_offset(index) + published_bytes());
  }
  const Reduction& reduction = options_.reduction;
  compute_adasum_weights(scratch_->dot_products, reduction.prescale * reduction.postscale,
                         scratch_->weights);
}

void TwoShotAllreduce::fetch(std::int64_t index) {
  if (is_dot_product_window(index)) {
    if (!is_dot_product_window(index + 1)) compute_weights(index);
    return;
  }
  const EntryBarrier& entry_barrier = shots_.entry_barrier();
  const Group& group = entry_barrier.group();
  const auto bytes = static_cast<std::size_t>(options_.bytes());
  const bool output_is_complete =
      is_one_window_ || entry_barrier.output(group.member, bytes) != nullptr;
  if (options_.joined || output_is_complete) return;
  const std::int64_t size = options_.element_bytes();
  const Range whole_window = window(index);
  for (int member = 0; member < group.members(); ++member) {
    const Range part = slice(whole_window, member);
    if (member == group.member || part.count == 0) continue;
    std::memcpy(options_.output + (whole_window.begin + part.begin) * size,
                entry_barrier.staging(member) + part_offset(index) + part.begin * size,
                static_cast<std::size_t>(part.count * size));
  }
}

}  // namespace farandole
