#include "coordination/follower.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace farandole {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Signature named(const std::string& name) {
  Signature signature;
  signature.name = name;
  return signature;
}

Status feed(Follower& follower, const std::vector<StreamItem>& items) {
  MessagePacker packer;
  for (const auto& item : items) packer.add(item);
  return follower.receive(*packer.take());
}

std::vector<Announcement> announced(Follower& follower) {
  const auto message = follower.next_message();
  if (!message) return {};
  return decode_announcements(*message).value();
}

// A follower that got the step 1, `a` with id 1, and has taken it.
void run_one_step(Follower& follower) {
  ASSERT_EQ(follower.submit(named("a")), Status());
  EXPECT_THAT(announced(follower), ElementsAre(Announcement(AnnounceInFull{named("a")})));
  ASSERT_EQ(feed(follower, {Define{1, named("a")}, Issue{1, 1, 1}}), Status());
  EXPECT_EQ(follower.next_decision(), Decision(Step{1, 1, 1, "a"}));
}

TEST(Follower, AnnouncesByIdOnceThereIsOne) {
  Follower follower(4);
  run_one_step(follower);
  ASSERT_EQ(follower.submit(named("a")), Status());
  EXPECT_THAT(announced(follower), ElementsAre(Announcement(AnnounceById{1})));
}

TEST(Follower, AnnouncesAgainWhenTheIdIsForgottenBeforeTheDecision) {
  Follower follower(4);
  run_one_step(follower);
  ASSERT_EQ(follower.submit(named("a")), Status());
  announced(follower);
  ASSERT_EQ(feed(follower, {Forget{1}}), Status());
  EXPECT_THAT(announced(follower), ElementsAre(Announcement(AnnounceAgain{named("a")})));
}

TEST(Follower, DoesNotAnnounceAgainWhatIsDecided) {
  Follower follower(4);
  run_one_step(follower);
  ASSERT_EQ(follower.submit(named("a")), Status());
  announced(follower);
  ASSERT_EQ(feed(follower, {Issue{1, 2, 1}, Forget{1}}), Status());
  EXPECT_TRUE(announced(follower).empty());
}

TEST(Follower, DoesNotAnnounceAgainWhatItAnnouncedInFull) {
  Follower follower(4);
  run_one_step(follower);
  auto changed = named("a");
  changed.dimensions = {2};
  ASSERT_EQ(follower.submit(changed), Status());
  announced(follower);
  ASSERT_EQ(feed(follower, {Forget{1}}), Status());
  EXPECT_TRUE(announced(follower).empty());
}

TEST(Follower, AStreamThatContradictsWhatWeKnowStops) {
  const struct {
    std::vector<StreamItem> items;
    std::string problem;
  } cases[] = {
      {{Issue{1, 2, 9}}, "step 2 has the id 9, which stands for nothing"},
      {{Issue{1, 3, 1}}, "step 3 of generation 1, expected is step 2 of 1"},
      {{Issue{2, 2, 1}}, "step 2 of generation 2"},
      {{Issue{1, 2, 1}}, "step 2 is `a`, which rank 4 has not announced"},
      {{Define{2, named("b")}, Issue{1, 2, 2}}, "`b`, which rank 4 has not announced"},
      {{Define{1, named("b")}}, "the id 1 to `b`, after id 1 was given"},
      {{Define{2, named("a")}}, "the id 2 to `a`, which has the id 1"},
      {{Forget{2}}, "forgets the id 2"},
      {{Forget{1}, Forget{1}}, "forgets the id 1"},
      {{Refuse{"a", "why"}}, "refuses `a`, which rank 4 has not announced"},
  };
  for (const auto& [items, problem] : cases) {
    Follower follower(4);
    run_one_step(follower);
    const auto status = feed(follower, items);
    EXPECT_EQ(status.code(), StatusCode::kStop);
    EXPECT_THAT(status.message(), HasSubstr(problem));
  }
}

TEST(Follower, AStepForAnotherSignatureOfTheNameStops) {
  Follower follower(4);
  run_one_step(follower);
  auto changed = named("a");
  changed.root_rank = 3;
  ASSERT_EQ(follower.submit(changed), Status());
  EXPECT_EQ(feed(follower, {Issue{1, 2, 1}}).code(), StatusCode::kStop);
}

}  // namespace
}  // namespace farandole
