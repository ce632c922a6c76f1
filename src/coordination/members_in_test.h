// Members: all members of a group in one thread, for tests. Messages wait in channels until a test
// delivers them. Each member writes its entries to two lines, which the other members read, as on
// the flag board.
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
    auto& state = at(member);
    auto& interned = state.interned[digest_of(signature)];
    if (!interned) interned = std::make_unique<InternedSignature>(signature);
    const CallId call_id = ++state.call_id_last;
    now_ += std::chrono::nanoseconds(1);  // no two submissions have the same time
    state.agreement.submit(call_id, *interned, context, now_);
    state.submitted[call_id] = signature.name;
  }

  void submit_everywhere(const Signature& signature) {
    for (int member = 0; member < size(); ++member) submit(member, signature);
  }

  // Moves the messages of all members into the channels; returns their number.
  int collect_messages() {
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

  // Delivers at most `messages_max` messages from one member to another.
  void deliver(int from, int to, int messages_max = 1 << 30) {
    auto& channel = channels_[{from, to}];
    for (; !channel.empty() && messages_max > 0; channel.pop_front(), --messages_max)
      ASSERT_EQ(at(to).agreement.receive(from, channel.front(), now_), Status());
  }

  // Delivers at most `messages_max` messages; returns true if it delivered any.
  bool deliver_up_to(int from, int to, int messages_max) {
    const bool delivers = messages_max > 0 && !channels_[{from, to}].empty();
    deliver(from, to, messages_max);
    return delivers;
  }

  // Delivers all messages, and all messages that are sent in response. Returns their number.
  int deliver_all() {
    int messages = 0;
    for (bool progress = true; progress;) {
      messages += collect_messages();
      progress = false;
      for (auto& [ends, channel] : channels_) {
        if (channel.empty()) continue;
        progress = true;
        deliver(ends.first, ends.second);
      }
    }
    return messages;
  }

  // Lets one member roll back, enter or complete one step. Returns true if it did one of these.
  bool advance(int member) {
    auto& state = at(member);
    if (state.agreement.take_rollback()) {
      EXPECT_TRUE(state.entry.has_value());
      state.lines[state.entry->step_number.sequence % 2] = {};
      state.entry.reset();
      return true;
    }
    if (!state.entry) {
      const auto* decision = state.agreement.next_decision();
      if (decision == nullptr) return false;
      state.entry = entry_of(*decision);
      state.decision = decision;
      EXPECT_EQ(state.entry->step_number.sequence, state.completed + 1);
      state.lines[state.entry->step_number.sequence % 2] = *state.entry;
      return true;
    }
    return compare_and_complete(state);
  }

  // Runs until no member makes progress; returns the number of messages.
  int run() {
    int messages = 0;
    for (bool progress = true; progress;) {
      progress = false;
      for (int member = 0; member < size(); ++member) progress |= advance(member);
      const int delivered = deliver_all();
      messages += delivered;
      progress |= delivered > 0;
    }
    return messages;
  }

  // Returns the decisions that this member has completed since the last call, as "a", "a+b",
  // "joined a", "rejected x: why", "no-op" or "j released by 3".
  std::vector<std::string> take_log(int member) { return std::exchange(at(member).log, {}); }
  // Whether this member has submitted this name, and the call has not been completed or rejected
  // yet.
  bool is_in_flight(int member, const std::string& name) {
    for (const auto& [call_id, submitted] : at(member).submitted)
      if (submitted == name) return true;
    return false;
  }
  bool has_nothing_in_flight(int member) { return at(member).submitted.empty(); }
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
        std::visit([](const auto& alternative) { return alternative.step_number; }, decision);
    return {step_number, step == nullptr ? 0 : step->identity};
  }

  bool compare_and_complete(Member& state) {
    bool all_equal = true;
    for (const auto& other : members_) {
      const auto& line = other->lines[state.entry->step_number.sequence % 2];
      if (line.step_number != state.entry->step_number) return false;
      all_equal &= line.identity == state.entry->identity;
    }
    if (!all_equal) {
      if (std::exchange(state.entry->mispredicted, true)) return false;
      state.agreement.record_misprediction();
      return true;
    }
    complete(state);
    return true;
  }

  static void complete(Member& state) {
    state.completed = state.entry->step_number.sequence;
    state.generation = state.entry->step_number.generation;
    state.entry.reset();
    const auto take_name = [&state](CallId call_id) {
      const auto submitted = state.submitted.extract(call_id);
      EXPECT_FALSE(submitted.empty());
      return submitted.mapped();
    };
    std::string text;
    if (const auto* step = std::get_if<Step>(state.decision)) {
      for (const auto call_id : step->call_ids)
        text += (text.empty() ? "" : "+") + take_name(call_id);
      if (step->signature_if_joined) text = "joined " + step->signature_if_joined->name;
    } else if (const auto* rejection = std::get_if<Rejection>(state.decision)) {
      EXPECT_EQ(rejection->status.code(), StatusCode::kFixCall);
      text = "rejected " + take_name(rejection->call_id) + ": " + rejection->status.message();
    } else if (const auto* release = std::get_if<Release>(state.decision)) {
      text = take_name(release->call_id) + " released by " + std::to_string(release->last_rank);
    } else {
      text = "no-op";
    }
    state.log.push_back(text);
    state.agreement.record_completion();
  }

  std::vector<std::unique_ptr<Member>> members_;
  std::map<std::pair<int, int>, std::deque<Bytes>> channels_;
  TimePoint now_;
};

}  // namespace farandole
