#include "coordination/coordinator.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace farandole {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Signature named(const std::string& name) {
  Signature signature;
  signature.name = name;
  return signature;
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
      {{AnnounceById{2}}, "announces the id 2, the last that was given is 1"},
      {{AnnounceInFull{named("a")}}, "`a` in full, which has the id 1"},
      {{AnnounceById{1}, AnnounceById{1}}, "`a` a second time"},
      {{AnnounceInFull{named("b")}, AnnounceInFull{named("b")}}, "`b` a second time"},
  };
  for (const auto& [items, problem] : cases) {
    Coordinator coordinator({0, 1}, 10);
    decide(coordinator, "a");
    const auto status = feed(coordinator, 1, items);
    EXPECT_EQ(status.code(), StatusCode::kStop);
    EXPECT_THAT(status.message(), HasSubstr(problem));
  }
}

}  // namespace
}  // namespace farandole
