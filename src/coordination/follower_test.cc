#include "coordination/follower.h"

#include <gmock/gmock.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"

namespace farandole {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Signature named(const std::string& name) {
  Signature signature;
  signature.name = name;
  return signature;
}

Signature allreduce(const std::string& name, std::vector<std::int64_t> dimensions = {7}) {
  return {.name = name, .operation = Operation::kAllreduce, .dimensions = std::move(dimensions)};
}

Signature join(const std::string& name) {
  return {.name = name, .operation = Operation::kJoin, .dimensions = {}};
}

Step step_of(StepNumber step_number, const std::vector<Signature>& signatures,
             std::vector<CallId> call_ids) {
  Digest digest;
  for (const auto& signature : signatures) digest.add(digest_of(signature));
  digest.add(signatures.size());
  return {step_number, signatures.size() == 1 ? digest_of(signatures[0]) : digest.value(),
          std::move(call_ids), std::nullopt};
}

Step joined_step(StepNumber step_number, const Signature& signature) {
  return {step_number, digest_of(signature), {}, signature};
}

// The follower of rank 4, and the submissions that it borrows.
class One {
 public:
  explicit One(const AgreementOptions& options = {}) : follower_(4, options) {}

  Follower& follower() { return follower_; }

  void submit(const Signature& signature, const SubmissionContext& context = {}) {
    known_.emplace_back(signature);
    follower_.submit(++call_id_last_, known_.back(), context, now_);
  }

  Status feed(const std::vector<StreamItem>& items) {
    MessagePacker packer;
    for (const auto& item : items) packer.add(item);
    return follower_.receive(*packer.take(), now_);
  }

  std::vector<Announcement> said() {
    const auto message = follower_.next_message();
    if (!message) return {};
    return decode_announcements(*message).value();
  }

  // Enters all that can be entered and completes each at once.
  std::vector<Decision> run() {
    std::vector<Decision> all;
    while (const auto* decision = follower_.next_decision()) {
      all.push_back(*decision);
      follower_.completed();
    }
    return all;
  }

  // Switches the follower to learn mode, in generation 2.
  void learn() {
    ASSERT_EQ(feed({Stop{1}, Answer{2, 0, 0}}), Status());
    ASSERT_THAT(said(), ElementsAre(Announcement(Report{1, 0, 0, 0, 0, 0})));
  }

  // Switches to learn mode and runs step 1, `a` with id 1.
  void run_one_step() {
    learn();
    submit(named("a"), {1, 2, 3});
    EXPECT_THAT(said(), ElementsAre(Announcement(AnnounceInFull{named("a"), {1, 2, 3}})));
    ASSERT_EQ(feed({Define{1, named("a")}, Issue{2, 1, 1}}), Status());
    EXPECT_THAT(run(), ElementsAre(Decision(step_of({2, 1}, {named("a")}, {1}))));
  }

 private:
  std::deque<InternedSignature> known_;
  CallId call_id_last_ = 0;
  TimePoint now_;
  Follower follower_;
};

TEST(Follower, RunsItsOwnQueueAtFirstAndSaysNothing) {
  One one;
  EXPECT_EQ(one.follower().next_decision(), nullptr);
  one.submit(named("b"));
  one.submit(named("a"));
  const auto* decision = one.follower().next_decision();
  ASSERT_NE(decision, nullptr);
  EXPECT_EQ(*decision, Decision(step_of({1, 1}, {named("b")}, {1})));
  EXPECT_EQ(one.follower().next_decision(), nullptr);
  one.follower().completed();
  EXPECT_THAT(one.run(), ElementsAre(Decision(step_of({1, 2}, {named("a")}, {2}))));
  EXPECT_THAT(one.said(), IsEmpty());
}

TEST(Follower, WhatIsOfOneBatchIsFusedAsFarAsItMayBe) {
  const SubmissionContext batch{.batch = 5};
  const SubmissionContext other{.batch = 6};
  One one({.fusion_bytes = 20});
  const auto halves = [](const std::string& name) {
    auto signature = allreduce(name);
    signature.dtype = DType::kFloat16;
    return signature;
  };
  for (const auto* name : {"a", "b", "c"}) one.submit(allreduce(name), batch);
  one.submit(halves("d"), batch);
  one.submit(halves("e"), other);
  one.submit(allreduce("f"), other);
  one.submit(allreduce("g"));
  one.submit(allreduce("h"));
  one.submit(named("i"), batch);
  one.submit(named("j"), batch);
  EXPECT_THAT(
      one.run(),
      ElementsAre(step_of({1, 1}, {allreduce("a"), allreduce("b")}, {1, 2}),
                  step_of({1, 2}, {allreduce("c")}, {3}), step_of({1, 3}, {halves("d")}, {4}),
                  step_of({1, 4}, {halves("e")}, {5}), step_of({1, 5}, {allreduce("f")}, {6}),
                  step_of({1, 6}, {allreduce("g")}, {7}), step_of({1, 7}, {allreduce("h")}, {8}),
                  step_of({1, 8}, {named("i")}, {9}), step_of({1, 9}, {named("j")}, {10})));
}

TEST(Follower, WithoutFusionEveryOneOfABatchHasItsOwnStep) {
  One one;
  for (const auto* name : {"a", "b"}) one.submit(allreduce(name, {0}), {.batch = 1});
  EXPECT_EQ(one.run().size(), 2U);
}

TEST(Follower, AMispredictionIsRaisedOnceAndReportedWhenAllStop) {
  One one;
  one.submit(named("a"));
  ASSERT_NE(one.follower().next_decision(), nullptr);
  one.follower().mispredicted();
  one.follower().mispredicted();
  EXPECT_THAT(one.said(), ElementsAre(Announcement(Raise{.generation = 1})));
  ASSERT_EQ(one.feed({Stop{1}}), Status());
  one.follower().mispredicted();
  EXPECT_THAT(one.said(), ElementsAre(Announcement(Report{1, 0, 1, digest_of(named("a")), 0, 0})));
  one.submit(named("b"));
  EXPECT_EQ(one.follower().next_decision(), nullptr);
  EXPECT_THAT(one.said(), IsEmpty());
}

TEST(Follower, WhatWasEnteredBeyondThePrefixComesBackToItsPlace) {
  One one({.fusion_bytes = 100});
  one.submit(allreduce("a"), {.batch = 1});
  one.submit(allreduce("b"), {.batch = 1});
  one.submit(allreduce("c"));
  ASSERT_NE(one.follower().next_decision(), nullptr);
  ASSERT_EQ(one.feed({Stop{1}, Answer{2, 0, 0}}), Status());
  EXPECT_EQ(one.follower().next_decision(), nullptr);
  EXPECT_TRUE(one.follower().take_rollback());
  EXPECT_FALSE(one.follower().take_rollback());
  const auto said = one.said();
  ASSERT_EQ(said.size(), 4U);  // the report comes first
  EXPECT_EQ(said[1], Announcement(AnnounceInFull{allreduce("a"), {.batch = 1}}));
  EXPECT_EQ(said[2], Announcement(AnnounceInFull{allreduce("b"), {.batch = 1}}));
  EXPECT_EQ(said[3], Announcement(AnnounceInFull{allreduce("c"), {}}));
  ASSERT_EQ(one.feed({Define{1, allreduce("c")}, Issue{2, 1, 1}}), Status());
  EXPECT_THAT(one.run(), ElementsAre(Decision(step_of({2, 1}, {allreduce("c")}, {3}))));
}

TEST(Follower, WhatAllHaveEnteredGoesOnThroughAReplan) {
  One one;
  one.submit(named("a"));
  one.submit(named("b"));
  ASSERT_NE(one.follower().next_decision(), nullptr);
  ASSERT_EQ(one.feed({Stop{1}, Answer{2, 1, 0}}), Status());
  EXPECT_FALSE(one.follower().take_rollback());
  EXPECT_EQ(one.follower().next_decision(), nullptr);
  const auto said = one.said();
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(said[1], Announcement(AnnounceInFull{named("b"), {}}));
  one.follower().completed();
  ASSERT_EQ(one.feed({Define{1, named("b")}, Issue{2, 2, 1}}), Status());
  EXPECT_THAT(one.run(), ElementsAre(Decision(step_of({2, 2}, {named("b")}, {2}))));
}

TEST(Follower, WhatIsCompletedAfterTheReportCounts) {
  One one;
  one.submit(named("a"));
  ASSERT_NE(one.follower().next_decision(), nullptr);
  ASSERT_EQ(one.feed({Stop{1}}), Status());
  one.follower().completed();
  ASSERT_EQ(one.feed({Answer{2, 1, 0}}), Status());
  one.submit(named("a"));
  ASSERT_EQ(one.feed({Define{1, named("a")}, Issue{2, 2, 1}}), Status());
  EXPECT_THAT(one.run(), ElementsAre(Decision(step_of({2, 2}, {named("a")}, {2}))));
}

TEST(Follower, WhatWasIssuedAndNotEnteredIsAnnouncedAfresh) {
  One one;
  one.learn();
  one.submit(named("a"));
  one.submit(named("b"));
  one.said();
  ASSERT_EQ(one.feed({Define{1, named("b")}, Issue{2, 1, 1}, Reject{2, 2, "a", "why"}, Stop{2},
                      Answer{3, 0, 0}}),
            Status());
  EXPECT_THAT(one.said(), ElementsAre(Announcement(Report{2, 0, 0, 0, 0, 0}),
                                      Announcement(AnnounceInFull{named("a"), {}}),
                                      Announcement(AnnounceById{1, {}})));
  EXPECT_THAT(one.run(), IsEmpty());
}

TEST(Follower, AJoinIsAMispredictionUntilTheGroupLearns) {
  One one;
  one.submit(named("a"));
  one.submit(join("j"));
  EXPECT_THAT(one.said(), ElementsAre(Announcement(Raise{.generation = 1})));
  ASSERT_EQ(one.feed({Stop{1}, Answer{2, 0, 0}}), Status());
  EXPECT_THAT(one.said(), ElementsAre(Announcement(Report{1, 0, 0, 0, 0, 0}),
                                      Announcement(AnnounceInFull{named("a"), {}}),
                                      Announcement(AnnounceJoin{})));
}

TEST(Follower, ASubmissionOrAJoinWhileAllAreStoppedIsAnnouncedAfterTheAnswer) {
  One one;
  one.learn();
  ASSERT_EQ(one.feed({Stop{2}}), Status());
  one.said();
  one.submit(named("a"));
  one.submit(join("j"));
  EXPECT_THAT(one.said(), IsEmpty());
  ASSERT_EQ(one.feed({Answer{3, 0, 0}}), Status());
  EXPECT_THAT(one.said(), ElementsAre(Announcement(AnnounceInFull{named("a"), {}}),
                                      Announcement(AnnounceJoin{})));
}

// Both if it was entered and if not.
TEST(Follower, AReleaseThatIsRolledBackIsNone) {
  for (const bool entered : {false, true}) {
    One one;
    one.learn();
    one.submit(join("j"));
    ASSERT_EQ(one.feed({ReleaseAll{2, 1, 0}}), Status());
    if (entered) {
      ASSERT_NE(one.follower().next_decision(), nullptr);
    }
    one.said();
    ASSERT_EQ(one.feed({Stop{2}, Answer{3, 0, 0}}), Status());
    EXPECT_EQ(one.follower().take_rollback(), entered);
    EXPECT_THAT(one.said(),
                ElementsAre(Announcement(
                                Report{2, 0, entered ? std::uint8_t{1} : std::uint8_t{0}, 0, 0, 0}),
                            Announcement(AnnounceJoin{})));
    ASSERT_EQ(one.feed({ReleaseAll{3, 1, 4}}), Status());
    EXPECT_THAT(one.run(), ElementsAre(Decision(Release{{3, 1}, 1, 4})));
    one.submit(named("a"));
  }
}

TEST(Follower, AnnouncesByIdOnceThereIsOne) {
  One one;
  one.run_one_step();
  one.submit(named("a"));
  EXPECT_THAT(one.said(), ElementsAre(Announcement(AnnounceById{1, {}})));
}

TEST(Follower, AnnouncesAgainWhenTheIdIsForgottenBeforeTheDecision) {
  One one;
  one.run_one_step();
  one.submit(named("a"), {7, 8, 9});
  one.said();
  ASSERT_EQ(one.feed({Forget{1}}), Status());
  EXPECT_THAT(one.said(), ElementsAre(Announcement(AnnounceAgain{named("a"), {7, 8, 9}})));
}

TEST(Follower, DoesNotAnnounceAgainWhatIsDecided) {
  One one;
  one.run_one_step();
  one.submit(named("a"));
  one.said();
  ASSERT_EQ(one.feed({Issue{2, 2, 1}, Forget{1}}), Status());
  EXPECT_THAT(one.said(), IsEmpty());
}

TEST(Follower, DoesNotAnnounceAgainWhatItAnnouncedInFull) {
  One one;
  one.run_one_step();
  auto changed = named("a");
  changed.dimensions = {2};
  one.submit(changed);
  one.said();
  ASSERT_EQ(one.feed({Forget{1}}), Status());
  EXPECT_THAT(one.said(), IsEmpty());
}

TEST(Follower, AStreamThatContradictsWhatWeKnowStops) {
  const struct {
    std::vector<StreamItem> items;
    std::string problem;
  } cases[] = {
      {{Issue{2, 2, 9}}, "step 2 has the id 9, which has no signature"},
      {{Issue{2, 3, 1}}, "it decides number 3 of generation 2, expected is 2 of 2"},
      {{Issue{3, 2, 1}}, "it decides number 2 of generation 3, expected is 2 of 2"},
      {{Issue{2, 2, 1}}, "step 2 is `a`, which rank 4 has not announced like this"},
      {{Define{2, named("b")}, Issue{2, 2, 2}},
       "step 2 is `b`, which rank 4 has not announced like this"},
      {{Define{1, named("b")}}, "it gives the id 1 to `b`, after id 1 was given"},
      {{Define{2, named("a")}}, "it gives the id 2 to `a`, which has the id 1"},
      {{Forget{2}}, "it forgets the id 2, which has no signature"},
      {{Forget{1}, Forget{1}}, "it forgets the id 1, which has no signature"},
      {{Reject{2, 2, "a", "why"}}, "it rejects `a`, which rank 4 has not announced"},
      {{ReleaseAll{2, 2, 4}}, "it releases rank 4, which has not joined"},
      {{Stop{3}}, "it stops generation 3, rank 4 is in 2"},
      {{Stop{2}, Stop{2}}, "it stops generation 2, rank 4 has stopped in 2"},
      {{Stop{2}, Issue{2, 2, 1}}, "it decides number 2, which is not its to decide"},
      {{Answer{3, 1, 0}}, "it begins generation 3, rank 4 is in 2"},
      {{Stop{2}, Answer{4, 1, 0}}, "it begins generation 4, rank 4 has stopped in 2"},
      {{Stop{2}, Answer{3, 1, 7}}, "it goes on with fragment 7, which does not exist"},
      {{AddBucket{1, {1}}, Forget{1}}, "it forgets the id 1, which is planned"},
      {{Follow{2, 1, 1}},
       "it begins fragment 1 after number 1 of generation 2, rank 4 expects no plan there"},
      {{AddBucket{1, {1}}, Follow{2, 0, 1}},
       "it begins fragment 1 after number 0 of generation 2, rank 4 expects no plan there"},
      {{AddBucket{1, {1}}, Follow{2, 1, 1}, DropFragment{1}},
       "it changes the plan while that is followed"},
      {{Stop{2}, Answer{3, 2, 0}},
       "it says that number 2 is entered by all, rank 4 has completed 1"},
      {{Stop{2}, Answer{3, 0, 0}},
       "it says that number 0 is entered by all, rank 4 has completed 1"},
  };
  for (const auto& [items, problem] : cases) {
    One one;
    one.run_one_step();
    EXPECT_EQ(one.feed(items), Status::stop(problem));
  }
  One one;
  one.submit(named("a"));
  ASSERT_NE(one.follower().next_decision(), nullptr);
  EXPECT_EQ(one.feed({Reject{1, 1, "a", "why"}}),
            Status::stop("it decides number 1, which is not its to decide"));
  EXPECT_EQ(one.feed({Stop{1}, Answer{2, 2, 0}}),
            Status::stop("it says that number 2 is entered by all, rank 4 has entered 1"));
}

TEST(Follower, FollowsThePlanAndAnnouncesWhatIsNotInIt) {
  One one;
  one.run_one_step();
  ASSERT_EQ(one.feed({Define{2, named("b")}, AddBucket{1, {1, 2}}, AddEdge{1, 1, Where::kAnywhere},
                      Follow{2, 1, 1}}),
            Status());
  one.submit(named("c"));
  one.submit(named("b"));
  EXPECT_THAT(one.run(), IsEmpty());
  EXPECT_THAT(one.said(), ElementsAre(Announcement(AnnounceInFull{named("c"), {}})));
  one.submit(named("a"));
  EXPECT_THAT(one.run(), ElementsAre(Decision(step_of({2, 2}, {named("a"), named("b")}, {4, 3}))));
  one.submit(join("j"));
  EXPECT_THAT(one.said(), ElementsAre(Announcement(Raise{.generation = 2, .completed = 2})));
  ASSERT_EQ(one.feed({Stop{2}, Answer{3, 2, 1}}), Status());
  const auto said = one.said();  // the report, what is not planned, and the join once more
  ASSERT_EQ(said.size(), 3U);
  EXPECT_EQ(std::get<Report>(said[0]).fragments_run, 1U);
  EXPECT_EQ(said[1], Announcement(AnnounceInFull{named("c"), {}}));
  EXPECT_EQ(said[2], Announcement(Raise{.generation = 3, .completed = 2}));
}

TEST(Follower, RaisesWhenWhatIsPlannedWaitsTooLong) {
  One one({.grace = std::chrono::milliseconds(10)});
  one.run_one_step();
  ASSERT_EQ(one.feed({Define{2, named("b")}, AddBucket{1, {1, 2}}, Follow{2, 1, 1}}), Status());
  EXPECT_EQ(one.follower().deadline(), std::nullopt);
  one.submit(named("b"));
  const auto deadline = one.follower().deadline();
  ASSERT_TRUE(deadline.has_value());
  EXPECT_EQ(*deadline - TimePoint(), std::chrono::milliseconds(10));
  one.follower().tick(*deadline - std::chrono::milliseconds(1));
  EXPECT_THAT(one.said(), IsEmpty());
  one.follower().tick(*deadline);
  EXPECT_THAT(one.said(), ElementsAre(Announcement(Raise{.generation = 2,
                                                         .completed = 1,
                                                         .cause = Raise::Cause::kBucket,
                                                         .fragment = 1,
                                                         .bucket = 0,
                                                         .ready = {2}})));
  EXPECT_EQ(one.follower().deadline(), std::nullopt);
}

TEST(Follower, AStepForAnotherSignatureOfTheNameStops) {
  const Status wrong = Status::stop("step 2 is `a`, which rank 4 has not announced like this");
  for (const bool joins : {false, true}) {
    One one;
    one.run_one_step();
    auto changed = named("a");
    changed.root_rank = 3;
    one.submit(changed);
    if (joins) {
      one.submit(join("j"));
    }
    EXPECT_EQ(one.feed({Issue{2, 2, 1}}), wrong);
  }
}

// What the table of submissions rejects.
TEST(FollowerDeathTest, CallsThatCannotBeSubmittedDoNotReachIt) {
  One one;
  EXPECT_DEATH(one.submit(named("")), "has checked the signature");
  one.submit(named("a"));
  EXPECT_DEATH(one.submit(named("a")), "in flight only once");
  EXPECT_DEATH(one.submit(join("a")), "in flight only once");
  one.submit(join("j"));
  EXPECT_DEATH(one.submit(named("b")), "has joined submits nothing");
}

TEST(Follower, TakesStepsOfOthersOnceItHasJoined) {
  One one;
  one.learn();
  const auto reduced = allreduce("j");  // only our own join uses this name
  one.submit(join("j"));
  EXPECT_THAT(one.said(), ElementsAre(Announcement(AnnounceJoin{})));
  ASSERT_EQ(one.feed({Define{1, reduced}, Issue{2, 1, 1}, Issue{2, 2, 1}, Forget{1},
                      Define{2, allreduce("b")}, Issue{2, 3, 2}, ReleaseAll{2, 4, 0}}),
            Status());
  EXPECT_THAT(one.run(), ElementsAre(joined_step({2, 1}, reduced), joined_step({2, 2}, reduced),
                                     joined_step({2, 3}, allreduce("b")), Release{{2, 4}, 1, 0}));
  EXPECT_THAT(one.said(), IsEmpty());
  one.submit(allreduce("b"));
  EXPECT_THAT(one.said(), ElementsAre(Announcement(AnnounceById{2, {}})));
}

// The others have completed it and announced it again, and need no other member for it.
TEST(Follower, TakesAStepWithoutDataWhileItsOwnOfThatNameIsUnderWay) {
  One one;
  one.learn();
  one.submit(allreduce("a"));
  one.submit(join("j"));
  ASSERT_EQ(one.feed({Define{1, allreduce("a")}, Issue{2, 1, 1}}), Status());
  ASSERT_NE(one.follower().next_decision(), nullptr);
  ASSERT_EQ(one.feed({Issue{2, 2, 1}}), Status());
  one.follower().completed();
  EXPECT_THAT(one.run(), ElementsAre(Decision(joined_step({2, 2}, allreduce("a")))));
}

TEST(Follower, OnlyWhatRunsJoinedComesToAMemberThatHasJoined) {
  One one;
  one.learn();
  one.submit(join("j"));
  EXPECT_EQ(one.feed({Define{1, named("a")}, Issue{2, 1, 1}}),
            Status::stop("step 1 is `a`, which rank 4 has not announced like this"));
}

TEST(Follower, WhatOthersAreRejectedIsPassedByAMemberThatHasJoined) {
  One one;
  one.learn();
  one.submit(named("mine"));
  one.submit(join("j"));
  ASSERT_EQ(one.feed({Reject{2, 1, "theirs", "why"}, Reject{2, 2, "mine", "why"}}), Status());
  EXPECT_THAT(one.run(), ElementsAre(NoOp{{2, 1}}, Rejection{{2, 2}, 1, Status::fix_call("why")}));
}

TEST(Follower, AfterTheReleaseItIsAMemberLikeOthers) {
  const std::pair<StreamItem, std::string> cases[] = {
      {Issue{2, 2, 1}, "step 2 is `a`, which rank 4 has not announced like this"},
      {Reject{2, 2, "a", "why"}, "it rejects `a`, which rank 4 has not announced"},
      {ReleaseAll{2, 2, 4}, "it releases rank 4, which has not joined"},
  };
  for (const auto& [item, problem] : cases) {
    One one;
    one.learn();
    one.submit(join("j"));
    ASSERT_EQ(one.feed({Define{1, allreduce("a")}, ReleaseAll{2, 1, 4}}), Status());
    EXPECT_EQ(one.feed({item}), Status::stop(problem));
  }
}

}  // namespace
}  // namespace farandole
