#include "coordination/in_flight.h"

#include <utility>

#include "base/check.h"

namespace farandole {

InFlight::Slot InFlight::add(CallId call_id, const InternedSignature& interned,
                             const SubmissionContext& context) {
  if (2 * (size_ + 1) > places_.size()) grow();
  Slot slot = static_cast<Slot>(calls_.size());
  if (unused_.empty()) {
    calls_.emplace_back();
  } else {
    slot = unused_.back();
    unused_.pop_back();
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
  insert_place(interned.name_digest, slot);
  return slot;
}

void InFlight::remove(Slot slot) {
  erase_place(slot);
  const Call& gone = calls_[slot];
  (gone.earlier == kNone ? first_ : calls_[gone.earlier].later) = gone.later;
  (gone.later == kNone ? last_ : calls_[gone.later].earlier) = gone.earlier;
  --size_;
  unused_.push_back(slot);
}

InFlight::Slot InFlight::find(std::uint64_t name_digest, std::string_view name) const {
  for (auto place = home_of(name_digest); places_[place].slot != kNone; place = after(place)) {
    if (places_[place].name_digest != name_digest) continue;
    const Slot slot = places_[place].slot;
    if (calls_[slot].interned->signature.name == name) return slot;
  }
  return kNone;
}

void InFlight::insert_place(std::uint64_t name_digest, Slot slot) {
  auto place = home_of(name_digest);
  while (places_[place].slot != kNone) place = after(place);
  places_[place] = {name_digest, slot};
}

// Moves the following entries up, unless one would then be before its home place. So a search may
// end at the first free place.
void InFlight::erase_place(Slot slot) {
  auto hole = home_of(calls_[slot].interned->name_digest);
  while (places_[hole].slot != slot) {
    CHECK(places_[hole].slot != kNone, "only what is in flight is removed");
    hole = after(hole);
  }
  const auto distance = [this](std::size_t from, std::size_t to) {
    return (to - from) & (places_.size() - 1);
  };
  for (auto place = after(hole); places_[place].slot != kNone; place = after(place)) {
    const auto home = home_of(places_[place].name_digest);
    if (distance(home, place) < distance(hole, place)) continue;
    places_[hole] = places_[place];
    hole = place;
  }
  places_[hole] = {};
}

void InFlight::grow() {
  const auto before = std::exchange(places_, std::vector<Place>(2 * places_.size()));
  for (const auto& place : before)
    if (place.slot != kNone) insert_place(place.name_digest, place.slot);
}

}  // namespace farandole
