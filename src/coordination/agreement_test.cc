#include "coordination/agreement.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace farandole {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Signature tensor(std::string name, DType dtype = DType::kFloat32,
                 std::vector<std::int64_t> dimensions = {10, 3}) {
  return {.name = std::move(name),
          .operation = Operation::kAllreduce,
          .dtype = dtype,
          .dimensions = std::move(dimensions)};
}

Signature call(Operation operation, std::string name) {
  return {.name = std::move(name), .operation = operation, .dimensions = {}};
}

Signature join(std::string name = "join") { return call(Operation::kJoin, std::move(name)); }

// What a member gets that has not joined, and what one that has.
Decision step(std::uint32_t sequence, std::uint32_t id, std::string name) {
  return Step{1, sequence, id, std::move(name)};
}
Decision joined_step(std::uint32_t sequence, std::uint32_t id, Signature signature) {
  return Step{1, sequence, id, signature.name, signature};
}

// All members of a group; messages wait in channels until deliver() brings them.
class Members {
 public:
  explicit Members(std::vector<int> ranks, std::size_t names_max = kNamesMax) {
    for (std::size_t member = 0; member < ranks.size(); ++member) {
      agreements_.push_back(
          std::make_unique<Agreement>(static_cast<int>(member), ranks, names_max));
    }
  }

  Agreement& operator[](int member) { return *agreements_[static_cast<std::size_t>(member)]; }
  int size() const { return static_cast<int>(agreements_.size()); }

  void submit_everywhere(const Signature& signature) {
    for (auto& agreement : agreements_) ASSERT_EQ(agreement->submit(signature), Status());
  }

  // Collects what is to be sent; returns the number of messages.
  int collect() {
    int count = 0;
    for (int member = 0; member < size(); ++member) {
      while (auto message = (*this)[member].next_message()) {
        EXPECT_LE(message->bytes.size(), kMessageBytesMax);
        channels_[{member, message->to}].push_back(std::move(message->bytes));
        ++count;
      }
    }
    return count;
  }

  void deliver(int from, int to) {
    auto& channel = channels_[{from, to}];
    for (; !channel.empty(); channel.pop_front())
      ASSERT_EQ((*this)[to].receive(from, channel.front()), Status());
  }

  // Until no message is left; returns how many there were.
  int deliver_all() {
    int messages = 0;
    for (bool again = true; again;) {
      messages += collect();
      again = false;
      for (auto& [ends, channel] : channels_) {
        if (channel.empty()) continue;
        again = true;
        deliver(ends.first, ends.second);
      }
    }
    return messages;
  }

  std::vector<Decision> decisions(int member) {
    std::vector<Decision> all;
    while (auto decision = (*this)[member].next_decision()) all.push_back(*std::move(decision));
    return all;
  }

 private:
  std::vector<std::unique_ptr<Agreement>> agreements_;
  std::map<std::pair<int, int>, std::deque<Bytes>> channels_;
};

TEST(Agreement, StepsComeInOneOrderWhateverTheSubmissionOrder) {
  Members members({0, 1, 2});
  const std::vector<std::vector<std::string>> orders = {
      {"a", "b", "c"}, {"c", "a", "b"}, {"b", "c", "a"}};
  for (int member = 0; member < 3; ++member) {
    for (const auto& name : orders[static_cast<std::size_t>(member)])
      ASSERT_EQ(members[member].submit(tensor(name)), Status());
  }
  members.deliver_all();
  const auto first = members.decisions(0);
  ASSERT_EQ(first.size(), 3U);
  for (std::size_t index = 0; index < 3; ++index)
    EXPECT_EQ(std::get<Step>(first[index]).sequence, index + 1);
  EXPECT_EQ(members.decisions(1), first);
  EXPECT_EQ(members.decisions(2), first);
}

TEST(Agreement, NothingIsDecidedBeforeTheLastMember) {
  Members members({0, 1, 2});
  ASSERT_EQ(members[0].submit(tensor("a")), Status());
  ASSERT_EQ(members[2].submit(tensor("a")), Status());
  members.deliver_all();
  for (int member = 0; member < 3; ++member) EXPECT_THAT(members.decisions(member), IsEmpty());
  ASSERT_EQ(members[1].submit(tensor("a")), Status());
  members.deliver_all();
  for (int member = 0; member < 3; ++member) {
    EXPECT_THAT(members.decisions(member),
                ElementsAre(Decision(Step{.generation = 1, .sequence = 1, .id = 1, .name = "a"})));
  }
}

TEST(Agreement, Alone) {
  Agreement alone(0, {0});
  ASSERT_EQ(alone.submit(tensor("a")), Status());
  EXPECT_EQ(alone.next_decision(), Decision(Step{1, 1, 1, "a"}));
  EXPECT_EQ(alone.next_decision(), std::nullopt);
  EXPECT_FALSE(alone.next_message().has_value());
  ASSERT_EQ(alone.submit(tensor("a")), Status());
  EXPECT_EQ(alone.next_decision(), Decision(Step{1, 2, 1, "a"}));
}

TEST(Agreement, ANameInFlightIsRefusedHereUntilItsDecisionWasTaken) {
  Members members({4, 7});
  ASSERT_EQ(members[1].submit(tensor("grad/w")), Status());
  const auto in_flight = Status::fix_call(
      "allreduce `grad/w`: this name is still in flight on rank 7; wait for the "
      "earlier call, or give this one another name");
  EXPECT_EQ(members[1].submit(tensor("grad/w")), in_flight);
  EXPECT_EQ(members[1].submit(call(Operation::kAlltoall, "grad/w")).code(), StatusCode::kFixCall);

  ASSERT_EQ(members[0].submit(tensor("grad/w")), Status());
  members.deliver_all();
  EXPECT_EQ(members[1].submit(tensor("grad/w")), in_flight);
  EXPECT_EQ(members.decisions(1).size(), 1U);
  EXPECT_EQ(members[1].submit(tensor("grad/w")), Status());
}

TEST(Agreement, SubmissionsOutOfBoundsAreRefusedHere) {
  Agreement alone(0, {5});
  EXPECT_EQ(alone.submit(tensor("a", DType::kInt8, {3, -4})),
            Status::fix_call(
                "rank 5 cannot submit this: `a` has the shape [3, -4], which no tensor has"));
  auto scaled = call(Operation::kBroadcast, "b");
  scaled.prescale = 2;
  EXPECT_EQ(alone.submit(scaled),
            Status::fix_call("rank 5 cannot submit this: broadcast `b`: the "
                             "prescale is 2, without a reduction it must be 1"));
  EXPECT_EQ(alone.next_decision(), std::nullopt);
}

TEST(Agreement, AMismatchIsRefusedOnAllMembersWithOneText) {
  Members members({0, 1, 2, 3});
  for (int member = 0; member < 4; ++member) {
    ASSERT_EQ(members[member].submit(tensor("x", member == 1 ? DType::kFloat64 : DType::kFloat32)),
              Status());
    ASSERT_EQ(members[member].submit(tensor("y")), Status());
  }
  members.deliver_all();
  const auto first = members.decisions(0);
  ASSERT_EQ(first.size(), 2U);
  const auto& refusal = std::get<Refusal>(first[0]);
  EXPECT_EQ(refusal.name, "x");
  EXPECT_EQ(refusal.status.code(), StatusCode::kFixCall);
  EXPECT_EQ(refusal.status.message(),
            "allreduce `x` was submitted differently on different ranks: the dtype differs; rank 1 "
            "is at odds with the others\n"
            "                  dtype     shape\n"
            "  ranks 0, 2, 3   float32   [10, 3]\n"
            "  rank 1          float64   [10, 3]\n"
            "Submit the same on every rank, or give different tensors different names");
  EXPECT_EQ(std::get<Step>(first[1]).name, "y");
  EXPECT_EQ(std::get<Step>(first[1]).sequence, 2U);
  for (int member = 1; member < 4; ++member) EXPECT_EQ(members.decisions(member), first);

  members.submit_everywhere(tensor("x"));  // the name is free again
  members.deliver_all();
  for (int member = 0; member < 4; ++member) EXPECT_EQ(members.decisions(member).size(), 1U);
}

TEST(Agreement, AMismatchWaitsForTheLastMemberWhileOthersGoOn) {
  Members members({0, 1, 2});
  ASSERT_EQ(members[0].submit(tensor("x", DType::kInt8)), Status());
  ASSERT_EQ(members[1].submit(tensor("x", DType::kInt64)), Status());
  members.submit_everywhere(tensor("y"));
  members.deliver_all();
  for (int member = 0; member < 3; ++member) {
    const auto decisions = members.decisions(member);
    ASSERT_EQ(decisions.size(), 1U);
    EXPECT_EQ(std::get<Step>(decisions[0]).name, "y");
  }
  ASSERT_EQ(members[2].submit(tensor("x", DType::kInt8)), Status());
  members.deliver_all();
  EXPECT_TRUE(std::holds_alternative<Refusal>(members.decisions(2).at(0)));
}

TEST(Agreement, TheSameNameWithAnotherOperationIsAMismatch) {
  Members members({0, 1});
  ASSERT_EQ(members[0].submit(tensor("x")), Status());
  Signature barrier;
  barrier.name = "x";
  ASSERT_EQ(members[1].submit(barrier), Status());
  members.deliver_all();
  const auto decisions = members.decisions(1);
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(std::get<Refusal>(decisions[0]).status,
            Status::fix_call("`x` was submitted differently on different ranks: the operation "
                             "differs\n"
                             "           operation   dtype     shape\n"
                             "  rank 0   allreduce   float32   [10, 3]\n"
                             "  rank 1   barrier     -         -\n"
                             "Submit the same on every rank, or give different tensors different "
                             "names"));
}

TEST(Agreement, OtherScalesAreAMismatch) {
  Members members({0, 1});
  auto scaled = tensor("x");
  scaled.postscale = 0.5;
  ASSERT_EQ(members[0].submit(tensor("x")), Status());
  ASSERT_EQ(members[1].submit(scaled), Status());
  members.deliver_all();
  const auto decisions = members.decisions(1);
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(std::get<Refusal>(decisions[0]).status,
            Status::fix_call("allreduce `x` was submitted differently on different ranks: the "
                             "postscale differs\n"
                             "           dtype     postscale   shape\n"
                             "  rank 0   float32   1           [10, 3]\n"
                             "  rank 1   float32   0.5         [10, 3]\n"
                             "Submit the same on every rank, or give different tensors different "
                             "names"));
  EXPECT_EQ(members.decisions(0), decisions);
  members.submit_everywhere(scaled);
  members.deliver_all();
  EXPECT_THAT(members.decisions(0), ElementsAre(step(2, 1, "x")));
}

TEST(Agreement, NamesCrossTheWireOnce) {
  Members members({0, 1});
  const std::string name(1000, 'n');
  members.submit_everywhere(tensor(name));
  members.deliver_all();
  EXPECT_EQ(members.decisions(0).size() + members.decisions(1).size(), 2U);

  members.submit_everywhere(tensor(name));
  const auto announcement = members[1].next_message();
  ASSERT_TRUE(announcement.has_value());
  EXPECT_LT(announcement->bytes.size(), 10U);
  ASSERT_EQ(members[0].receive(1, announcement->bytes), Status());
  const auto step = members[0].next_message();
  ASSERT_TRUE(step.has_value());
  EXPECT_LT(step->bytes.size(), 20U);
}

TEST(Agreement, ManyDecisionsShareAMessageAndManyBytesAreSplit) {
  Members members({0, 1});
  for (int index = 0; index < 100; ++index)
    members.submit_everywhere(tensor(std::to_string(index)));
  EXPECT_EQ(members.deliver_all(), 2);  // one announcement, one stream message
  EXPECT_EQ(members.decisions(1).size(), 100U);

  for (int index = 0; index < 100; ++index)
    members.submit_everywhere(tensor(std::string(kNameBytesMax - 3, 'x') + std::to_string(index)));
  EXPECT_GT(members.deliver_all(), 50);
  EXPECT_EQ(members.decisions(0).size(), 200U);
  EXPECT_EQ(members.decisions(1).size(), 100U);
}

// Member 1 announces by an id while the Forget of that id is on its way.
TEST(Agreement, AForgottenNameIsAnnouncedAgain) {
  Members members({0, 1}, 1);
  members.submit_everywhere(tensor("a"));
  members.deliver_all();
  members.decisions(0);
  members.decisions(1);

  members.submit_everywhere(tensor("b"));
  members.collect();
  members.deliver(1, 0);  // b is decided and a forgotten; member 1 does not know yet
  ASSERT_EQ(members[1].submit(tensor("a")), Status());
  members.collect();
  members.deliver(1, 0);
  ASSERT_EQ(members[0].submit(tensor("a")), Status());
  EXPECT_EQ(members.decisions(0).size(), 1U);
  members.deliver_all();
  const auto decisions = members.decisions(1);
  ASSERT_EQ(decisions.size(), 2U);
  EXPECT_EQ(std::get<Step>(decisions[1]).name, "a");
  EXPECT_EQ(std::get<Step>(decisions[1]).id, 3U);  // ids are never given twice
  EXPECT_EQ(members.decisions(0), std::vector<Decision>{decisions[1]});
}

TEST(Agreement, TheSameNameMayChangeItsShape) {
  Members members({0, 1});
  for (int round = 0; round < 3; ++round) {
    members.submit_everywhere(tensor("x", DType::kFloat32, {round % 2}));
    members.deliver_all();
    const auto decisions = members.decisions(1);
    ASSERT_EQ(decisions.size(), 1U);
    EXPECT_EQ(std::get<Step>(decisions[0]).id, 1U + static_cast<std::uint32_t>(round % 2));
    EXPECT_EQ(members.decisions(0), decisions);
  }
}

TEST(Join, AJoinedMemberTakesPartInWhatTheOthersReduce) {
  Members members({2, 5, 8});
  ASSERT_EQ(members[1].submit(join()), Status());
  members.deliver_all();
  for (const int member : {0, 2}) ASSERT_EQ(members[member].submit(tensor("a")), Status());
  members.deliver_all();
  EXPECT_THAT(members.decisions(0), ElementsAre(step(1, 1, "a")));
  EXPECT_THAT(members.decisions(1), ElementsAre(joined_step(1, 1, tensor("a"))));
  EXPECT_THAT(members.decisions(2), ElementsAre(step(1, 1, "a")));
}

TEST(Join, WhatIsPendingIsExaminedWhenSomebodyJoins) {
  Members members({2, 5, 8});
  for (const int member : {0, 2}) {
    ASSERT_EQ(members[member].submit(tensor("b")), Status());
    ASSERT_EQ(members[member].submit(tensor("a")), Status());
  }
  members.deliver_all();
  ASSERT_EQ(members[1].submit(join()), Status());
  members.deliver_all();
  EXPECT_THAT(members.decisions(0), ElementsAre(step(1, 1, "a"), step(2, 2, "b")));
  EXPECT_THAT(members.decisions(1),
              ElementsAre(joined_step(1, 1, tensor("a")), joined_step(2, 2, tensor("b"))));
}

TEST(Join, TheLastToJoinReleasesAllAndTheyGoOnAsBefore) {
  Members members({2, 5, 8});
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (const int member : {1, 2, 0}) {
      ASSERT_EQ(members[member].submit(join("mine " + std::to_string(member))), Status());
      members.deliver_all();
      if (member == 0) continue;  // the last
      EXPECT_THAT(members.decisions(member), IsEmpty());
    }
    for (int member = 0; member < 3; ++member) {
      EXPECT_THAT(
          members.decisions(member),
          ElementsAre(Decision(Release{1, 2 * round + 1, "mine " + std::to_string(member), 2})));
    }
    members.submit_everywhere(tensor("a"));
    members.deliver_all();
    for (int member = 0; member < 3; ++member)
      EXPECT_THAT(members.decisions(member), ElementsAre(step(2 * round + 2, 1, "a")));
  }
}

TEST(Join, WhatAMemberSubmittedBeforeItJoinedRunsWithItsData) {
  Members members({0, 1});
  ASSERT_EQ(members[1].submit(tensor("a")), Status());
  ASSERT_EQ(members[1].submit(call(Operation::kBroadcast, "b")), Status());
  ASSERT_EQ(members[1].submit(join()), Status());
  members.deliver_all();
  ASSERT_EQ(members[0].submit(call(Operation::kBroadcast, "b")), Status());
  ASSERT_EQ(members[0].submit(tensor("a")), Status());
  members.deliver_all();
  EXPECT_THAT(members.decisions(1), ElementsAre(step(1, 1, "b"), step(2, 2, "a")));
  EXPECT_THAT(members.decisions(0), ElementsAre(step(1, 1, "b"), step(2, 2, "a")));
}

TEST(Join, WhatOnlyMembersThatHaveJoinedSubmittedIsDecidedBeforeTheRelease) {
  Members members({0, 1, 2});
  ASSERT_EQ(members[1].submit(tensor("a")), Status());
  ASSERT_EQ(members[1].submit(call(Operation::kBarrier, "b")), Status());
  members.submit_everywhere(join());
  members.deliver_all();
  const auto decisions = members.decisions(1);
  ASSERT_EQ(decisions.size(), 3U);
  EXPECT_EQ(decisions[0], step(1, 1, "a"));
  EXPECT_EQ(std::get<Refusal>(decisions[1]).status.message(),
            "barrier `b` cannot run: ranks 0, 2 have joined and have no more data; until all have "
            "joined, only allreduce goes on. Call barrier before the first rank joins, or after "
            "join has returned");
  EXPECT_TRUE(std::holds_alternative<Release>(decisions[2]));
  for (const int member : {0, 2})
    EXPECT_THAT(members.decisions(member), ElementsAre(joined_step(1, 1, tensor("a")),
                                                       Decision(Pass{1, 2, "b"}), decisions[2]));
}

TEST(Join, WhatDoesNotRunJoinedIsRefusedOnThoseThatSubmittedIt) {
  for (const auto& row : kOperations) {
    if (row.runs_joined || row.operation == Operation::kJoin) continue;
    Members members({3, 4, 6, 9});
    ASSERT_EQ(members[0].submit(call(row.operation, "x")), Status());
    ASSERT_EQ(members[1].submit(join()), Status());
    ASSERT_EQ(members[3].submit(call(row.operation, "x")), Status());
    members.deliver_all();
    EXPECT_THAT(members.decisions(0), IsEmpty());
    ASSERT_EQ(members[2].submit(join()), Status());
    members.deliver_all();
    const auto text = std::string(row.name) +
                      " `x` cannot run: ranks 4, 6 have joined and have no more data; until all "
                      "have joined, only allreduce goes on. Call " +
                      std::string(row.name) +
                      " before the first rank joins, or after join has returned";
    for (const int member : {0, 3}) {
      EXPECT_THAT(members.decisions(member),
                  ElementsAre(Decision(Refusal{1, 1, "x", Status::fix_call(text)})));
    }
    for (const int member : {1, 2})
      EXPECT_THAT(members.decisions(member), ElementsAre(Decision(Pass{1, 1, "x"})));
  }
}

TEST(Join, NothingCanBeSubmittedUntilTheReleaseWasTaken) {
  Members members({3, 7});
  ASSERT_EQ(members[1].submit(join("mine")), Status());
  EXPECT_EQ(members[1].submit(tensor("a")),
            Status::fix_call("allreduce `a`: rank 7 has joined and so has no more data; submit "
                             "nothing until join has returned"));
  EXPECT_EQ(members[1].submit(join()),
            Status::fix_call("join `join`: rank 7 has joined and so has no more data; submit "
                             "nothing until join has returned"));
  ASSERT_EQ(members[0].submit(join()), Status());
  members.deliver_all();
  EXPECT_EQ(members[1].submit(tensor("a")).code(), StatusCode::kFixCall);
  EXPECT_EQ(members.decisions(1).size(), 1U);
  EXPECT_EQ(members[1].submit(tensor("a")), Status());
}

// Member 1 announces `a` by its id, which the coordinator has forgotten meanwhile, and joins. It
// must not count as joined before it has announced `a` again: it has data for it.
TEST(Join, AForgottenNameIsAnnouncedAgainBeforeTheJoinCounts) {
  Members members({0, 1, 2}, 1);
  members.submit_everywhere(tensor("a"));
  members.deliver_all();
  for (int member = 0; member < 3; ++member) members.decisions(member);

  members.submit_everywhere(tensor("b"));
  members.collect();
  members.deliver(1, 0);
  members.deliver(2, 0);
  members.collect();  // a was forgotten; nobody else knows yet
  ASSERT_EQ(members[1].submit(tensor("a")), Status());
  ASSERT_EQ(members[1].submit(join()), Status());
  members.collect();
  members.deliver(1, 0);
  members.deliver(0, 2);
  members.decisions(0);
  members.decisions(2);
  for (const int member : {0, 2}) ASSERT_EQ(members[member].submit(tensor("a")), Status());
  members.collect();
  members.deliver(2, 0);
  EXPECT_THAT(members.decisions(0), IsEmpty());
  members.deliver_all();
  EXPECT_THAT(members.decisions(0), ElementsAre(step(3, 3, "a")));
  EXPECT_THAT(members.decisions(1), ElementsAre(step(2, 2, "b"), step(3, 3, "a")));
}

TEST(Agreement, MessagesThatMakeNoSenseStopTheGroup) {
  const std::vector<std::byte> nonsense(5, std::byte{0xEE});
  Members members({3, 5, 8});
  const auto wrong = [](int to, int from, const std::string& problem) {
    return Status::stop("rank " + std::to_string(to) + " got a control message from rank " +
                        std::to_string(from) + " that is wrong: " + problem +
                        ". Do all ranks run the same version of Farandole?");
  };
  EXPECT_EQ(members[0].receive(2, nonsense),
            wrong(3, 8, "its kind is 238 where 1 (announcements) are expected"));
  EXPECT_EQ(members[1].receive(0, nonsense),
            wrong(5, 3, "its kind is 238 where 2 (decisions) are expected"));
  EXPECT_EQ(members[1].receive(2, nonsense), wrong(5, 8, "only rank 3 decides here"));
  EXPECT_EQ(members[1].receive(1, nonsense), wrong(5, 5, "it comes from this rank itself"));
}

// What the members of a group submit in one round, each in its own order: some names differ in a
// scale on one member, and some members join after a part of theirs.
class Shuffled : public testing::TestWithParam<int> {
 protected:
  static constexpr int kNames = 12;

  static bool is_odd(int index) { return index % 5 == 3; }

  Signature signature(int member, int index) const {
    auto signature = tensor("name " + std::to_string(index));
    if (is_odd(index) && member == 1) signature.prescale = 2;
    return signature;
  }

  // Each member's signatures in a random order, while messages come and go.
  void submit(Members& members, std::vector<std::vector<Signature>> submitted) {
    for (auto& one : submitted) std::shuffle(one.begin(), one.end(), random_);
    for (bool again = true; again;) {
      again = false;
      for (std::size_t member = 0; member < submitted.size(); ++member) {
        if (submitted[member].empty() || random_() % 3 == 0) continue;
        const auto signature = submitted[member].back();
        submitted[member].pop_back();
        auto& agreement = members[static_cast<int>(member)];
        ASSERT_EQ(agreement.submit(signature), Status());
        ASSERT_EQ(agreement.submit(signature).code(), StatusCode::kFixCall);
      }
      members.collect();
      const auto any = [&] { return static_cast<int>(random_() % submitted.size()); };
      members.deliver(any(), 0);
      members.deliver(0, any());
      for (const auto& rest : submitted) again = again || !rest.empty();
    }
    members.deliver_all();
  }

  std::mt19937_64 random_{static_cast<std::uint64_t>(GetParam())};
};

TEST_P(Shuffled, TheOrderOfSubmissionsNeverMatters) {
  Members members({0, 1, 2, 3}, 4);  // fewer ids than names
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<Signature>> submitted(4);
    for (int member = 0; member < 4; ++member)
      for (int index = 0; index < kNames; ++index)
        submitted[static_cast<std::size_t>(member)].push_back(signature(member, index));
    submit(members, submitted);

    const auto first = members.decisions(0);
    std::set<std::string> names;
    for (const auto& decision : first) {
      const auto& name = std::visit([](const auto& what) { return what.name; }, decision);
      const int index = std::stoi(name.substr(5));
      EXPECT_EQ(std::holds_alternative<Refusal>(decision), is_odd(index)) << name;
      EXPECT_TRUE(names.insert(name).second) << name;
    }
    EXPECT_EQ(names.size(), static_cast<std::size_t>(kNames));
    for (int member = 1; member < 4; ++member) EXPECT_EQ(members.decisions(member), first);
  }
}

// In part p member p joins, and those after it submit three names more.
TEST_P(Shuffled, JoinsAfterUnevenNumbersOfCalls) {
  const std::vector<std::vector<std::string>> parts = {
      {"a0", "a1", "a2"}, {"b0", "b1", "b2"}, {"c0", "c1", "c2"}, {}};
  Members members({0, 1, 2, 3}, 4);
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (int part = 0; part < 4; ++part) {
      std::vector<Signature> calls;
      for (const auto& name : parts[static_cast<std::size_t>(part)]) calls.push_back(tensor(name));
      std::vector<std::vector<Signature>> submitted(4, calls);
      for (int member = 0; member <= part; ++member)
        submitted[static_cast<std::size_t>(member)].clear();
      ASSERT_EQ(members[part].submit(join("join of " + std::to_string(part))), Status());
      submit(members, submitted);
    }
    std::map<std::string, Decision> seen;
    for (int member = 0; member < 4; ++member) {
      auto decisions = members.decisions(member);
      ASSERT_EQ(decisions.size(), 10U);
      EXPECT_EQ(decisions.back(),
                Decision(Release{1, 10 * round + 10, "join of " + std::to_string(member), 3}));
      decisions.pop_back();
      for (const auto& decision : decisions) {
        auto step = std::get<Step>(decision);
        EXPECT_EQ(step.joined.has_value(), step.name[0] - 'a' >= member) << step.name;
        EXPECT_EQ(step.joined.value_or(tensor(step.name)), tensor(step.name));
        step.joined.reset();
        EXPECT_EQ(seen.emplace(step.name, step).first->second, Decision(step));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, Shuffled, testing::Range(1, 51));

}  // namespace
}  // namespace farandole
