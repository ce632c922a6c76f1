#include "collective/one_shot_allreduce.h"

#include <array>
#include <cstring>

#include "base/check.h"

namespace farandole {

OneShotAllreduce::OneShotAllreduce(Group& group, const StepIdentity& identity,
                                   const AllreduceOptions& options)
    : rounds_(EntryBarrier(group, identity)), scratch_(&group.scratch), options_(options) {
  CHECK(options.bytes() <= kBytesMax, "the tensor fits into a part of the staging memory");
}

std::int64_t OneShotAllreduce::offset() const {
  const Parts parts = {.bytes = round_up(options_.bytes(), kPartAlignment), .rounds = 1};
  return parts.offset(rounds_.entry_barrier().identity(), 0);
}

void OneShotAllreduce::stage(std::int64_t /*round*/) {
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  if (options_.joined || options_.count == 0 || entry_barrier.group().members() == 1) return;
  std::byte* const to =
      is_inline() ? entry_barrier.own_inline_payload() : entry_barrier.own_staging() + offset();
  std::memcpy(to, options_.input, static_cast<std::size_t>(options_.bytes()));
}

std::optional<std::int64_t> OneShotAllreduce::on_all_arrived() {
  const int contributing_members =
      count_contributing_members(rounds_.entry_barrier(), options_.bytes());
  if (contributing_members == 0) return std::nullopt;
  set_divisor(options_.reduction, contributing_members);
  return options_.count == 0 ? 0 : 1;
}

bool OneShotAllreduce::consume(std::int64_t /*round*/) {
  if (options_.joined) return true;
  const EntryBarrier& entry_barrier = rounds_.entry_barrier();
  const Group& group = entry_barrier.group();
  scratch_->inputs.clear();
  for (int member = 0; member < group.members(); ++member) {
    if (has_joined(entry_barrier, member)) {
      if (options_.is_adasum()) scratch_->inputs.push_back(nullptr);
      continue;
    }
    const std::byte* const published_data = is_inline() ? entry_barrier.inline_payload(member)
                                                        : entry_barrier.staging(member) + offset();
    scratch_->inputs.push_back(member == group.member ? options_.input : published_data);
  }
  const std::array outputs = {options_.output};
  reduce(options_.reduction, scratch_->inputs, outputs, options_.count);
  return true;
}

}  // namespace farandole
