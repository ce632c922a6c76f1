#include "coordination/in_flight.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace farandole {
namespace {

using testing::ElementsAre;

InternedSignature interned_call(const std::string& name) {
  Signature signature;
  signature.name = name;
  return InternedSignature(signature);
}

std::vector<CallId> call_ids(const InFlight& in_flight) {
  std::vector<CallId> ids;
  for (auto slot = in_flight.first(); slot != InFlight::kNone; slot = in_flight[slot].later)
    ids.push_back(in_flight[slot].call_id);
  return ids;
}

TEST(InFlight, KeepsTheOrderOfSubmission) {
  const auto a = interned_call("a");
  const auto b = interned_call("b");
  const auto c = interned_call("c");
  InFlight in_flight;
  const auto first = in_flight.add(1, a, {.waits = 4});
  in_flight.add(2, b, {});
  const auto last = in_flight.add(3, c, {});
  EXPECT_THAT(call_ids(in_flight), ElementsAre(1, 2, 3));
  EXPECT_EQ(in_flight[first].context.waits, 4U);

  in_flight.remove(in_flight.find(b));
  EXPECT_THAT(call_ids(in_flight), ElementsAre(1, 3));
  in_flight.remove(first);
  in_flight.add(4, b, {});
  EXPECT_THAT(call_ids(in_flight), ElementsAre(3, 4));
  in_flight.remove(last);
  in_flight.remove(in_flight.find(b));
  EXPECT_EQ(in_flight.first(), InFlight::kNone);
  EXPECT_EQ(in_flight.size(), 0U);
  in_flight.add(5, a, {});
  EXPECT_THAT(call_ids(in_flight), ElementsAre(5));
}

TEST(InFlight, DistinguishesNamesWithEqualDigests) {
  const auto a = interned_call("a");
  auto b = interned_call("b");
  b.name_digest = a.name_digest;
  InFlight in_flight;
  const auto first = in_flight.add(1, a, {});
  EXPECT_EQ(in_flight.find(b), InFlight::kNone);
  const auto second = in_flight.add(2, b, {});
  EXPECT_EQ(in_flight.find(a), first);
  EXPECT_EQ(in_flight.find(b), second);
  in_flight.remove(first);
  EXPECT_EQ(in_flight.find(a), InFlight::kNone);
  EXPECT_EQ(in_flight.find(b), second);
}

// Compares the table with a plain list. Half of the digests are small, so that their entries
// collide.
TEST(InFlight, FindsSubmissionsAfterRandomAddsAndRemoves) {
  std::mt19937_64 random(7);
  std::vector<std::unique_ptr<InternedSignature>> interned;
  for (int index = 0; index < 300; ++index) {
    interned.push_back(std::make_unique<InternedSignature>(interned_call(std::to_string(index))));
    if (index % 2 == 0) interned.back()->name_digest %= 32;
  }
  InFlight in_flight;
  std::vector<std::size_t> expected;
  for (int round = 0; round < 20000; ++round) {
    const auto index = random() % interned.size();
    const auto found_slot = in_flight.find(*interned[index]);
    const auto expected_position = std::ranges::find(expected, index);
    ASSERT_EQ(found_slot != InFlight::kNone, expected_position != expected.end());
    if (found_slot == InFlight::kNone) {
      in_flight.add(index, *interned[index], {});
      expected.push_back(index);
    } else {
      ASSERT_EQ(in_flight[found_slot].call_id, index);
      in_flight.remove(found_slot);
      expected.erase(expected_position);
    }
    ASSERT_EQ(in_flight.size(), expected.size());
  }
  EXPECT_THAT(call_ids(in_flight), testing::ElementsAreArray(expected));
}

}  // namespace
}  // namespace farandole
