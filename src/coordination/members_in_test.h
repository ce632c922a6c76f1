// Members: all members of a group in one thread, for tests. Messages wait in channels until they
// are delivered. Entries meet on a board that compares them as the flag board does.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordination/agreement.h"

namespace farandole {

class Members {
 public:
  explicit Members(std::vector<int> ranks, const AgreementOptions& options = {}) {
    for (std::size_t member = 0; member < ranks.size(); ++member)
      members_.push_back(std::make_unique<Member>(static_cast<int>(member), ranks, options));
  }

  Agreement& operator[](int member) { return at(member).agreement; }
  int size() const { return static_cast<int>(members_.size()); }

  void submit(int member, const Signature& signature, const SubmissionContext& context = {}) {
    auto& one = at(member);
    auto& interned = one.interned[digest_of(signature)];
    if (!interned) interned = std::make_unique<InternedSignature>(signature);
    const CallId call_id = ++one.call_id_last;
    now_ += std::chrono::nanoseconds(1);  // so that no two times are equal
    one.agreement.submit(call_id, *interned, context, now_);
    one.submitted[call_id] = signature.name;
  }

  void submit_everywhere(const Signature& signature) {
    for (int member = 0; member < size(); ++member) submit(member, signature);
  }

  // Collects the messages to send; returns their number.
  int collect() {
    int count = 0;
    for (int member = 0; member < size(); ++member) {
      while (auto message = at(member).agreement.next_message()) {
        EXPECT_LE(message->bytes.size(), kMessageBytesMax);
        channels_[{member, message->to}].push_back(std::move(message->bytes));
        ++count;
      }
    }
    return count;
  }

  // Delivers at most `most` messages.
  void deliver(int from, int to, int most = 1 << 30) {
    auto& channel = channels_[{from, to}];
    for (; !channel.empty() && most > 0; channel.pop_front(), --most)
      ASSERT_EQ(at(to).agreement.receive(from, channel.front(), now_), Status());
  }

  // Delivers at most `most` messages; true if there was one.
  bool deliver_some(int from, int to, int most) {
    const bool some = most > 0 && !channels_[{from, to}].empty();
    deliver(from, to, most);
    return some;
  }

  // Delivers until no message is left; returns how many there were.
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

  // Lets one member look once at its agreement and at the board; true if anything moved.
  bool advance(int member) {
    auto& one = at(member);
    if (one.agreement.take_rollback()) {
      EXPECT_TRUE(one.entry.has_value());
      one.lines[one.entry->step_number.sequence % 2] = {};
      one.entry.reset();
      return true;
    }
    if (!one.entry) {
      const auto* decision = one.agreement.next_decision();
      if (decision == nullptr) return false;
      one.entry = entry_of(*decision);
      one.decision = decision;
      EXPECT_EQ(one.entry->step_number.sequence, one.completed + 1);
      one.lines[one.entry->step_number.sequence % 2] = *one.entry;
      return true;
    }
    return meet(one);
  }

  // Runs until nothing moves; returns the number of messages.
  int run() {
    int messages = 0;
    for (bool again = true; again;) {
      again = false;
      for (int member = 0; member < size(); ++member) again |= advance(member);
      const int delivered = deliver_all();
      messages += delivered;
      again |= delivered > 0;
    }
    return messages;
  }

  // What was completed since the last call, as "a", "a+b", "joined a", "rejected x: why", "pass" or
  // "released by 3".
  std::vector<std::string> take_log(int member) { return std::exchange(at(member).log, {}); }
  // Whether this member's submission of this name is neither completed nor rejected.
  bool is_in_flight(int member, const std::string& name) {
    for (const auto& [call_id, submitted] : at(member).submitted)
      if (submitted == name) return true;
    return false;
  }
  bool nothing_in_flight(int member) { return at(member).submitted.empty(); }
  std::uint32_t generation(int member) { return at(member).generation; }

  void pass_time(Duration duration) {
    now_ += duration;
    for (auto& member : members_) member->agreement.tick(now_);
  }
  std::optional<TimePoint> deadline(int member) { return at(member).agreement.deadline(); }
  TimePoint now() const { return now_; }

 private:
  struct Entry {
    StepNumber step_number{0, 0};
    std::uint64_t identity = 0;
    bool mispredicted = false;
  };
  struct Member {
    Member(int member, const std::vector<int>& ranks, const AgreementOptions& options)
        : agreement(member, ranks, options) {}

    Agreement agreement;
    std::map<std::uint64_t, std::unique_ptr<InternedSignature>> interned;
    std::map<CallId, std::string> submitted;
    CallId call_id_last = 0;
    std::optional<Entry> entry;
    std::array<Entry, 2> lines;
    std::uint32_t completed = 0;
    std::uint32_t generation = 1;
    std::vector<std::string> log;
    const Decision* decision = nullptr;
  };

  Member& at(int member) { return *members_[static_cast<std::size_t>(member)]; }

  static Entry entry_of(const Decision& decision) {
    const auto* step = std::get_if<Step>(&decision);
    const auto step_number =
        std::visit([](const auto& what) { return what.step_number; }, decision);
    return {step_number, step == nullptr ? 0 : step->identity};
  }

  bool meet(Member& one) {
    bool alike = true;
    for (const auto& other : members_) {
      const auto& line = other->lines[one.entry->step_number.sequence % 2];
      if (line.step_number != one.entry->step_number) return false;
      alike &= line.identity == one.entry->identity;
    }
    if (!alike) {
      if (std::exchange(one.entry->mispredicted, true)) return false;
      one.agreement.mispredicted();
      return true;
    }
    complete(one);
    return true;
  }

  static void complete(Member& one) {
    one.completed = one.entry->step_number.sequence;
    one.generation = one.entry->step_number.generation;
    one.entry.reset();
    const auto take = [&one](CallId call_id) {
      const auto submitted = one.submitted.extract(call_id);
      EXPECT_FALSE(submitted.empty());
      return submitted.mapped();
    };
    std::string text;
    if (const auto* step = std::get_if<Step>(one.decision)) {
      for (const auto call_id : step->call_ids) text += (text.empty() ? "" : "+") + take(call_id);
      if (step->joined) text = "joined " + step->joined->name;
    } else if (const auto* rejection = std::get_if<Rejection>(one.decision)) {
      EXPECT_EQ(rejection->status.code(), StatusCode::kFixCall);
      text = "rejected " + take(rejection->call_id) + ": " + rejection->status.message();
    } else if (const auto* release = std::get_if<Release>(one.decision)) {
      text = take(release->call_id) + " released by " + std::to_string(release->last_rank);
    } else {
      text = "pass";
    }
    one.log.push_back(text);
    one.agreement.completed();
  }

  std::vector<std::unique_ptr<Member>> members_;
  std::map<std::pair<int, int>, std::deque<Bytes>> channels_;
  TimePoint now_;
};

}  // namespace farandole
