#include "coordination/plan_walk.h"

#include <gmock/gmock.h>

#include <memory>
#include <string>
#include <vector>

namespace farandole {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Atom 1 is {1, 2}, {3}; atom 2 is {4}; atom 3 is {5}.
class PlanOfThreeAtoms : public testing::Test {
 protected:
  PlanOfThreeAtoms() {
    for (std::uint32_t id = 1; id <= 5; ++id) {
      Signature signature;
      signature.name = std::to_string(id);
      known_.push_back(std::make_unique<KnownSignature>(signature));
      names_.define(id, signature);
    }
    edit(AddBucket{1, {1, 2}});
    edit(AddBucket{1, {3}});
    edit(AddBucket{2, {4}});
    edit(AddBucket{3, {5}});
    edit(AddSuccession{1, 2, Where::kInside});
    edit(AddSuccession{1, 1, Where::kBehindBorder});
    walk_.go_to(plan_.find(1));
  }

  template <class Edit>
  void edit(const Edit& item) {
    EXPECT_EQ(plan_.apply(item), Status());
  }
  void submit(std::uint32_t id, std::uint32_t quiet_points = 0, std::uint32_t waits = 0) {
    in_flight_.add(id, *known_[id - 1], {.waits = waits, .quiet_points = quiet_points});
  }
  // Enters all that comes next and completes it at once. Returns the tickets.
  std::vector<Ticket> run() {
    std::vector<Ticket> tickets;
    if (walk_.next() == nullptr) return tickets;
    const auto slots = walk_.slots();
    walk_.enter();
    for (const auto slot : slots) {
      tickets.push_back(in_flight_[slot].ticket);
      in_flight_.remove(slot);
    }
    return tickets;
  }

  std::vector<std::unique_ptr<KnownSignature>> known_;
  NameTable names_;
  Plan plan_{names_};
  InFlight in_flight_;
  std::uint32_t quiet_points_ = 0;
  PlanWalk walk_{plan_, in_flight_, quiet_points_};
};

TEST_F(PlanOfThreeAtoms, BucketsComeWholeAndInOrder) {
  submit(2);
  EXPECT_THAT(run(), IsEmpty());
  submit(3);
  EXPECT_THAT(run(), IsEmpty());
  submit(1);
  EXPECT_THAT(run(), ElementsAre(1, 2));
  EXPECT_EQ(walk_.atoms_run(), 0U);
  EXPECT_THAT(run(), ElementsAre(3));
  EXPECT_EQ(walk_.atoms_run(), 1U);
  EXPECT_THAT(run(), IsEmpty());
}

TEST_F(PlanOfThreeAtoms, WhatFollowsDependsOnThePlace) {
  for (const std::uint32_t id : {1U, 2U, 3U}) submit(id);
  run();
  run();
  for (const std::uint32_t id : {1U, 2U}) submit(id);
  EXPECT_THAT(run(), IsEmpty());
  submit(4);
  EXPECT_THAT(run(), ElementsAre(4));
  EXPECT_THAT(run(), IsEmpty());
}

TEST_F(PlanOfThreeAtoms, BehindABorderAnAtomMayFollowItself) {
  for (const std::uint32_t id : {1U, 2U, 3U}) submit(id);
  run();
  run();
  submit(4, 1);
  EXPECT_THAT(run(), IsEmpty());
  for (const std::uint32_t id : {1U, 2U}) submit(id, 1);
  EXPECT_THAT(run(), ElementsAre(1, 2));
  quiet_points_ = 1;
  submit(3, 1);
  EXPECT_THAT(run(), ElementsAre(3));
}

TEST_F(PlanOfThreeAtoms, AnotherSignatureOfANameIsNotWhatIsPlanned) {
  auto other = known_[0]->signature;
  other.root_rank = 2;
  const KnownSignature changed(other);
  in_flight_.add(9, changed, {});
  submit(2);
  EXPECT_THAT(run(), IsEmpty());
  EXPECT_THAT(walk_.describe_wait().ready, ElementsAre(2));
}

TEST_F(PlanOfThreeAtoms, WhatWasWaitedBetweenIsNotFused) {
  submit(2, 0, 4);
  submit(1, 0, 5);
  EXPECT_THAT(run(), IsEmpty());
  EXPECT_THAT(walk_.describe_wait().ready, ElementsAre(2));
  while (in_flight_.size() > 0) in_flight_.remove(in_flight_.first());
  submit(1, 0, 5);
  submit(2, 0, 5);
  EXPECT_THAT(run(), ElementsAre(1, 2));
}

TEST_F(PlanOfThreeAtoms, NowhereNothingComes) {
  walk_.go_to(nullptr);
  submit(4);
  EXPECT_THAT(run(), IsEmpty());
}

TEST_F(PlanOfThreeAtoms, AWaitIsDescribed) {
  const auto bucket = [](std::uint32_t atom, std::uint32_t index,
                         std::vector<std::uint32_t> ready) {
    Raise raise;
    raise.cause = Raise::Cause::kBucket;
    raise.atom = atom;
    raise.bucket = index;
    raise.ready = std::move(ready);
    return raise;
  };
  submit(2);
  EXPECT_EQ(walk_.describe_wait(), bucket(1, 0, {2}));
  in_flight_.remove(in_flight_.first());
  submit(3);
  EXPECT_EQ(walk_.describe_wait(), bucket(1, 0, {3}));
  in_flight_.remove(in_flight_.first());
  submit(5);
  submit(4);
  Raise elsewhere;
  elsewhere.cause = Raise::Cause::kSuccession;
  elsewhere.atom = 1;
  elsewhere.ready = {3, 2};
  elsewhere.where = Where::kInside;
  EXPECT_EQ(walk_.describe_wait(), elsewhere);

  while (in_flight_.size() > 0) in_flight_.remove(in_flight_.first());
  for (const std::uint32_t id : {1U, 2U, 3U}) submit(id);
  run();
  run();
  submit(2, 1);
  EXPECT_EQ(walk_.describe_wait(), bucket(1, 0, {2}));
  in_flight_.remove(in_flight_.first());
  submit(5, 1);
  elsewhere.bucket = 2;
  elsewhere.ready = {3};
  elsewhere.where = Where::kBehindBorder;
  EXPECT_EQ(walk_.describe_wait(), elsewhere);
}

}  // namespace
}  // namespace farandole
