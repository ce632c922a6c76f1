#include "coordination/follower.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

namespace farandole {
namespace {

using testing::ElementsAre;

Signature named(const std::string& name) {
  Signature signature;
  signature.name = name;
  return signature;
}

Signature allreduce(const std::string& name) {
  return {.name = name, .operation = Operation::kAllreduce, .dimensions = {7}};
}

Signature join(const std::string& name) {
  return {.name = name, .operation = Operation::kJoin, .dimensions = {}};
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
      {{Issue{1, 3, 1}}, "it decides number 3 of generation 1, expected is 2 of 1"},
      {{Issue{2, 2, 1}}, "it decides number 2 of generation 2, expected is 2 of 1"},
      {{Issue{1, 2, 1}}, "step 2 is `a`, which rank 4 has not announced like this"},
      {{Define{2, named("b")}, Issue{1, 2, 2}},
       "step 2 is `b`, which rank 4 has not announced like this"},
      {{Define{1, named("b")}}, "it gives the id 1 to `b`, after id 1 was given"},
      {{Define{2, named("a")}}, "it gives the id 2 to `a`, which has the id 1"},
      {{Forget{2}}, "it forgets the id 2, which stands for nothing"},
      {{Forget{1}, Forget{1}}, "it forgets the id 1, which stands for nothing"},
      {{Refuse{1, 2, "a", "why"}}, "it refuses `a`, which rank 4 has not announced"},
      {{ReleaseAll{1, 2, 4}}, "it releases rank 4, which has not joined"},
  };
  for (const auto& [items, problem] : cases) {
    Follower follower(4);
    run_one_step(follower);
    EXPECT_EQ(feed(follower, items), Status::stop(problem));
  }
}

TEST(Follower, AStepForAnotherSignatureOfTheNameStops) {
  const Status wrong = Status::stop("step 2 is `a`, which rank 4 has not announced like this");
  for (const bool joins : {false, true}) {
    Follower follower(4);
    run_one_step(follower);
    auto changed = named("a");
    changed.root_rank = 3;
    ASSERT_EQ(follower.submit(changed), Status());
    if (joins) {
      ASSERT_EQ(follower.submit(join("j")), Status());
    }
    EXPECT_EQ(feed(follower, {Issue{1, 2, 1}}), wrong);
  }
}

TEST(Follower, WhatCannotBeSubmittedIsSaid) {
  Follower follower(4);
  EXPECT_EQ(follower.submit(named("")),
            Status::fix_call("rank 4 cannot submit this: the name is empty"));
  ASSERT_EQ(follower.submit(named("a")), Status());
  EXPECT_EQ(follower.submit(named("a")),
            Status::fix_call("barrier `a`: this name is still in flight on rank 4; wait for the "
                             "earlier call, or give this one another name"));
  EXPECT_EQ(follower.submit(join("a")),
            Status::fix_call("join `a`: this name is still in flight on rank 4; wait for the "
                             "earlier call, or give this one another name"));
  ASSERT_EQ(follower.submit(join("j")), Status());
  EXPECT_EQ(follower.submit(named("b")),
            Status::fix_call("barrier `b`: rank 4 has joined and so has no more data; submit "
                             "nothing until join has returned"));
  EXPECT_EQ(announced(follower).size(), 2U);
}

TEST(Follower, TakesStepsOfOthersOnceItHasJoined) {
  Follower follower(4);
  const auto reduced = allreduce("j");  // the name of our join is nobody's business
  ASSERT_EQ(follower.submit(join("j")), Status());
  EXPECT_THAT(announced(follower), ElementsAre(Announcement(AnnounceJoin{})));
  ASSERT_EQ(feed(follower, {Define{1, reduced}, Issue{1, 1, 1}, Issue{1, 2, 1}, Forget{1},
                            Define{2, allreduce("b")}, Issue{1, 3, 2}, ReleaseAll{1, 4, 0}}),
            Status());
  EXPECT_EQ(follower.next_decision(), Decision(Step{1, 1, 1, "j", reduced}));
  EXPECT_EQ(follower.next_decision(), Decision(Step{1, 2, 1, "j", reduced}));
  EXPECT_EQ(follower.next_decision(), Decision(Step{1, 3, 2, "b", allreduce("b")}));
  EXPECT_EQ(follower.next_decision(), Decision(Release{1, 4, "j", 0}));
  EXPECT_TRUE(announced(follower).empty());
  ASSERT_EQ(follower.submit(allreduce("b")), Status());
  EXPECT_THAT(announced(follower), ElementsAre(Announcement(AnnounceById{2})));
}

TEST(Follower, OnlyWhatRunsJoinedComesToAMemberThatHasJoined) {
  Follower follower(4);
  ASSERT_EQ(follower.submit(join("j")), Status());
  EXPECT_EQ(feed(follower, {Define{1, named("a")}, Issue{1, 1, 1}}),
            Status::stop("step 1 is `a`, which rank 4 has not announced like this"));
}

TEST(Follower, WhatOthersAreRefusedIsPassedByAMemberThatHasJoined) {
  Follower follower(4);
  ASSERT_EQ(follower.submit(named("mine")), Status());
  ASSERT_EQ(follower.submit(join("j")), Status());
  ASSERT_EQ(feed(follower, {Refuse{1, 1, "theirs", "why"}, Refuse{1, 2, "mine", "why"}}), Status());
  EXPECT_EQ(follower.next_decision(), Decision(Pass{1, 1, "theirs"}));
  EXPECT_EQ(follower.next_decision(), Decision(Refusal{1, 2, "mine", Status::fix_call("why")}));
  EXPECT_EQ(follower.next_decision(), std::nullopt);
}

TEST(Follower, AfterTheReleaseItIsAMemberLikeOthers) {
  const std::pair<StreamItem, std::string> cases[] = {
      {Issue{1, 2, 1}, "step 2 is `a`, which rank 4 has not announced like this"},
      {Refuse{1, 2, "a", "why"}, "it refuses `a`, which rank 4 has not announced"},
      {ReleaseAll{1, 2, 4}, "it releases rank 4, which has not joined"},
  };
  for (const auto& [item, problem] : cases) {
    Follower follower(4);
    ASSERT_EQ(follower.submit(join("j")), Status());
    ASSERT_EQ(feed(follower, {Define{1, allreduce("a")}, ReleaseAll{1, 1, 4}}), Status());
    EXPECT_EQ(feed(follower, {item}), Status::stop(problem));
  }
}

}  // namespace
}  // namespace farandole
