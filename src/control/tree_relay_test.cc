#include "control/tree_relay.h"

#include <gmock/gmock.h>

#include <string>

namespace farandole {
namespace {

using testing::ElementsAre;

// Members 0 and 1 are on the first host, 2 to 4 on the second. Member 2 leads the second host.
const std::vector<int> kHosts = {1, 1, 2, 2, 2};

TreeRelay relay_of(int member) { return TreeRelay(tree_position_of(member, kHosts)); }

MemberSet set_of(std::initializer_list<int> members) {
  MemberSet set;
  for (const int member : members) set.insert(member);
  return set;
}

AnnounceById announce_by_id(std::uint32_t id, std::uint32_t waits = 0) {
  return {id, {.waits = waits}};
}
AnnounceAgain announce_again(const std::string& name) {
  return {{.name = name, .dimensions = {}}, {}};
}
Report report(std::uint32_t completed) { return {1, completed, 0, 0, 0, 0}; }

// Returns the next message to the parent, decoded.
Announcements take_message(TreeRelay& relay) {
  const auto message = relay.next_message();
  if (!message) return {};
  EXPECT_EQ(message->to, relay.parent());
  return decode_announcements(message->bytes).value();
}

Bytes message_of(const Announcements& announcements) {
  MessagePacker packer;
  for (const auto& item : announcements.items) packer.add(announcements.from, item);
  return *packer.take();
}

TEST(TreeRelay, MergesEqualAnnouncementsWhileItWaits) {
  auto relay = relay_of(2);
  for (const std::uint32_t id : {1U, 9U}) {
    relay.add({MemberSet(3), {announce_by_id(id)}});
    EXPECT_EQ(take_message(relay), (Announcements{MemberSet(3), {announce_by_id(id)}}));
  }
  relay.add({MemberSet(4), {announce_by_id(1), announce_by_id(2)}});
  relay.add({MemberSet(2), {announce_by_id(2), announce_by_id(1)}});
  EXPECT_FALSE(relay.next_message().has_value());  // two messages are not acknowledged yet
  ASSERT_EQ(relay.record_acknowledgement(), Status());
  EXPECT_EQ(take_message(relay),
            (Announcements{set_of({2, 4}), {announce_by_id(1), announce_by_id(2)}}));
  EXPECT_FALSE(relay.next_message().has_value());
}

TEST(TreeRelay, DifferentAnnouncementsAreNotMerged) {
  auto relay = relay_of(2);
  relay.add({MemberSet(3), {announce_by_id(1, 5)}});
  relay.add({MemberSet(4), {announce_by_id(1, 6)}});
  relay.add({MemberSet(2), {announce_by_id(1, 5)}});
  EXPECT_EQ(take_message(relay), (Announcements{set_of({2, 3}), {announce_by_id(1, 5)}}));
  EXPECT_EQ(take_message(relay), (Announcements{MemberSet(4), {announce_by_id(1, 6)}}));
}

// Member 4 has announced the id 1 before it announces the same call again, so the coordinator must
// get both announcements in this order.
TEST(TreeRelay, OnlyAnnouncementsOfCallsOvertakeOthers) {
  auto relay = relay_of(2);
  relay.add({MemberSet(3), {announce_again("x")}});
  relay.add({MemberSet(4), {announce_by_id(1), announce_again("x")}});
  EXPECT_EQ(take_message(relay), (Announcements{MemberSet(3), {announce_again("x")}}));
  EXPECT_EQ(take_message(relay),
            (Announcements{MemberSet(4), {announce_by_id(1), announce_again("x")}}));
}

TEST(TreeRelay, MergesEqualReports) {
  auto relay = relay_of(2);
  relay.add({MemberSet(2), {report(7)}});
  relay.add({MemberSet(3), {report(6)}});
  relay.add({MemberSet(4), {report(7)}});
  EXPECT_EQ(take_message(relay), (Announcements{set_of({2, 4}), {report(7)}}));
  EXPECT_EQ(take_message(relay), (Announcements{MemberSet(3), {report(6)}}));
}

// The coordinator accepts no announcement of a member after its report.
TEST(TreeRelay, AReportDoesNotOvertakeAnnouncements) {
  auto relay = relay_of(2);
  relay.add({MemberSet(2), {report(7)}});
  relay.add({MemberSet(4), {announce_by_id(1), report(7)}});
  EXPECT_EQ(take_message(relay), (Announcements{MemberSet(2), {report(7)}}));
  EXPECT_EQ(take_message(relay), (Announcements{MemberSet(4), {announce_by_id(1), report(7)}}));
}

TEST(TreeRelay, AMemberThatSendsOnlyForItselfDoesNotWait) {
  auto relay = relay_of(3);
  for (const std::uint32_t id : {1U, 2U}) {
    relay.add({MemberSet(3), {announce_by_id(id)}});
    EXPECT_EQ(take_message(relay), (Announcements{MemberSet(3), {announce_by_id(id)}}));
  }
}

TEST(TreeRelay, AcknowledgesTheMessagesOfLeaders) {
  auto root = relay_of(0);
  const Announcements leader_announcements{set_of({2, 4}), {announce_by_id(1)}};
  EXPECT_EQ(root.receive_from_child(2, message_of(leader_announcements)).value(),
            leader_announcements);
  const auto answer = root.next_message();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->to, 2);
  EXPECT_TRUE(is_acknowledgement(answer->bytes));
  const Announcements member_announcements{MemberSet(1), {announce_by_id(1)}};
  EXPECT_EQ(root.receive_from_child(1, message_of(member_announcements)).value(),
            member_announcements);
  EXPECT_FALSE(root.next_message().has_value());
}

TEST(TreeRelay, PassesTheStreamToEveryChild) {
  const Bytes stream(3, std::byte{2});
  std::vector<int> receivers;
  for (const int member : {0, 1, 2}) {
    auto relay = relay_of(member);
    relay.pass_down(stream);
    while (const auto message = relay.next_message()) {
      EXPECT_EQ(message->bytes, stream);
      receivers.push_back(message->to);
    }
  }
  EXPECT_THAT(receivers, ElementsAre(1, 2, 3, 4));
}

TEST(TreeRelay, WrongMessagesAreErrors) {
  auto root = relay_of(0);
  const auto error_of = [&](int from, const Announcements& announcements) {
    return root.receive_from_child(from, message_of(announcements)).status();
  };
  EXPECT_EQ(
      error_of(3, {MemberSet(3), {announce_by_id(1)}}),
      Status::stop("its sender is neither above nor below this rank in the tree of the group"));
  for (const auto& members : {set_of({1, 2}), set_of({0}), set_of({2, 700})})
    EXPECT_EQ(error_of(2, {members, {announce_by_id(1)}}),
              Status::stop("it speaks for members that are not below its sender"));
  EXPECT_EQ(relay_of(2).record_acknowledgement(),
            Status::stop("it acknowledges a message that was not sent"));
}

}  // namespace
}  // namespace farandole
