#include "coordination/coordinator.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace farandole {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Signature named(const std::string& name) {
  Signature signature;
  signature.name = name;
  return signature;
}

Signature allreduce(const std::string& name) {
  return {.name = name, .operation = Operation::kAllreduce, .dimensions = {7}};
}

Status feed(Coordinator& coordinator, int from, const std::vector<Announcement>& items) {
  MessagePacker packer;
  for (const auto& item : items) packer.add(item);
  return coordinator.receive(from, *packer.take());
}

std::vector<StreamItem> stream(Coordinator& coordinator) {
  const auto message = coordinator.next_message();
  if (!message) return {};
  return decode_stream(*message).value();
}

// Both members of a group announce this in full.
void decide(Coordinator& coordinator, const std::string& name) {
  for (const int member : {0, 1})
    ASSERT_EQ(feed(coordinator, member, {AnnounceInFull{named(name)}}), Status());
}

TEST(Coordinator, IssuesWhatAllHaveAnnounced) {
  Coordinator coordinator({0, 1}, 10);
  ASSERT_EQ(feed(coordinator, 1, {AnnounceInFull{named("a")}, AnnounceInFull{named("b")}}),
            Status());
  EXPECT_THAT(stream(coordinator), IsEmpty());
  ASSERT_EQ(feed(coordinator, 0, {AnnounceInFull{named("b")}, AnnounceInFull{named("a")}}),
            Status());
  EXPECT_THAT(stream(coordinator),
              ElementsAre(StreamItem(Define{1, named("b")}), StreamItem(Issue{1, 1, 1}),
                          StreamItem(Define{2, named("a")}), StreamItem(Issue{1, 2, 2})));
}

TEST(Coordinator, DefinesANameOnce) {
  Coordinator coordinator({0, 1}, 10);
  decide(coordinator, "a");
  stream(coordinator);
  for (const int member : {1, 0}) ASSERT_EQ(feed(coordinator, member, {AnnounceById{1}}), Status());
  EXPECT_THAT(stream(coordinator), ElementsAre(StreamItem(Issue{1, 2, 1})));
}

TEST(Coordinator, ForgetsTheLeastRecentNameWhenTheTableIsFull) {
  Coordinator coordinator({0, 1}, 2);
  decide(coordinator, "a");
  decide(coordinator, "b");
  for (const int member : {0, 1}) ASSERT_EQ(feed(coordinator, member, {AnnounceById{1}}), Status());
  stream(coordinator);
  decide(coordinator, "c");
  EXPECT_THAT(stream(coordinator),
              ElementsAre(StreamItem(Forget{2}), StreamItem(Define{3, named("c")}),
                          StreamItem(Issue{1, 4, 3})));
}

TEST(Coordinator, IgnoresAnnouncementsOfForgottenIds) {
  Coordinator coordinator({0, 1}, 1);
  decide(coordinator, "a");
  ASSERT_EQ(feed(coordinator, 0, {AnnounceById{1}}), Status());  // before it is forgotten
  decide(coordinator, "b");
  ASSERT_EQ(feed(coordinator, 1, {AnnounceById{1}}), Status());  // after
  stream(coordinator);
  ASSERT_EQ(feed(coordinator, 1, {AnnounceAgain{named("a")}}), Status());
  EXPECT_THAT(stream(coordinator), IsEmpty());
  ASSERT_EQ(feed(coordinator, 0, {AnnounceAgain{named("a")}}), Status());
  EXPECT_THAT(stream(coordinator),
              ElementsAre(StreamItem(Forget{2}), StreamItem(Define{3, named("a")}),
                          StreamItem(Issue{1, 3, 3})));
}

TEST(Coordinator, AMismatchMayMixIdsAndFullAnnouncements) {
  Coordinator coordinator({0, 1}, 1);
  decide(coordinator, "a");
  stream(coordinator);
  auto changed = named("a");
  changed.operation = Operation::kAllreduce;
  ASSERT_EQ(feed(coordinator, 0, {AnnounceById{1}}), Status());
  ASSERT_EQ(feed(coordinator, 1, {AnnounceInFull{changed}}), Status());
  const auto items = stream(coordinator);
  ASSERT_EQ(items.size(), 1U);
  EXPECT_EQ(std::get<Refuse>(items[0]).name, "a");
}

TEST(Coordinator, AnnouncementsThatCannotBeStop) {
  const struct {
    std::vector<Announcement> items;
    std::string problem;
  } cases[] = {
      {{AnnounceById{2}}, "it announces the id 2, the last that was given is 1"},
      {{AnnounceInFull{named("a")}}, "it announces `a` in full, which has the id 1"},
      {{AnnounceById{1}, AnnounceById{1}}, "it announces `a` a second time"},
      {{AnnounceInFull{named("b")}, AnnounceInFull{named("b")}}, "it announces `b` a second time"},
      {{AnnounceAgain{named("b")}}, "it announces `b` again, which was not forgotten"},
      {{AnnounceJoin{}, AnnounceInFull{named("b")}},
       "it announces something new after it has joined"},
      {{AnnounceJoin{}, AnnounceById{1}}, "it announces something new after it has joined"},
      {{AnnounceJoin{}, AnnounceJoin{}}, "it announces something new after it has joined"},
  };
  for (const auto& [items, problem] : cases) {
    Coordinator coordinator({0, 1}, 10);
    decide(coordinator, "a");
    EXPECT_EQ(feed(coordinator, 1, items), Status::stop(problem));
  }
}

TEST(Coordinator, ReleasesAllByTheRankThatJoinedLast) {
  Coordinator coordinator({3, 5, 8}, 10);
  for (const std::uint32_t sequence : {1U, 2U}) {
    for (const int member : {2, 0}) {
      ASSERT_EQ(feed(coordinator, member, {AnnounceJoin{}}), Status());
      EXPECT_THAT(stream(coordinator), IsEmpty());
    }
    ASSERT_EQ(feed(coordinator, 1, {AnnounceJoin{}}), Status());
    EXPECT_THAT(stream(coordinator), ElementsAre(StreamItem(ReleaseAll{1, sequence, 5})));
  }
}

TEST(Coordinator, ExaminesWhatIsPendingWhenSomebodyJoins) {
  Coordinator coordinator({3, 5, 8}, 10);
  const auto reduced = allreduce("b");
  for (const int member : {0, 2}) {
    ASSERT_EQ(feed(coordinator, member, {AnnounceInFull{reduced}, AnnounceInFull{named("a")}}),
              Status());
  }
  EXPECT_THAT(stream(coordinator), IsEmpty());
  ASSERT_EQ(feed(coordinator, 1, {AnnounceJoin{}}), Status());
  EXPECT_THAT(
      stream(coordinator),
      ElementsAre(StreamItem(Refuse{1, 1, "a",
                                    "barrier `a` cannot run: rank 5 has joined and has no "
                                    "more data; until all have joined, only allreduce goes "
                                    "on. Call barrier before the first rank joins, or after "
                                    "join has returned"}),
                  StreamItem(Define{1, reduced}), StreamItem(Issue{1, 2, 1})));
}

// Member 1 has announced `a` by an id that is forgotten, before or after its join came.
TEST(Coordinator, AJoinCountsOnceWhatWasForgottenIsAnnouncedAgain) {
  for (const bool joins_first : {false, true}) {
    Coordinator coordinator({0, 1, 2}, 1);
    for (const int member : {0, 1, 2})
      ASSERT_EQ(feed(coordinator, member, {AnnounceInFull{allreduce("a")}}), Status());
    for (const int member : {0, 1, 2})
      ASSERT_EQ(feed(coordinator, member, {AnnounceInFull{allreduce("b")}}), Status());
    if (!joins_first) {
      ASSERT_EQ(feed(coordinator, 1, {AnnounceById{1}, AnnounceJoin{}}), Status());
    } else {
      for (const int member : {0, 2})
        ASSERT_EQ(feed(coordinator, member, {AnnounceInFull{allreduce("c")}}), Status());
      ASSERT_EQ(feed(coordinator, 1, {AnnounceById{2}, AnnounceJoin{}}), Status());
    }
    stream(coordinator);
    const auto again = joins_first ? allreduce("b") : allreduce("a");
    for (const int member : {0, 2})
      ASSERT_EQ(feed(coordinator, member, {AnnounceInFull{again}}), Status());
    EXPECT_THAT(stream(coordinator), IsEmpty());
    ASSERT_EQ(feed(coordinator, 1, {AnnounceAgain{again}}), Status());
    const std::uint32_t id = joins_first ? 4 : 3;
    EXPECT_THAT(stream(coordinator),
                ElementsAre(StreamItem(Forget{id - 1}), StreamItem(Define{id, again}),
                            StreamItem(Issue{1, id, id})));
  }
}

// `a` and `b` wait for the one that joins; `a` makes `b` be forgotten, which makes `b` wait again.
TEST(Coordinator, ADecisionMayTakeBackAnnouncementsOfTheNext) {
  Coordinator coordinator({0, 1, 2}, 1);
  for (const int member : {0, 1, 2})
    ASSERT_EQ(feed(coordinator, member, {AnnounceInFull{allreduce("b")}}), Status());
  for (const int member : {0, 1})
    ASSERT_EQ(feed(coordinator, member, {AnnounceById{1}, AnnounceInFull{allreduce("a")}}),
              Status());
  stream(coordinator);
  ASSERT_EQ(feed(coordinator, 2, {AnnounceJoin{}}), Status());
  EXPECT_THAT(stream(coordinator),
              ElementsAre(StreamItem(Forget{1}), StreamItem(Define{2, allreduce("a")}),
                          StreamItem(Issue{1, 2, 2})));
  for (const int member : {0, 1})
    ASSERT_EQ(feed(coordinator, member, {AnnounceAgain{allreduce("b")}}), Status());
  EXPECT_THAT(stream(coordinator),
              ElementsAre(StreamItem(Forget{2}), StreamItem(Define{3, allreduce("b")}),
                          StreamItem(Issue{1, 3, 3})));
}

}  // namespace
}  // namespace farandole
