#include "coordination/in_flight.h"

#include <utility>

#include "base/check.h"

namespace farandole {

InFlight::Slot InFlight::add(CallId call_id, const InternedSignature& interned,
                             const SubmissionContext& context) {
  if (2 * (size_ + 1) > table_.size()) grow();
  Slot slot = static_cast<Slot>(calls_.size());
  if (unused_slots_.empty()) {
    calls_.emplace_back();
  } else {
    slot = unused_slots_.back();
    unused_slots_.pop_back();
  }
  Call& added = calls_[slot];
  added = {};
  added.call_id = call_id;
  added.interned = &interned;
  added.context = context;
  added.earlier = last_;
  (last_ == kNone ? first_ : calls_[last_].later) = slot;
  last_ = slot;
  ++size_;
  insert_entry(interned.name_digest, slot);
  return slot;
}

void InFlight::remove(Slot slot) {
  erase_entry(slot);
  const Call& removed = calls_[slot];
  (removed.earlier == kNone ? first_ : calls_[removed.earlier].later) = removed.later;
  (removed.later == kNone ? last_ : calls_[removed.later].earlier) = removed.earlier;
  --size_;
  unused_slots_.push_back(slot);
}

InFlight::Slot InFlight::find(std::uint64_t name_digest, std::string_view name) const {
  for (auto index = home_of(name_digest); table_[index].slot != kNone; index = next_index(index)) {
    if (table_[index].name_digest != name_digest) continue;
    const Slot slot = table_[index].slot;
    if (calls_[slot].interned->signature.name == name) return slot;
  }
  return kNone;
}

void InFlight::insert_entry(std::uint64_t name_digest, Slot slot) {
  auto index = home_of(name_digest);
  while (table_[index].slot != kNone) index = next_index(index);
  table_[index] = {name_digest, slot};
}

// Moves later entries of the probe sequence into the hole, unless an entry would then be before its
// home index. So a search may end at the first unused entry.
void InFlight::erase_entry(Slot slot) {
  auto hole = home_of(calls_[slot].interned->name_digest);
  while (table_[hole].slot != slot) {
    CHECK(table_[hole].slot != kNone, "only a submission in flight is removed");
    hole = next_index(hole);
  }
  const auto distance = [this](std::size_t from, std::size_t to) {
    return (to - from) & (table_.size() - 1);
  };
  for (auto index = next_index(hole); table_[index].slot != kNone; index = next_index(index)) {
    const auto home = home_of(table_[index].name_digest);
    if (distance(home, index) < distance(hole, index)) continue;
    table_[hole] = table_[index];
    hole = index;
  }
  table_[hole] = {};
}

void InFlight::grow() {
  const auto old_table = std::exchange(table_, std::vector<TableEntry>(2 * table_.size()));
  for (const auto& entry : old_table)
    if (entry.slot != kNone) insert_entry(entry.name_digest, entry.slot);
}

}  // namespace farandole
