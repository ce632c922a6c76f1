#include "coordination/coordinator.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "coordination/signatures_in_test.h"

namespace farandole {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Status deliver(Coordinator& coordinator, int from, const std::vector<Announcement>& items) {
  for (const auto& item : items)
    if (const auto status = coordinator.receive(MemberSet(from), item); !status.ok()) return status;
  return {};
}

std::vector<StreamItem> take_stream(Coordinator& coordinator) {
  const auto message = coordinator.next_message();
  if (!message) return {};
  return decode_stream(*message).value();
}

// Switches the coordinator's group to learn mode, in generation 2.
void switch_to_learn_mode(Coordinator& coordinator, int members) {
  ASSERT_EQ(deliver(coordinator, 0, {Raise{.generation = 1}}), Status());
  for (int member = 0; member < members; ++member)
    ASSERT_EQ(deliver(coordinator, member, {Report{1, 0, 0, 0, 0, 0}}), Status());
  EXPECT_THAT(take_stream(coordinator),
              ElementsAre(StreamItem(Stop{1}), StreamItem(Answer{2, 0, 0})));
}

AnnounceInFull announce_in_full(const Signature& signature) { return {signature, {}}; }
AnnounceById announce_by_id(std::uint32_t id) { return {id, {}}; }
AnnounceAgain announce_again(const Signature& signature) { return {signature, {}}; }

// Lets both members of a group announce the call `name` in full, so that the coordinator decides
// it.
void decide(Coordinator& coordinator, const std::string& name) {
  for (const int member : {0, 1})
    ASSERT_EQ(deliver(coordinator, member, {announce_in_full(named(name))}), Status());
}

TEST(Coordinator, IssuesCallsThatAllHaveAnnounced) {
  Coordinator coordinator({0, 1}, {.names_max = 10});
  switch_to_learn_mode(coordinator, 2);
  ASSERT_EQ(deliver(coordinator, 1, {announce_in_full(named("a")), announce_in_full(named("b"))}),
            Status());
  EXPECT_THAT(take_stream(coordinator), IsEmpty());
  ASSERT_EQ(deliver(coordinator, 0, {announce_in_full(named("b")), announce_in_full(named("a"))}),
            Status());
  EXPECT_THAT(take_stream(coordinator),
              ElementsAre(StreamItem(Define{1, named("b")}), StreamItem(Issue{2, 1, 1}),
                          StreamItem(Define{2, named("a")}), StreamItem(Issue{2, 2, 2})));
}

TEST(Coordinator, DefinesANameOnce) {
  Coordinator coordinator({0, 1}, {.names_max = 10});
  switch_to_learn_mode(coordinator, 2);
  decide(coordinator, "a");
  take_stream(coordinator);
  for (const int member : {1, 0})
    ASSERT_EQ(deliver(coordinator, member, {announce_by_id(1)}), Status());
  EXPECT_THAT(take_stream(coordinator), ElementsAre(StreamItem(Issue{2, 2, 1})));
}

TEST(Coordinator, ForgetsTheLeastRecentNameWhenTheTableIsFull) {
  Coordinator coordinator({0, 1}, {.names_max = 2});
  switch_to_learn_mode(coordinator, 2);
  decide(coordinator, "a");
  decide(coordinator, "b");
  for (const int member : {0, 1})
    ASSERT_EQ(deliver(coordinator, member, {announce_by_id(1)}), Status());
  take_stream(coordinator);
  decide(coordinator, "c");
  EXPECT_THAT(take_stream(coordinator),
              ElementsAre(StreamItem(Forget{2}), StreamItem(Define{3, named("c")}),
                          StreamItem(Issue{2, 4, 3})));
}

TEST(Coordinator, IgnoresAnnouncementsOfForgottenIds) {
  Coordinator coordinator({0, 1}, {.names_max = 1});
  switch_to_learn_mode(coordinator, 2);
  decide(coordinator, "a");
  // The coordinator forgets the id of `a` between these two announcements.
  ASSERT_EQ(deliver(coordinator, 0, {announce_by_id(1)}), Status());
  decide(coordinator, "b");
  ASSERT_EQ(deliver(coordinator, 1, {announce_by_id(1)}), Status());
  take_stream(coordinator);
  ASSERT_EQ(deliver(coordinator, 1, {announce_again(named("a"))}), Status());
  EXPECT_THAT(take_stream(coordinator), IsEmpty());
  ASSERT_EQ(deliver(coordinator, 0, {announce_again(named("a"))}), Status());
  EXPECT_THAT(take_stream(coordinator),
              ElementsAre(StreamItem(Forget{2}), StreamItem(Define{3, named("a")}),
                          StreamItem(Issue{2, 3, 3})));
}

TEST(Coordinator, AMismatchMayMixIdsAndFullAnnouncements) {
  Coordinator coordinator({0, 1}, {.names_max = 1});
  switch_to_learn_mode(coordinator, 2);
  decide(coordinator, "a");
  take_stream(coordinator);
  auto changed = named("a");
  changed.operation = Operation::kAllreduce;
  ASSERT_EQ(deliver(coordinator, 0, {announce_by_id(1)}), Status());
  ASSERT_EQ(deliver(coordinator, 1, {announce_in_full(changed)}), Status());
  const auto items = take_stream(coordinator);
  ASSERT_EQ(items.size(), 1U);
  EXPECT_EQ(std::get<Reject>(items[0]).name, "a");
}

// An automatic name may stand for different calls on different ranks, even if these calls have the
// same signature.
TEST(Coordinator, UnnamedCallsWithDifferentNumbersAreRejected) {
  Coordinator coordinator({4, 7}, {.names_max = 10});
  switch_to_learn_mode(coordinator, 2);
  const auto announce = [&](int member, std::uint32_t number) {
    const SubmissionContext context{.unnamed_number = number};
    ASSERT_EQ(deliver(coordinator, member, {AnnounceInFull{named("a"), context}}), Status());
  };
  announce(0, 3);
  announce(1, 2);
  const auto items = take_stream(coordinator);
  ASSERT_EQ(items.size(), 1U);
  EXPECT_THAT(std::get<Reject>(items[0]).text,
              testing::HasSubstr("number 2 on rank 7; number 3 on rank 4"));
  announce(0, 4);
  announce(1, 4);
  EXPECT_THAT(take_stream(coordinator),
              ElementsAre(StreamItem(Define{1, named("a")}), StreamItem(Issue{2, 2, 1})));
}

TEST(Coordinator, ImpossibleAnnouncementsAreErrors) {
  const struct {
    std::vector<Announcement> items;
    std::string problem;
  } cases[] = {
      {{announce_by_id(2)}, "it announces the id 2, but the last id is 1"},
      {{announce_in_full(named("a"))}, "it announces `a` in full, but this call has the id 1"},
      {{announce_by_id(1), announce_by_id(1)}, "it announces `a` a second time"},
      {{announce_in_full(named("b")), announce_in_full(named("b"))},
       "it announces `b` a second time"},
      {{announce_again(named("b"))}, "it announces `b` again, but its id was not forgotten"},
      {{AnnounceJoin{}, announce_in_full(named("b"))},
       "it announces another call after it has joined"},
      {{AnnounceJoin{}, announce_by_id(1)}, "it announces another call after it has joined"},
      {{AnnounceJoin{}, AnnounceJoin{}}, "it announces another call after it has joined"},
  };
  for (const auto& [items, problem] : cases) {
    Coordinator coordinator({0, 1}, {.names_max = 10});
    switch_to_learn_mode(coordinator, 2);
    decide(coordinator, "a");
    EXPECT_EQ(deliver(coordinator, 1, items), Status::stop(problem));
  }
}

TEST(Coordinator, TheAnswerKeepsStepsThatAllHaveEntered) {
  const struct {
    std::vector<Report> reports;
    std::uint32_t common_prefix;
  } cases[] = {
      {{{1, 4, 0, 0, 0, 0}, {1, 4, 0, 0, 0, 0}, {1, 4, 0, 0, 0, 0}}, 4},
      {{{1, 4, 1, 7, 0, 0}, {1, 4, 1, 7, 0, 0}, {1, 4, 1, 7, 0, 0}}, 5},
      {{{1, 4, 1, 7, 0, 0}, {1, 4, 1, 7, 0, 0}, {1, 4, 1, 8, 0, 0}}, 4},
      {{{1, 4, 1, 7, 0, 0}, {1, 4, 0, 0, 0, 0}, {1, 4, 1, 7, 0, 0}}, 4},
      {{{1, 4, 1, 7, 0, 0}, {1, 5, 0, 0, 0, 0}, {1, 4, 1, 7, 0, 0}}, 5},
      {{{1, 5, 1, 9, 0, 0}, {1, 4, 1, 7, 0, 0}, {1, 5, 1, 9, 0, 0}}, 5},
      {{{1, 0xFFFFFFFF, 1, 7, 0, 0}, {1, 0, 1, 8, 0, 0}, {1, 0xFFFFFFFF, 1, 7, 0, 0}}, 0},
  };
  for (const auto& [reports, common_prefix] : cases) {
    Coordinator coordinator({0, 1, 2}, {.names_max = 10});
    ASSERT_EQ(deliver(coordinator, 2, {Raise{.generation = 1}}), Status());
    EXPECT_THAT(take_stream(coordinator), ElementsAre(StreamItem(Stop{1})));
    for (int member = 0; member < 3; ++member) {
      EXPECT_THAT(take_stream(coordinator), IsEmpty());
      ASSERT_EQ(deliver(coordinator, member, {reports[static_cast<std::size_t>(member)]}),
                Status());
    }
    EXPECT_THAT(take_stream(coordinator), ElementsAre(StreamItem(Answer{2, common_prefix, 0})));
  }
}

TEST(Coordinator, AnnouncementsBeforeTheReportAreDropped) {
  Coordinator coordinator({0, 1}, {.names_max = 10});
  switch_to_learn_mode(coordinator, 2);
  const auto a = announce_in_full(named("a"));
  const Raise raise{.generation = 2};
  ASSERT_EQ(
      deliver(coordinator, 1, {a, raise, raise, a, AnnounceJoin{}, a, Report{2, 0, 0, 0, 0, 0}}),
      Status());
  ASSERT_EQ(deliver(coordinator, 0, {a, raise, Report{2, 0, 0, 0, 0, 0}, a}), Status());
  EXPECT_THAT(take_stream(coordinator),
              ElementsAre(StreamItem(Stop{2}), StreamItem(Answer{3, 0, 0})));
  ASSERT_EQ(deliver(coordinator, 1, {a}), Status());
  EXPECT_THAT(take_stream(coordinator),
              ElementsAre(StreamItem(Define{1, named("a")}), StreamItem(Issue{3, 1, 1})));
}

TEST(Coordinator, ImpossibleReplansAreErrors) {
  const Raise raise{.generation = 2};
  const struct {
    std::vector<Announcement> items;
    std::string problem;
  } cases[] = {
      {{Raise{.generation = 3}}, "it raises in generation 3, but the current generation is 2"},
      {{Report{2, 0, 0, 0, 0, 0}}, "it reports for generation 2, but no report is expected"},
      {{raise, Report{1, 0, 0, 0, 0, 0}}, "it reports for generation 1, but no report is expected"},
      {{raise, Report{2, 9, 0, 0, 0, 0}, raise}, "it sends another item after its report"},
      {{raise, Report{2, 9, 0, 0, 0, 0}, Report{2, 9, 0, 0, 0, 0}},
       "it sends another item after its report"},
      {{raise, Report{2, 9, 0, 0, 0, 0}, AnnounceJoin{}}, "it sends another item after its report"},
  };
  for (const auto& [items, problem] : cases) {
    Coordinator coordinator({0, 1}, {.names_max = 10});
    switch_to_learn_mode(coordinator, 2);
    EXPECT_EQ(deliver(coordinator, 1, items), Status::stop(problem));
  }
  Coordinator coordinator({0, 1}, {.names_max = 10});
  EXPECT_EQ(deliver(coordinator, 1, {AnnounceJoin{}}),
            Status::stop("it announces a call in generation 1"));
}

TEST(Coordinator, ContradictoryReportsAreErrors) {
  const std::pair<Report, std::string> cases[] = {
      {{1, 6, 0, 0, 0, 0},
       "it reports 6 completed and 0 entered decisions, but rank 3 reported 4 and 1"},
      {{1, 3, 0, 0, 0, 0},
       "it reports 3 completed and 0 entered decisions, but rank 3 reported 4 and 1"},
      {{1, 2, 1, 7, 0, 0},
       "it reports 2 completed and 1 entered decisions, but rank 3 reported 4 and 1"},
  };
  for (const auto& [report, problem] : cases) {
    Coordinator coordinator({3, 5}, {.names_max = 10});
    ASSERT_EQ(deliver(coordinator, 0, {Raise{.generation = 1}}), Status());
    ASSERT_EQ(deliver(coordinator, 0, {Report{1, 4, 1, 7, 0, 0}}), Status());
    EXPECT_EQ(deliver(coordinator, 1, {report}), Status::stop(problem));
  }
  Coordinator coordinator({3, 5}, {.names_max = 10});
  ASSERT_EQ(deliver(coordinator, 0, {Raise{.generation = 1}}), Status());
  ASSERT_EQ(deliver(coordinator, 0, {Report{1, 4, 0, 0, 0, 0}}), Status());
  EXPECT_EQ(
      deliver(coordinator, 1, {Report{1, 5, 0, 0, 0, 0}}),
      Status::stop("it reports 5 completed and 0 entered decisions, but rank 3 reported 4 and 0"));
}

// The member that has submitted the most calls counts as the last to join. The order in which the
// joins arrive does not matter.
TEST(Coordinator, ReleaseNamesTheRankThatJoinedLast) {
  Coordinator coordinator({3, 5, 8}, {.names_max = 10});
  switch_to_learn_mode(coordinator, 3);
  struct Joins {
    std::uint32_t calls[3];
    std::int32_t last_rank;
  };
  std::uint32_t sequence = 0;
  for (const Joins& joins : {Joins{{9, 7, 5}, 3}, Joins{{4, 6, 5}, 5}, Joins{{4, 4, 4}, 8}}) {
    for (const int member : {2, 0}) {
      ASSERT_EQ(deliver(coordinator, member, {AnnounceJoin{joins.calls[member]}}), Status());
      EXPECT_THAT(take_stream(coordinator), IsEmpty());
    }
    ASSERT_EQ(deliver(coordinator, 1, {AnnounceJoin{joins.calls[1]}}), Status());
    EXPECT_THAT(take_stream(coordinator),
                ElementsAre(StreamItem(ReleaseAll{2, ++sequence, joins.last_rank})));
  }
}

TEST(Coordinator, AJoinCompletesPendingNames) {
  Coordinator coordinator({3, 5, 8}, {.names_max = 10});
  switch_to_learn_mode(coordinator, 3);
  const auto allreduce_b = allreduce("b");
  for (const int member : {0, 2}) {
    ASSERT_EQ(
        deliver(coordinator, member, {announce_in_full(allreduce_b), announce_in_full(named("a"))}),
        Status());
  }
  EXPECT_THAT(take_stream(coordinator), IsEmpty());
  ASSERT_EQ(deliver(coordinator, 1, {AnnounceJoin{}}), Status());
  EXPECT_THAT(
      take_stream(coordinator),
      ElementsAre(StreamItem(Reject{2, 1, "a",
                                    "barrier `a` cannot run: rank 5 has joined and has no "
                                    "more data; until all have joined, only allreduce and "
                                    "allgather can be called. Call barrier before the first "
                                    "rank joins, or after join has returned"}),
                  StreamItem(Define{1, allreduce_b}), StreamItem(Issue{2, 2, 1})));
}

// Member 1 announces a name by an id that the coordinator has forgotten, and joins.
TEST(Coordinator, AJoinCountsOnlyAfterForgottenAnnouncementsAreRepeated) {
  for (const bool joins_first : {false, true}) {
    Coordinator coordinator({0, 1, 2}, {.names_max = 1});
    switch_to_learn_mode(coordinator, 3);
    for (const int member : {0, 1, 2})
      ASSERT_EQ(deliver(coordinator, member, {announce_in_full(allreduce("a"))}), Status());
    for (const int member : {0, 1, 2})
      ASSERT_EQ(deliver(coordinator, member, {announce_in_full(allreduce("b"))}), Status());
    if (!joins_first) {
      ASSERT_EQ(deliver(coordinator, 1, {announce_by_id(1), AnnounceJoin{}}), Status());
    } else {
      for (const int member : {0, 2})
        ASSERT_EQ(deliver(coordinator, member, {announce_in_full(allreduce("c"))}), Status());
      ASSERT_EQ(deliver(coordinator, 1, {announce_by_id(2), AnnounceJoin{}}), Status());
    }
    take_stream(coordinator);
    const auto forgotten = joins_first ? allreduce("b") : allreduce("a");
    for (const int member : {0, 2})
      ASSERT_EQ(deliver(coordinator, member, {announce_in_full(forgotten)}), Status());
    EXPECT_THAT(take_stream(coordinator), IsEmpty());
    ASSERT_EQ(deliver(coordinator, 1, {announce_again(forgotten)}), Status());
    const std::uint32_t id = joins_first ? 4 : 3;
    EXPECT_THAT(take_stream(coordinator),
                ElementsAre(StreamItem(Forget{id - 1}), StreamItem(Define{id, forgotten}),
                            StreamItem(Issue{2, id, id})));
  }
}

// `a` and `b` wait for member 2, which joins. The decision on `a` makes the coordinator forget the
// id of `b`, so members must announce `b` again.
TEST(Coordinator, ADecisionMayDropTheAnnouncementsOfAnotherPendingName) {
  Coordinator coordinator({0, 1, 2}, {.names_max = 1});
  switch_to_learn_mode(coordinator, 3);
  for (const int member : {0, 1, 2})
    ASSERT_EQ(deliver(coordinator, member, {announce_in_full(allreduce("b"))}), Status());
  for (const int member : {0, 1})
    ASSERT_EQ(deliver(coordinator, member, {announce_by_id(1), announce_in_full(allreduce("a"))}),
              Status());
  take_stream(coordinator);
  ASSERT_EQ(deliver(coordinator, 2, {AnnounceJoin{}}), Status());
  EXPECT_THAT(take_stream(coordinator),
              ElementsAre(StreamItem(Forget{1}), StreamItem(Define{2, allreduce("a")}),
                          StreamItem(Issue{2, 2, 2})));
  for (const int member : {0, 1})
    ASSERT_EQ(deliver(coordinator, member, {announce_again(allreduce("b"))}), Status());
  EXPECT_THAT(take_stream(coordinator),
              ElementsAre(StreamItem(Forget{2}), StreamItem(Define{3, allreduce("b")}),
                          StreamItem(Issue{2, 3, 3})));
}

// Member 1 has announced a call by an id that is forgotten, and the group replans before the member
// repeats the announcement. When the coordinator's answer has ended the replan, the members
// announce all calls again.
TEST(Coordinator, AfterAnAnswerForgottenAnnouncementsNeedNoRepetition) {
  Coordinator coordinator({0, 1}, {.names_max = 1});
  switch_to_learn_mode(coordinator, 2);
  decide(coordinator, "a");
  ASSERT_EQ(deliver(coordinator, 1, {announce_by_id(1)}), Status());
  decide(coordinator, "b");
  take_stream(coordinator);
  ASSERT_EQ(deliver(coordinator, 0, {Raise{.generation = 2}}), Status());
  for (const int member : {0, 1})
    ASSERT_EQ(deliver(coordinator, member, {Report{2, 2, 0, 0, 0, 0}}), Status());
  EXPECT_THAT(take_stream(coordinator),
              ElementsAre(StreamItem(Stop{2}), StreamItem(Answer{3, 2, 0})));
  for (const int member : {0, 1})
    ASSERT_EQ(deliver(coordinator, member, {AnnounceJoin{1}}), Status());
  EXPECT_THAT(take_stream(coordinator), ElementsAre(StreamItem(ReleaseAll{3, 3, 1})));
}

// If no step ran between two plans, plans that fail immediately could follow one another forever.
TEST(Coordinator, IssuesAStepBetweenTwoPlans) {
  Coordinator coordinator({0, 1}, {});
  switch_to_learn_mode(coordinator, 2);
  std::uint32_t quiescent_points = 0;
  // Lets both members announce `a` after a synchronization point. Returns whether a plan
  // begins.
  const auto announce_and_see_plan = [&] {
    const SubmissionContext context{.quiescent_points = ++quiescent_points};
    for (const int member : {0, 1}) {
      const auto item = quiescent_points == 1 ? Announcement(AnnounceInFull{named("a"), context})
                                              : Announcement(AnnounceById{1, context});
      EXPECT_EQ(deliver(coordinator, member, {item}), Status());
    }
    return std::ranges::any_of(take_stream(coordinator), [](const StreamItem& item) {
      return std::holds_alternative<Follow>(item);
    });
  };
  std::uint32_t steps = 0;
  for (std::uint32_t generation = 2; generation < 10; ++generation) {
    const auto steps_before = steps;
    while (!announce_and_see_plan()) ASSERT_LT(++steps, 1000U);
    EXPECT_GT(steps, steps_before);
    ASSERT_EQ(deliver(coordinator, 0, {Raise{.generation = generation}}), Status());
    for (const int member : {0, 1})
      ASSERT_EQ(
          deliver(coordinator, member, {Report{generation, steps, 0, 0, quiescent_points, 0}}),
          Status());
    take_stream(coordinator);
  }
}

}  // namespace
}  // namespace farandole
