#include "coordination/follower.h"

#include <gmock/gmock.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "coordination/signatures_in_test.h"

namespace farandole {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

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

// The follower of rank 4, with the signatures that it borrows.
class TestFollower {
 public:
  explicit TestFollower(const AgreementOptions& options = {}) : follower_(4, options) {}

  Follower& follower() { return follower_; }

  void submit(const Signature& signature, const SubmissionContext& context = {}) {
    interned_.emplace_back(signature);
    follower_.submit(++call_id_last_, interned_.back(), context, now_);
  }

  Status deliver(const std::vector<StreamItem>& items) {
    MessagePacker packer;
    for (const auto& item : items) packer.add(item);
    return follower_.receive(*packer.take(), now_);
  }

  std::vector<Announcement> take_announcements() {
    std::vector<Announcement> sent;
    while (auto item = follower_.next_announcement()) sent.push_back(*std::move(item));
    return sent;
  }

  // Enters all decisions that can be entered, and completes each immediately.
  std::vector<Decision> run() {
    std::vector<Decision> decisions;
    while (const auto* decision = follower_.next_decision()) {
      decisions.push_back(*decision);
      follower_.record_completion();
    }
    return decisions;
  }

  // Switches the follower to learn mode, in generation 2.
  void switch_to_learn_mode() {
    ASSERT_EQ(deliver({Stop{1}, Answer{2, 0, 0}}), Status());
    ASSERT_THAT(take_announcements(), ElementsAre(Announcement(Report{1, 0, 0, 0, 0, 0})));
  }

  // Switches to learn mode and runs step 1, `a` with id 1.
  void run_one_step() {
    switch_to_learn_mode();
    submit(named("a"), {1, 2, 3});
    EXPECT_THAT(take_announcements(),
                ElementsAre(Announcement(AnnounceInFull{named("a"), {1, 2, 3}})));
    ASSERT_EQ(deliver({Define{1, named("a")}, Issue{2, 1, 1}}), Status());
    EXPECT_THAT(run(), ElementsAre(Decision(step_of({2, 1}, {named("a")}, {1}))));
  }

 private:
  std::deque<InternedSignature> interned_;
  CallId call_id_last_ = 0;
  TimePoint now_;
  Follower follower_;
};

TEST(Follower, RunsItsOwnQueueAtFirstWithoutMessages) {
  TestFollower member;
  EXPECT_EQ(member.follower().next_decision(), nullptr);
  member.submit(named("b"));
  member.submit(named("a"));
  const auto* decision = member.follower().next_decision();
  ASSERT_NE(decision, nullptr);
  EXPECT_EQ(*decision, Decision(step_of({1, 1}, {named("b")}, {1})));
  EXPECT_EQ(member.follower().next_decision(), nullptr);
  member.follower().record_completion();
  EXPECT_THAT(member.run(), ElementsAre(Decision(step_of({1, 2}, {named("a")}, {2}))));
  EXPECT_THAT(member.take_announcements(), IsEmpty());
}

// Because the identities differ, the members detect that they have entered different steps.
TEST(Follower, UnnamedCallsWithDifferentNumbersHaveDifferentIdentities) {
  const auto identity = [](std::uint32_t number) {
    TestFollower member;
    member.submit(named("a"), {.unnamed_number = number});
    return std::get<Step>(*member.follower().next_decision()).identity;
  };
  EXPECT_EQ(identity(0), digest_of(named("a")));
  EXPECT_EQ(identity(7), identity(7));
  for (const std::uint32_t other_number : {0U, 6U, 8U})
    EXPECT_NE(identity(7), identity(other_number));
}

TEST(Follower, FusesCallsOfABatchWithEqualKeysUpToTheLimit) {
  const SubmissionContext batch{.batch = 5};
  const SubmissionContext other_batch{.batch = 6};
  TestFollower member({.fusion_bytes = 20});
  const auto float16_allreduce = [](const std::string& name) {
    auto signature = allreduce(name);
    signature.dtype = DType::kFloat16;
    return signature;
  };
  for (const auto* name : {"a", "b", "c"}) member.submit(allreduce(name), batch);
  member.submit(float16_allreduce("d"), batch);
  member.submit(float16_allreduce("e"), other_batch);
  member.submit(allreduce("f"), other_batch);
  member.submit(allreduce("g"));
  member.submit(allreduce("h"));
  member.submit(named("i"), batch);
  member.submit(named("j"), batch);
  EXPECT_THAT(
      member.run(),
      ElementsAre(
          step_of({1, 1}, {allreduce("a"), allreduce("b")}, {1, 2}),
          step_of({1, 2}, {allreduce("c")}, {3}), step_of({1, 3}, {float16_allreduce("d")}, {4}),
          step_of({1, 4}, {float16_allreduce("e")}, {5}), step_of({1, 5}, {allreduce("f")}, {6}),
          step_of({1, 6}, {allreduce("g")}, {7}), step_of({1, 7}, {allreduce("h")}, {8}),
          step_of({1, 8}, {named("i")}, {9}), step_of({1, 9}, {named("j")}, {10})));
}

TEST(Follower, WithoutFusionEachCallOfABatchHasItsOwnStep) {
  TestFollower member;
  for (const auto* name : {"a", "b"}) member.submit(allreduce(name, {0}), {.batch = 1});
  EXPECT_EQ(member.run().size(), 2U);
}

TEST(Follower, AMispredictionIsRaisedOnceAndReportedWhenAllStop) {
  TestFollower member;
  member.submit(named("a"));
  ASSERT_NE(member.follower().next_decision(), nullptr);
  member.follower().record_misprediction();
  member.follower().record_misprediction();
  EXPECT_THAT(member.take_announcements(), ElementsAre(Announcement(Raise{.generation = 1})));
  ASSERT_EQ(member.deliver({Stop{1}}), Status());
  member.follower().record_misprediction();
  EXPECT_THAT(member.take_announcements(),
              ElementsAre(Announcement(Report{1, 0, 1, digest_of(named("a")), 0, 0})));
  member.submit(named("b"));
  EXPECT_EQ(member.follower().next_decision(), nullptr);
  EXPECT_THAT(member.take_announcements(), IsEmpty());
}

TEST(Follower, ARolledBackEntryIsAnnouncedInItsOldOrder) {
  TestFollower member({.fusion_bytes = 100});
  member.submit(allreduce("a"), {.batch = 1});
  member.submit(allreduce("b"), {.batch = 1});
  member.submit(allreduce("c"));
  ASSERT_NE(member.follower().next_decision(), nullptr);
  ASSERT_EQ(member.deliver({Stop{1}, Answer{2, 0, 0}}), Status());
  EXPECT_EQ(member.follower().next_decision(), nullptr);
  EXPECT_TRUE(member.follower().take_rollback());
  EXPECT_FALSE(member.follower().take_rollback());
  const auto sent = member.take_announcements();
  ASSERT_EQ(sent.size(), 4U);  // the report comes before the announcements
  EXPECT_EQ(sent[1], Announcement(AnnounceInFull{allreduce("a"), {.batch = 1}}));
  EXPECT_EQ(sent[2], Announcement(AnnounceInFull{allreduce("b"), {.batch = 1}}));
  EXPECT_EQ(sent[3], Announcement(AnnounceInFull{allreduce("c"), {}}));
  ASSERT_EQ(member.deliver({Define{1, allreduce("c")}, Issue{2, 1, 1}}), Status());
  EXPECT_THAT(member.run(), ElementsAre(Decision(step_of({2, 1}, {allreduce("c")}, {3}))));
}

TEST(Follower, AStepThatAllHaveEnteredGoesOnThroughAReplan) {
  TestFollower member;
  member.submit(named("a"));
  member.submit(named("b"));
  ASSERT_NE(member.follower().next_decision(), nullptr);
  ASSERT_EQ(member.deliver({Stop{1}, Answer{2, 1, 0}}), Status());
  EXPECT_FALSE(member.follower().take_rollback());
  EXPECT_EQ(member.follower().next_decision(), nullptr);
  const auto sent = member.take_announcements();
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(sent[1], Announcement(AnnounceInFull{named("b"), {}}));
  member.follower().record_completion();
  ASSERT_EQ(member.deliver({Define{1, named("b")}, Issue{2, 2, 1}}), Status());
  EXPECT_THAT(member.run(), ElementsAre(Decision(step_of({2, 2}, {named("b")}, {2}))));
}

TEST(Follower, AStepCompletedAfterTheReportCounts) {
  TestFollower member;
  member.submit(named("a"));
  ASSERT_NE(member.follower().next_decision(), nullptr);
  ASSERT_EQ(member.deliver({Stop{1}}), Status());
  member.follower().record_completion();
  ASSERT_EQ(member.deliver({Answer{2, 1, 0}}), Status());
  member.submit(named("a"));
  ASSERT_EQ(member.deliver({Define{1, named("a")}, Issue{2, 2, 1}}), Status());
  EXPECT_THAT(member.run(), ElementsAre(Decision(step_of({2, 2}, {named("a")}, {2}))));
}

TEST(Follower, IssuedCallsThatWereNotEnteredAreAnnouncedAgain) {
  TestFollower member;
  member.switch_to_learn_mode();
  member.submit(named("a"));
  member.submit(named("b"));
  member.take_announcements();
  ASSERT_EQ(member.deliver({Define{1, named("b")}, Issue{2, 1, 1}, Reject{2, 2, "a", "why"},
                            Stop{2}, Answer{3, 0, 0}}),
            Status());
  EXPECT_THAT(member.take_announcements(), ElementsAre(Announcement(Report{2, 0, 0, 0, 0, 0}),
                                                       Announcement(AnnounceInFull{named("a"), {}}),
                                                       Announcement(AnnounceById{1, {}})));
  EXPECT_THAT(member.run(), IsEmpty());
}

TEST(Follower, AJoinIsAMispredictionUntilTheGroupLearns) {
  TestFollower member;
  member.submit(named("a"));
  member.submit(join("j"));
  EXPECT_THAT(member.take_announcements(), ElementsAre(Announcement(Raise{.generation = 1})));
  ASSERT_EQ(member.deliver({Stop{1}, Answer{2, 0, 0}}), Status());
  EXPECT_THAT(member.take_announcements(), ElementsAre(Announcement(Report{1, 0, 0, 0, 0, 0}),
                                                       Announcement(AnnounceInFull{named("a"), {}}),
                                                       Announcement(AnnounceJoin{1})));
}

TEST(Follower, ASubmissionOrAJoinWhileAllAreStoppedIsAnnouncedAfterTheAnswer) {
  TestFollower member;
  member.switch_to_learn_mode();
  ASSERT_EQ(member.deliver({Stop{2}}), Status());
  member.take_announcements();
  member.submit(named("a"));
  member.submit(join("j"));
  EXPECT_THAT(member.take_announcements(), IsEmpty());
  ASSERT_EQ(member.deliver({Answer{3, 0, 0}}), Status());
  EXPECT_THAT(member.take_announcements(), ElementsAre(Announcement(AnnounceInFull{named("a"), {}}),
                                                       Announcement(AnnounceJoin{1})));
}

// Tests a member that has entered the release, and one that has not.
TEST(Follower, ARolledBackReleaseDoesNotCount) {
  for (const bool entered : {false, true}) {
    TestFollower member;
    member.switch_to_learn_mode();
    member.submit(join("j"));
    ASSERT_EQ(member.deliver({ReleaseAll{2, 1, 0}}), Status());
    if (entered) {
      ASSERT_NE(member.follower().next_decision(), nullptr);
    }
    member.take_announcements();
    ASSERT_EQ(member.deliver({Stop{2}, Answer{3, 0, 0}}), Status());
    EXPECT_EQ(member.follower().take_rollback(), entered);
    EXPECT_THAT(member.take_announcements(),
                ElementsAre(Announcement(
                                Report{2, 0, entered ? std::uint8_t{1} : std::uint8_t{0}, 0, 0, 0}),
                            Announcement(AnnounceJoin{})));
    ASSERT_EQ(member.deliver({ReleaseAll{3, 1, 4}}), Status());
    EXPECT_THAT(member.run(), ElementsAre(Decision(Release{{3, 1}, 1, 4})));
    member.submit(named("a"));
  }
}

TEST(Follower, AnnouncesByIdOnceTheSignatureHasOne) {
  TestFollower member;
  member.run_one_step();
  member.submit(named("a"));
  EXPECT_THAT(member.take_announcements(), ElementsAre(Announcement(AnnounceById{1, {}})));
}

TEST(Follower, AnnouncesAgainWhenTheIdIsForgottenBeforeTheDecision) {
  TestFollower member;
  member.run_one_step();
  member.submit(named("a"), {7, 8, 9});
  member.take_announcements();
  ASSERT_EQ(member.deliver({Forget{1}}), Status());
  EXPECT_THAT(member.take_announcements(),
              ElementsAre(Announcement(AnnounceAgain{named("a"), {7, 8, 9}})));
}

TEST(Follower, DoesNotAnnounceADecidedCallAgain) {
  TestFollower member;
  member.run_one_step();
  member.submit(named("a"));
  member.take_announcements();
  ASSERT_EQ(member.deliver({Issue{2, 2, 1}, Forget{1}}), Status());
  EXPECT_THAT(member.take_announcements(), IsEmpty());
}

TEST(Follower, DoesNotRepeatAnAnnouncementInFull) {
  TestFollower member;
  member.run_one_step();
  auto changed = named("a");
  changed.dimensions = {2};
  member.submit(changed);
  member.take_announcements();
  ASSERT_EQ(member.deliver({Forget{1}}), Status());
  EXPECT_THAT(member.take_announcements(), IsEmpty());
}

TEST(Follower, AContradictoryStreamIsAnError) {
  const struct {
    std::vector<StreamItem> items;
    std::string problem;
  } cases[] = {
      {{Issue{2, 2, 9}}, "step 2 has the id 9, which has no signature"},
      {{Issue{2, 3, 1}},
       "it sends decision 3 of generation 2, but decision 2 of generation 2 is expected"},
      {{Issue{3, 2, 1}},
       "it sends decision 2 of generation 3, but decision 2 of generation 2 is expected"},
      {{Issue{2, 2, 1}}, "step 2 is `a`, but rank 4 has not announced this signature"},
      {{Define{2, named("b")}, Issue{2, 2, 2}},
       "step 2 is `b`, but rank 4 has not announced this signature"},
      {{Define{1, named("b")}}, "it gives the id 1 to `b`, but the last id is 1"},
      {{Define{2, named("a")}}, "it gives the id 2 to `a`, but this call has the id 1"},
      {{Forget{2}}, "it forgets the id 2, which has no signature"},
      {{Forget{1}, Forget{1}}, "it forgets the id 1, which has no signature"},
      {{Reject{2, 2, "a", "why"}}, "it rejects `a`, which rank 4 has not announced"},
      {{ReleaseAll{2, 2, 4}}, "it releases rank 4, which has not joined"},
      {{Stop{3}}, "it stops generation 3, but rank 4 is in generation 2"},
      {{Stop{2}, Stop{2}}, "it stops generation 2, but rank 4 has stopped in generation 2"},
      {{Stop{2}, Issue{2, 2, 1}}, "it sends decision 2, but no decision is expected"},
      {{Answer{3, 1, 0}}, "it begins generation 3, but rank 4 is in generation 2"},
      {{Stop{2}, Answer{4, 1, 0}},
       "it begins generation 4, but rank 4 has stopped in generation 2"},
      {{Stop{2}, Answer{3, 1, 7}}, "it continues with fragment 7, which does not exist"},
      {{AddBucket{1, {1}}, Forget{1}}, "it forgets the id 1, which is planned"},
      {{Follow{2, 1, 1}},
       "it begins fragment 1 after decision 1 of generation 2, but rank 4 expects no plan there"},
      {{AddBucket{1, {1}}, Follow{2, 0, 1}},
       "it begins fragment 1 after decision 0 of generation 2, but rank 4 expects no plan there"},
      {{AddBucket{1, {1}}, Follow{2, 1, 1}, DropFragment{1}},
       "it changes the plan while the members follow it"},
      {{Stop{2}, Answer{3, 2, 0}},
       "it says that all have entered decision 2, but rank 4 has completed 1"},
      {{Stop{2}, Answer{3, 0, 0}},
       "it says that all have entered decision 0, but rank 4 has completed 1"},
  };
  for (const auto& [items, problem] : cases) {
    TestFollower member;
    member.run_one_step();
    EXPECT_EQ(member.deliver(items), Status::stop(problem));
  }
  TestFollower member;
  member.submit(named("a"));
  ASSERT_NE(member.follower().next_decision(), nullptr);
  EXPECT_EQ(member.deliver({Reject{1, 1, "a", "why"}}),
            Status::stop("it sends decision 1, but no decision is expected"));
  EXPECT_EQ(member.deliver({Stop{1}, Answer{2, 2, 0}}),
            Status::stop("it says that all have entered decision 2, but rank 4 has entered 1"));
}

TEST(Follower, FollowsThePlanAndAnnouncesOtherCalls) {
  TestFollower member;
  member.run_one_step();
  ASSERT_EQ(member.deliver({Define{2, named("b")}, AddBucket{1, {1, 2}},
                            AddEdge{1, 1, EdgeKind::kBoth}, Follow{2, 1, 1}}),
            Status());
  member.submit(named("c"));
  member.submit(named("b"));
  EXPECT_THAT(member.run(), IsEmpty());
  EXPECT_THAT(member.take_announcements(),
              ElementsAre(Announcement(AnnounceInFull{named("c"), {}})));
  member.submit(named("a"));
  EXPECT_THAT(member.run(),
              ElementsAre(Decision(step_of({2, 2}, {named("a"), named("b")}, {4, 3}))));
  member.submit(join("j"));
  EXPECT_THAT(member.take_announcements(),
              ElementsAre(Announcement(Raise{.generation = 2, .completed = 2})));
  ASSERT_EQ(member.deliver({Stop{2}, Answer{3, 2, 1}}), Status());
  // The member sends its report, announces the call outside the plan again, and raises again
  // because of its join.
  const auto sent = member.take_announcements();
  ASSERT_EQ(sent.size(), 3U);
  EXPECT_EQ(std::get<Report>(sent[0]).fragments_run, 1U);
  EXPECT_EQ(sent[1], Announcement(AnnounceInFull{named("c"), {}}));
  EXPECT_EQ(sent[2], Announcement(Raise{.generation = 3, .completed = 2}));
}

TEST(Follower, RaisesWhenAPlannedCallWaitsTooLong) {
  TestFollower member({.grace_time = std::chrono::milliseconds(10)});
  member.run_one_step();
  ASSERT_EQ(member.deliver({Define{2, named("b")}, AddBucket{1, {1, 2}}, Follow{2, 1, 1}}),
            Status());
  EXPECT_EQ(member.follower().deadline(), std::nullopt);
  member.submit(named("b"));
  const auto deadline = member.follower().deadline();
  ASSERT_TRUE(deadline.has_value());
  EXPECT_EQ(*deadline - TimePoint(), std::chrono::milliseconds(10));
  member.follower().tick(*deadline - std::chrono::milliseconds(1));
  EXPECT_THAT(member.take_announcements(), IsEmpty());
  member.follower().tick(*deadline);
  EXPECT_THAT(member.take_announcements(),
              ElementsAre(Announcement(Raise{.generation = 2,
                                             .completed = 1,
                                             .cause = Raise::Cause::kBucket,
                                             .fragment = 1,
                                             .bucket = 0,
                                             .ready = {2}})));
  EXPECT_EQ(member.follower().deadline(), std::nullopt);
}

TEST(Follower, AStepWithAnotherSignatureOfTheNameIsAnError) {
  const Status expected_error =
      Status::stop("step 2 is `a`, but rank 4 has not announced this signature");
  for (const bool joins : {false, true}) {
    TestFollower member;
    member.run_one_step();
    auto changed = named("a");
    changed.root_rank = 3;
    member.submit(changed);
    if (joins) {
      member.submit(join("j"));
    }
    EXPECT_EQ(member.deliver({Issue{2, 2, 1}}), expected_error);
  }
}

// SubmissionTable rejects these submissions before they reach a follower.
TEST(FollowerDeathTest, SubmissionsThatBreakTheContractAbort) {
  TestFollower member;
  EXPECT_DEATH(member.submit(named("")), "has checked the signature");
  member.submit(named("a"));
  EXPECT_DEATH(member.submit(named("a")), "in flight only once");
  EXPECT_DEATH(member.submit(join("a")), "in flight only once");
  member.submit(join("j"));
  EXPECT_DEATH(member.submit(named("b")), "has joined submits nothing");
}

TEST(Follower, EntersStepsOfOthersAfterItHasJoined) {
  TestFollower member;
  member.switch_to_learn_mode();
  const auto allreduce_j = allreduce("j");  // this member's own call of this name is a join
  member.submit(join("j"));
  EXPECT_THAT(member.take_announcements(), ElementsAre(Announcement(AnnounceJoin{})));
  ASSERT_EQ(member.deliver({Define{1, allreduce_j}, Issue{2, 1, 1}, Issue{2, 2, 1}, Forget{1},
                            Define{2, allreduce("b")}, Issue{2, 3, 2}, ReleaseAll{2, 4, 0}}),
            Status());
  EXPECT_THAT(member.run(),
              ElementsAre(joined_step({2, 1}, allreduce_j), joined_step({2, 2}, allreduce_j),
                          joined_step({2, 3}, allreduce("b")), Release{{2, 4}, 1, 0}));
  EXPECT_THAT(member.take_announcements(), IsEmpty());
  member.submit(allreduce("b"));
  EXPECT_THAT(member.take_announcements(), ElementsAre(Announcement(AnnounceById{2, {}})));
}

// This member has submitted `a`, then joined. The others have completed the step of `a` and
// announced another call named `a`. The coordinator issues the second step without an announcement
// of this member, because this member has joined.
TEST(Follower, AJoinedMemberEntersALaterStepOfItsOwnNameWithoutData) {
  TestFollower member;
  member.switch_to_learn_mode();
  member.submit(allreduce("a"));
  member.submit(join("j"));
  ASSERT_EQ(member.deliver({Define{1, allreduce("a")}, Issue{2, 1, 1}}), Status());
  ASSERT_NE(member.follower().next_decision(), nullptr);
  ASSERT_EQ(member.deliver({Issue{2, 2, 1}}), Status());
  member.follower().record_completion();
  EXPECT_THAT(member.run(), ElementsAre(Decision(joined_step({2, 2}, allreduce("a")))));
}

TEST(Follower, AStepThatCannotRunJoinedIsAnErrorForAJoinedMember) {
  TestFollower member;
  member.switch_to_learn_mode();
  member.submit(join("j"));
  EXPECT_EQ(member.deliver({Define{1, named("a")}, Issue{2, 1, 1}}),
            Status::stop("step 1 is `a`, but rank 4 has not announced this signature"));
}

TEST(Follower, AJoinedMemberEntersRejectionsOfOthersAsNoOps) {
  TestFollower member;
  member.switch_to_learn_mode();
  member.submit(named("mine"));
  member.submit(join("j"));
  ASSERT_EQ(member.deliver({Reject{2, 1, "theirs", "why"}, Reject{2, 2, "mine", "why"}}), Status());
  EXPECT_THAT(member.run(),
              ElementsAre(NoOp{{2, 1}}, Rejection{{2, 2}, 1, Status::fix_call("why")}));
}

TEST(Follower, AfterTheReleaseItNoLongerCountsAsJoined) {
  const std::pair<StreamItem, std::string> cases[] = {
      {Issue{2, 2, 1}, "step 2 is `a`, but rank 4 has not announced this signature"},
      {Reject{2, 2, "a", "why"}, "it rejects `a`, which rank 4 has not announced"},
      {ReleaseAll{2, 2, 4}, "it releases rank 4, which has not joined"},
  };
  for (const auto& [item, problem] : cases) {
    TestFollower member;
    member.switch_to_learn_mode();
    member.submit(join("j"));
    ASSERT_EQ(member.deliver({Define{1, allreduce("a")}, ReleaseAll{2, 1, 4}}), Status());
    EXPECT_EQ(member.deliver({item}), Status::stop(problem));
  }
}

}  // namespace
}  // namespace farandole
