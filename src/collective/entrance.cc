#include "collective/entrance.h"

#include <algorithm>

#include "base/check.h"

namespace farandole {
namespace {

std::size_t slot_offset(std::uint32_t sequence) {
  return (sequence % kSlots) * kStagingBytesPerSlot;
}

}  // namespace

Entrance::Entrance(const Group& group, const StepIdentity& identity)
    : group_(&group),
      identity_(identity),
      own_staging_(group.staging + slot_offset(identity.sequence)) {}

bool Entrance::may_enter() const { return board().may_enter(identity_.sequence); }

void Entrance::enter(std::int64_t extent) {
  CHECK(!entered_, "a step is entered once");
  board().enter(identity_.generation, identity_.sequence,
                {.identity = identity_.id,
                 .location = group_->staging_location + slot_offset(identity_.sequence),
                 .extent = extent});
  entered_ = true;
}

Progress Entrance::meet() {
  if (!board().all_entered()) return Progress::kPending;
  for (int member = 0; member < group_->members(); ++member) {
    const Entry entry = board().entry(member);
    const auto* heap = group_->heaps[static_cast<std::size_t>(member)];
    const std::byte* staging = heap->at(entry.location, kStagingBytesPerSlot);
    if (entry.identity != identity_.id || entry.extent < 0 || staging == nullptr)
      return Progress::kMismatch;
    stagings_.push_back(staging);
    extents_.push_back(entry.extent);
  }
  return Progress::kDone;
}

std::int64_t Entrance::extent(int member) const {
  return extents_[static_cast<std::size_t>(member)];
}

bool Entrance::extents_equal() const {
  return std::ranges::all_of(extents_, [&](std::int64_t extent) { return extent == extents_[0]; });
}

const std::byte* Entrance::staging(int member) const {
  return stagings_[static_cast<std::size_t>(member)];
}

}  // namespace farandole
