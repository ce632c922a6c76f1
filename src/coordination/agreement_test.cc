#include "coordination/agreement.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "coordination/members_in_test.h"
#include "coordination/signatures_in_test.h"

namespace farandole {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;
using testing::UnorderedElementsAre;

Signature tensor(std::string name, DType dtype = DType::kFloat32,
                 std::vector<std::int64_t> dimensions = {10, 3}) {
  return {.name = std::move(name),
          .operation = Operation::kAllreduce,
          .dtype = dtype,
          .dimensions = std::move(dimensions)};
}

Signature signature_of(Operation operation, std::string name) {
  return {.name = std::move(name), .operation = operation, .dimensions = {}};
}

using Log = std::vector<std::string>;

// Switches the group to learn mode: its members submit two tensors in different orders.
void switch_to_learn_mode(Members& members) {
  for (int member = 0; member < members.size(); ++member)
    for (const auto* name : {member == 0 ? "p" : "q", member == 0 ? "q" : "p"})
      members.submit(member, tensor(name));
  EXPECT_GT(members.run(), 0);
  for (int member = 0; member < members.size(); ++member)
    EXPECT_THAT(members.take_log(member), UnorderedElementsAre("p", "q"));
}

void expect_log_on_all_members(Members& members, const Log& log) {
  for (int member = 0; member < members.size(); ++member)
    EXPECT_EQ(members.take_log(member), log) << member;
}

TEST(Agreement, SubmissionsInTheSameOrderTakeNoMessage) {
  Members members({0, 1, 2});
  for (int round = 0; round < 3; ++round) {
    for (const auto* name : {"c", "a", "b"}) members.submit_everywhere(tensor(name));
    EXPECT_EQ(members.run(), 0);
    expect_log_on_all_members(members, {"c", "a", "b"});
  }
}

TEST(Agreement, BatchesAreFusedWithoutAMessage) {
  Members members({0, 1}, {.fusion_bytes = 250});  // two tensors of 120 bytes
  for (int member = 0; member < 2; ++member) {
    const SubmissionContext batch{.batch = 7U + static_cast<std::uint32_t>(member)};
    for (const auto* name : {"a", "b", "c"}) members.submit(member, tensor(name), batch);
    members.submit(member, tensor("d"));
  }
  EXPECT_EQ(members.run(), 0);
  expect_log_on_all_members(members, {"a+b", "c", "d"});
}

TEST(Agreement, DifferentOrdersCauseOnlyOneMisprediction) {
  Members members({0, 1, 2});
  switch_to_learn_mode(members);
  EXPECT_EQ(members.generation(0), 2U);
  const std::vector<Log> orders = {{"a", "b", "c"}, {"c", "a", "b"}, {"b", "c", "a"}};
  for (int member = 0; member < 3; ++member) {
    for (const auto& name : orders[static_cast<std::size_t>(member)])
      members.submit(member, tensor(name));
  }
  members.run();
  const auto first_log = members.take_log(0);
  EXPECT_THAT(first_log, UnorderedElementsAre("a", "b", "c"));
  EXPECT_EQ(members.take_log(1), first_log);
  EXPECT_EQ(members.take_log(2), first_log);
  EXPECT_EQ(members.generation(0), 2U);
}

TEST(Agreement, NothingRunsBeforeTheLastMemberSubmits) {
  Members members({0, 1, 2});
  for (const bool learns : {false, true}) {
    if (learns) switch_to_learn_mode(members);
    members.submit(0, tensor("a"));
    members.submit(2, tensor("a"));
    members.run();
    expect_log_on_all_members(members, {});
    members.submit(1, tensor("a"));
    members.run();
    expect_log_on_all_members(members, {"a"});
  }
}

TEST(Agreement, AGroupOfOneNeedsNoMessages) {
  Members alone({0});
  for (const auto* name : {"a", "b", "a"}) {
    alone.submit(0, tensor(name));
    EXPECT_EQ(alone.run(), 0);
    EXPECT_THAT(alone.take_log(0), ElementsAre(name));
  }
  alone.submit(0, join("j"));
  EXPECT_EQ(alone.run(), 0);
  EXPECT_THAT(alone.take_log(0), ElementsAre("j released by 0"));
}

// In the first round, the group is in queue mode; in the second round, it is in learn mode.
TEST(Agreement, AMismatchIsRejectedOnAllMembersWithOneText) {
  Members members({0, 1, 2, 3});
  for (int round = 0; round < 2; ++round) {
    for (int member = 0; member < 4; ++member) {
      const auto dtype = member == 1 ? DType::kFloat64 : DType::kFloat32;
      members.submit(member, tensor("x", dtype));
      members.submit(member, tensor("y"));
    }
    members.run();
    expect_log_on_all_members(
        members, {"rejected x: allreduce `x` was submitted differently on different ranks: the "
                  "dtype differs; "
                  "rank 1 differs from the others\n"
                  "                  dtype     shape\n"
                  "  ranks 0, 2, 3   float32   [10, 3]\n"
                  "  rank 1          float64   [10, 3]\n"
                  "Submit the same on every rank, or give different tensors different names",
                  "y"});
    members.submit_everywhere(tensor("x"));  // the name may be used again
    members.run();
    expect_log_on_all_members(members, {"x"});
  }
}

TEST(Agreement, AMismatchWaitsForTheLastMemberWhileOtherCallsRun) {
  Members members({0, 1, 2});
  switch_to_learn_mode(members);
  members.submit(0, tensor("x", DType::kInt8));
  members.submit(1, tensor("x", DType::kInt64));
  members.submit_everywhere(tensor("y"));
  members.run();
  expect_log_on_all_members(members, {"y"});
  members.submit(2, tensor("x", DType::kInt8));
  members.run();
  for (int member = 0; member < 3; ++member)
    EXPECT_THAT(members.take_log(member), ElementsAre(StartsWith("rejected x: ")));
}

TEST(Agreement, TheSameNameWithAnotherOperationIsAMismatch) {
  Members members({0, 1});
  members.submit(0, tensor("x"));
  members.submit(1, signature_of(Operation::kBarrier, "x"));
  members.run();
  expect_log_on_all_members(
      members, {"rejected x: `x` was submitted differently on different ranks: the operation "
                "differs\n"
                "           operation   dtype     shape\n"
                "  rank 0   allreduce   float32   [10, 3]\n"
                "  rank 1   barrier     -         -\n"
                "Submit the same on every rank, or give different tensors different names"});
}

Signature with_call_error(std::string name, std::string call_error) {
  return {.name = std::move(name),
          .operation = Operation::kAllreduce,
          .dimensions = {},
          .call_error = std::move(call_error)};
}

// If a call is invalid in the same way on all members, all members could enter the call with the
// same identity. They must reject the call instead.
TEST(Agreement, ACallThatIsInvalidOnOneMemberIsRejectedOnAll) {
  for (const int invalid_members : {1, 3}) {
    Members members({0, 2, 5});
    for (int round = 0; round < 2; ++round) {  // in queue mode and in learn mode
      for (int member = 0; member < 3; ++member) {
        const bool is_invalid = member >= 3 - invalid_members;
        members.submit(member, is_invalid ? with_call_error("a", "no") : tensor("a"));
        members.submit(member, tensor("b"));
      }
      EXPECT_GT(members.run(), 0);
      const std::string ranks = invalid_members == 1 ? "rank 5" : "ranks 0, 2, 5";
      for (int member = 0; member < 3; ++member)
        EXPECT_THAT(members.take_log(member),
                    UnorderedElementsAre("b", "rejected a: " + ranks + ": no"));
    }
  }
}

TEST(Agreement, AnInvalidCallIsRejectedInAGroupOfOne) {
  Members members({4});
  for (int round = 0; round < 3; ++round) {
    members.submit_everywhere(with_call_error("a", "no"));
    members.submit_everywhere(tensor("b"));
    members.run();
    EXPECT_THAT(members.take_log(0), UnorderedElementsAre("b", "rejected a: rank 4: no"));
  }
}

TEST(Agreement, DifferentScalesAreAMismatch) {
  Members members({0, 1});
  auto scaled = tensor("x");
  scaled.postscale = 0.5;
  members.submit(0, tensor("x"));
  members.submit(1, scaled);
  members.run();
  expect_log_on_all_members(
      members, {"rejected x: allreduce `x` was submitted differently on different ranks: the "
                "postscale differs\n"
                "           dtype     postscale   shape\n"
                "  rank 0   float32   1           [10, 3]\n"
                "  rank 1   float32   0.5         [10, 3]\n"
                "Submit the same on every rank, or give different tensors different names"});
  members.submit_everywhere(scaled);
  members.run();
  expect_log_on_all_members(members, {"x"});
}

TEST(Agreement, NamesAreSentOnlyOnce) {
  Members members({0, 1});
  switch_to_learn_mode(members);
  const std::string name(1000, 'n');
  members.submit_everywhere(tensor(name));
  members.run();
  expect_log_on_all_members(members, {name});

  members.submit_everywhere(tensor(name));
  const auto announcement = members[1].next_message();
  ASSERT_TRUE(announcement.has_value());
  EXPECT_LT(announcement->bytes.size(), 40U);
  ASSERT_EQ(members[0].receive(1, announcement->bytes, members.now()), Status());
  const auto step = members[0].next_message();
  ASSERT_TRUE(step.has_value());
  EXPECT_LT(step->bytes.size(), 20U);
}

TEST(Agreement, ManyDecisionsShareAMessageAndLongOnesAreSplit) {
  Members members({0, 1});
  switch_to_learn_mode(members);
  for (int index = 0; index < 100; ++index)
    members.submit_everywhere(tensor(std::to_string(index)));
  EXPECT_EQ(members.deliver_all(), 2);  // one announcement, one stream message
  members.run();
  EXPECT_EQ(members.take_log(0).size(), 100U);
  EXPECT_EQ(members.take_log(1).size(), 100U);

  for (int index = 0; index < 100; ++index)
    members.submit_everywhere(tensor(std::string(kNameBytesMax - 3, 'x') + std::to_string(index)));
  EXPECT_GT(members.deliver_all(), 50);
  members.run();
  EXPECT_EQ(members.take_log(0).size(), 100U);
  EXPECT_EQ(members.take_log(1).size(), 100U);
}

// Member 1 announces a call by an id before it receives the message that the coordinator has
// forgotten this id.
TEST(Agreement, AForgottenNameIsAnnouncedAgain) {
  Members members({0, 1}, {.names_max = 1});
  switch_to_learn_mode(members);
  members.submit_everywhere(tensor("a"));
  members.run();
  expect_log_on_all_members(members, {"a"});

  members.submit_everywhere(tensor("b"));
  members.collect_messages();
  // The coordinator has decided b and forgotten the id of a; member 1 does not know this yet.
  members.deliver(1, 0);
  members.submit(1, tensor("a"));
  members.collect_messages();
  members.deliver(1, 0);
  members.submit(0, tensor("a"));
  members.run();
  expect_log_on_all_members(members, {"b", "a"});
}

TEST(Agreement, TheSameNameMayChangeItsShape) {
  Members members({0, 1});
  switch_to_learn_mode(members);
  for (int round = 0; round < 4; ++round) {
    members.submit_everywhere(tensor("x", DType::kFloat32, {round % 2}));
    members.run();
    expect_log_on_all_members(members, {"x"});
  }
}

TEST(Join, AJoinedMemberTakesPartInAllreducesOfTheOthers) {
  Members members({2, 5, 8});
  for (int round = 0; round < 2; ++round) {
    members.submit(1, join("j"));
    members.run();
    for (const int member : {0, 2}) members.submit(member, tensor("a"));
    members.run();
    EXPECT_THAT(members.take_log(0), ElementsAre("a"));
    EXPECT_THAT(members.take_log(1), ElementsAre("joined a"));
    EXPECT_THAT(members.take_log(2), ElementsAre("a"));
    for (const int member : {2, 0}) {
      members.submit(member, join("j"));
      members.run();
    }
    expect_log_on_all_members(members, {"j released by 8"});
  }
}

TEST(Join, AJoinCompletesPendingNames) {
  Members members({2, 5, 8});
  switch_to_learn_mode(members);
  for (const int member : {0, 2})
    for (const auto* name : {"b", "a"}) members.submit(member, tensor(name));
  members.deliver_all();
  members.submit(1, join());
  members.run();
  EXPECT_THAT(members.take_log(0), ElementsAre("a", "b"));
  EXPECT_THAT(members.take_log(1), ElementsAre("joined a", "joined b"));
}

TEST(Join, TheLastJoinReleasesAllMembers) {
  Members members({2, 5, 8});
  for (int round = 0; round < 3; ++round) {
    for (const int member : {1, 2, 0}) {
      expect_log_on_all_members(members, {});
      members.submit(member, join());
      members.run();
    }
    expect_log_on_all_members(members, {"join released by 8"});
    members.submit_everywhere(tensor("a"));
    members.run();
    expect_log_on_all_members(members, {"a"});
  }
}

TEST(Join, CallsSubmittedBeforeAJoinRunWithTheirData) {
  Members members({0, 1});
  members.submit(1, tensor("a"));
  members.submit(1, signature_of(Operation::kBroadcast, "b"));
  members.submit(1, join());
  members.run();
  members.submit(0, signature_of(Operation::kBroadcast, "b"));
  members.submit(0, tensor("a"));
  members.run();
  expect_log_on_all_members(members, {"b", "a"});
}

TEST(Join, CallsOfJoinedMembersAreDecidedBeforeTheRelease) {
  Members members({0, 1, 2});
  members.submit(1, tensor("a"));
  members.submit(1, signature_of(Operation::kBarrier, "b"));
  members.submit_everywhere(join());
  members.run();
  const std::string rejection =
      "rejected b: barrier `b` cannot run: ranks 0, 2 have joined and have no more data; until all "
      "have joined, only allreduce and allgather can be called. Call barrier before the first rank "
      "joins, or after join has returned";
  EXPECT_THAT(members.take_log(1), ElementsAre("a", rejection, StartsWith("join released by ")));
  for (const int member : {0, 2})
    EXPECT_THAT(members.take_log(member),
                ElementsAre("joined a", "no-op", StartsWith("join released by ")));
}

TEST(Join, OtherOperationsAreRejectedWhileAMemberHasJoined) {
  for (const auto& row : kOperations) {
    if (row.allowed_while_joined || row.operation == Operation::kJoin) continue;
    Members members({3, 4, 6, 9});
    members.submit(0, signature_of(row.operation, "x"));
    members.submit(1, join());
    members.submit(3, signature_of(row.operation, "x"));
    members.run();
    expect_log_on_all_members(members, {});
    members.submit(2, join());
    members.run();
    const auto text = "rejected x: " + std::string(row.name) +
                      " `x` cannot run: ranks 4, 6 have joined and have no more data; until all "
                      "have joined, only allreduce and allgather can be called. Call " +
                      std::string(row.name) +
                      " before the first rank joins, or after join has returned";
    for (const int member : {0, 3}) EXPECT_THAT(members.take_log(member), ElementsAre(text));
    for (const int member : {1, 2}) EXPECT_THAT(members.take_log(member), ElementsAre("no-op"));
  }
}

TEST(Join, AfterTheReleaseAMemberMaySubmitAgain) {
  Members members({3, 7});
  members.submit(1, join("mine"));
  members.submit(0, join());
  members.run();
  EXPECT_THAT(members.take_log(1), ElementsAre(StartsWith("mine released by ")));
  members.submit_everywhere(tensor("a"));
  members.run();
  EXPECT_THAT(members.take_log(1), ElementsAre("a"));
}

// Member 1 announces `a` by an id that the coordinator has forgotten, and joins. Its join must not
// count until it has announced `a` again, because it has data for `a`.
TEST(Join, AForgottenNameIsAnnouncedAgainBeforeTheJoinCounts) {
  Members members({0, 1, 2}, {.names_max = 1});
  switch_to_learn_mode(members);
  members.submit_everywhere(tensor("a"));
  members.run();
  expect_log_on_all_members(members, {"a"});

  members.submit_everywhere(tensor("b"));
  members.collect_messages();
  members.deliver(1, 0);
  members.deliver(2, 0);
  // The coordinator has forgotten the id of `a`; the members do not know this yet.
  members.collect_messages();
  members.submit(1, tensor("a"));
  members.submit(1, join());
  members.collect_messages();
  members.deliver(1, 0);
  members.deliver(0, 2);
  for (const int member : {0, 2}) members.submit(member, tensor("a"));
  members.collect_messages();
  members.deliver(2, 0);
  EXPECT_FALSE(members.advance(0) && members.advance(2) && members.advance(0));
  members.run();
  expect_log_on_all_members(members, {"b", "a"});
}

TEST(Agreement, InvalidMessagesAreErrors) {
  const std::vector<std::byte> nonsense(5, std::byte{0xEE});
  Members members({3, 5, 8});
  const auto wrong_message_error = [](int to, int from, const std::string& problem) {
    return Status::stop("rank " + std::to_string(to) + " got a control message from rank " +
                        std::to_string(from) + " that is wrong: " + problem +
                        ". Do all ranks run the same version of Farandole?");
  };
  const auto receive = [&](int to, int from) {
    return members[to].receive(from, nonsense, members.now());
  };
  EXPECT_EQ(receive(0, 2),
            wrong_message_error(3, 8, "its kind is 238 where 1 (announcements) are expected"));
  EXPECT_EQ(receive(1, 0),
            wrong_message_error(5, 3, "its kind is 238 where 2 (decisions) are expected"));
  EXPECT_EQ(receive(1, 2),
            wrong_message_error(
                5, 8, "its sender is neither above nor below this rank in the tree of the group"));
  EXPECT_EQ(receive(1, 1), wrong_message_error(5, 5, "it comes from this rank itself"));
}

// In a round, all members submit the same names, each in its own order. For some names, member 1
// gives another scale than the other members. In one test, the members join one after another.
class ShuffledSubmissions : public testing::TestWithParam<int> {
 protected:
  static constexpr int kNames = 12;

  static bool differs_on_member_1(int index) { return index % 5 == 3; }

  Signature signature(int member, int index) const {
    auto signature = tensor("name " + std::to_string(index));
    if (differs_on_member_1(index) && member == 1) signature.prescale = 2;
    return signature;
  }

  // Submits each member's signatures in a random order, while messages are delivered.
  void submit(Members& members, std::vector<std::vector<Signature>> to_submit) {
    for (auto& signatures : to_submit) std::shuffle(signatures.begin(), signatures.end(), random_);
    for (bool has_more = true; has_more;) {
      has_more = false;
      for (std::size_t index = 0; index < to_submit.size(); ++index) {
        const auto member = static_cast<int>(index);
        if (random_() % 2 == 0) members.advance(member);
        if (to_submit[index].empty() || random_() % 3 == 0) continue;
        const auto signature = to_submit[index].back();
        to_submit[index].pop_back();
        members.submit(member, signature);
      }
      members.collect_messages();
      const auto random_member = [&] { return static_cast<int>(random_() % to_submit.size()); };
      members.deliver(random_member(), 0, static_cast<int>(random_() % 3));
      members.deliver(0, random_member(), static_cast<int>(random_() % 3));
      for (const auto& remaining : to_submit) has_more = has_more || !remaining.empty();
    }
    members.run();
  }

  std::mt19937_64 random_{static_cast<std::uint64_t>(GetParam())};
};

TEST_P(ShuffledSubmissions, TheOrderOfSubmissionsNeverMatters) {
  Members members({0, 1, 2, 3}, {.names_max = 4});  // fewer ids than names
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<Signature>> to_submit(4);
    for (int member = 0; member < 4; ++member)
      for (int index = 0; index < kNames; ++index)
        to_submit[static_cast<std::size_t>(member)].push_back(signature(member, index));
    submit(members, to_submit);

    const auto first_log = members.take_log(0);
    std::set<int> indices;
    for (const auto& text : first_log) {
      const int index = std::stoi(text.substr(text.find("name ") + 5));
      EXPECT_EQ(text.starts_with("rejected "), differs_on_member_1(index)) << text;
      EXPECT_TRUE(indices.insert(index).second) << text;
    }
    EXPECT_EQ(indices.size(), static_cast<std::size_t>(kNames));
    for (int member = 1; member < 4; ++member) EXPECT_EQ(members.take_log(member), first_log);
  }
}

// In part i, member i joins; the members with higher numbers submit three more names.
TEST_P(ShuffledSubmissions, EarlyJoinersTakePartInLaterCallsAndAllAreReleased) {
  const std::vector<Log> parts = {{"a0", "a1", "a2"}, {"b0", "b1", "b2"}, {"c0", "c1", "c2"}, {}};
  Members members({0, 1, 2, 3}, {.names_max = 4});
  for (int round = 0; round < 3; ++round) {
    for (int part = 0; part < 4; ++part) {
      std::vector<Signature> calls;
      for (const auto& name : parts[static_cast<std::size_t>(part)]) calls.push_back(tensor(name));
      std::vector<std::vector<Signature>> to_submit(4, calls);
      for (int member = 0; member <= part; ++member)
        to_submit[static_cast<std::size_t>(member)].clear();
      members.submit(part, join("join of " + std::to_string(part)));
      submit(members, to_submit);
    }
    std::map<int, Log> logs;
    for (int member = 0; member < 4; ++member) {
      auto& log = logs[member] = members.take_log(member);
      ASSERT_EQ(log.size(), 10U);
      EXPECT_EQ(log.back(), "join of " + std::to_string(member) + " released by 3");
      log.pop_back();
    }
    for (std::size_t index = 0; index < 9; ++index) {
      const auto& name = logs[3][index];
      for (int member = 0; member < 3; ++member)
        EXPECT_EQ(logs[member][index], (name[0] - 'a' >= member ? "joined " : "") + name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, ShuffledSubmissions, testing::Range(1, 51));

}  // namespace
}  // namespace farandole
