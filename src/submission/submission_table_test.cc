#include "submission/submission_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace farandole {
namespace {

Submission unnamed_call(Operation operation = Operation::kAllreduce) {
  Submission submission;
  submission.operation = operation;
  return submission;
}

std::string add_and_get_name(SubmissionTable& table) {
  const Result<Record*> record = table.add(unnamed_call());
  return record.ok() ? (*record)->submission.name : record.status().message();
}

// Until all results are taken, timing decides which results are left.
TEST(SubmissionTable, AutomaticNamesBeginAgainWhenAllResultsWereTaken) {
  SubmissionTable table;
  std::vector<Record*> records;
  for (int i = 0; i < 4; ++i) records.push_back(*table.add(unnamed_call()));
  EXPECT_EQ(records[3]->submission.name, "allreduce.noname.3");
  const auto take = [&](std::size_t index) {
    table.finish(*records[index]);
    EXPECT_TRUE(table.take(records[index]->handle).status.ok());
  };
  for (const std::size_t index : {2U, 1U, 3U}) take(index);
  records.push_back(*table.add(unnamed_call()));
  EXPECT_EQ(records[4]->submission.name, "allreduce.noname.4");
  take(4);
  take(0);
  Record& first = **table.add(unnamed_call());
  EXPECT_EQ(first.submission.name, "allreduce.noname.0");
  EXPECT_EQ(first.unnamed_number, 6U);
  EXPECT_EQ((*table.add(unnamed_call(Operation::kBroadcast)))->unnamed_number, 1U);
}

TEST(SubmissionTable, AutomaticNamesRepeat) {
  SubmissionTable table;
  constexpr std::size_t kInFlight = 8;
  std::vector<Handle> handles(kInFlight);
  std::set<std::string> names;
  for (std::size_t i = 0; i < 1'000'000; ++i) {
    Record& record = **table.add(unnamed_call());
    handles[i % kInFlight] = record.handle;
    names.insert(record.submission.name);
    if (i % kInFlight + 1 < kInFlight) continue;
    for (const Handle handle : handles) {
      table.finish(*table.find(handle));
      (void)table.take(handle);
    }
  }
  EXPECT_EQ(names.size(), kInFlight);
}

// The name of the later call depends only on which calls the program has made and taken. It does
// not depend on whether the earlier call has finished, or whether its handle was dropped.
TEST(SubmissionTable, OneNameServesTwoOperations) {
  const auto named_call = [](Operation operation) {
    Submission submission = unnamed_call(operation);
    submission.name = "x";
    return submission;
  };
  for (const bool drops : {false, true}) {
    SubmissionTable table;
    Record& first = **table.add(named_call(Operation::kAllreduce));
    if (drops) {
      table.finish(first);
      table.drop(first.handle);
    }
    Record& second = **table.add(named_call(Operation::kBroadcast));
    EXPECT_EQ(second.submission.name, "x (broadcast)");
    EXPECT_FALSE(table.add(named_call(Operation::kAllreduce)).ok());
    const Status second_status = table.add(named_call(Operation::kBroadcast)).status();
    EXPECT_EQ(second_status.message().substr(0, 13), "`x` is in use");
    if (drops) continue;
    table.finish(first);
    (void)table.take(first.handle);
    EXPECT_EQ((*table.add(named_call(Operation::kBroadcast)))->submission.name, "x");
    EXPECT_EQ((*table.add(named_call(Operation::kAllreduce)))->submission.name, "x (allreduce)");
  }
}

// The index of a dropped call stays in use, but needs no memory.
TEST(SubmissionTable, DroppedCallsLeaveOnlyTheirIndices) {
  SubmissionTable table;
  constexpr int kDroppedCalls = 100'000;
  for (int i = 0; i < kDroppedCalls; ++i) {
    Record& record = **table.add(unnamed_call());
    const Handle handle = record.handle;
    if (i % 2 == 0) table.drop(handle);
    table.finish(record);
    if (i % 2 == 1) table.drop(handle);
    ASSERT_EQ(table.find(handle), nullptr);
  }
  EXPECT_EQ(table.calls_in_flight(), 0U);
  EXPECT_EQ(add_and_get_name(table), "allreduce.noname." + std::to_string(kDroppedCalls));
}

Submission named_call(const std::string& name, GroupId group = kWorld) {
  Submission submission = unnamed_call();
  submission.name = name;
  submission.group = group;
  return submission;
}

bool is_accepted(SubmissionTable& table, const Submission& submission) {
  const Result<Record*> record = table.add(submission);
  if (record.ok()) table.roll_back(**record);
  return record.ok();
}

// The time at which a call finishes does not matter, because it differs between ranks.
TEST(SubmissionTable, ANameIsInUseUntilItsResultIsTaken) {
  SubmissionTable table;
  Record& record = **table.add(named_call("loss"));
  EXPECT_FALSE(is_accepted(table, named_call("loss")));
  table.finish(record);
  EXPECT_FALSE(is_accepted(table, named_call("loss")));
  (void)table.take(record.handle);
  EXPECT_TRUE(is_accepted(table, named_call("loss")));
}

TEST(SubmissionTable, TheNameOfADroppedCallStaysInUseInItsGroup) {
  for (const bool dropped_first : {true, false}) {
    SubmissionTable table;
    const Handle handle = (*table.add(named_call("loss")))->handle;
    if (dropped_first) table.drop(handle);
    EXPECT_FALSE(is_accepted(table, named_call("loss")));
    table.finish(*table.find(handle));
    if (!dropped_first) table.drop(handle);
    EXPECT_EQ(table.find(handle), nullptr);
    EXPECT_FALSE(is_accepted(table, named_call("loss")));
    EXPECT_TRUE(is_accepted(table, named_call("loss", 7)));
    EXPECT_EQ(table.untaken_results(kWorld), 1U);
  }
}

TEST(SubmissionTable, AfterAJoinCallsAreRejectedUntilItsResultIsTaken) {
  SubmissionTable table;
  Record& join = **table.add(unnamed_call(Operation::kJoin));
  EXPECT_FALSE(is_accepted(table, unnamed_call()));
  EXPECT_TRUE(is_accepted(table, unnamed_call(Operation::kSend)));
  EXPECT_FALSE(is_accepted(table, unnamed_call())) << "a message does not end the join";
  table.finish(join);
  EXPECT_FALSE(is_accepted(table, unnamed_call()));
  (void)table.take(join.handle);
  EXPECT_TRUE(is_accepted(table, unnamed_call()));
}

// Only two ranks make a message. If the name of a message changed the names of other calls, the
// ranks could not match these calls.
TEST(SubmissionTable, MessagesAndOtherCallsMayHaveTheSameName) {
  SubmissionTable table;
  for (const Operation operation : {Operation::kSend, Operation::kReceive, Operation::kAllreduce}) {
    Submission submission = unnamed_call(operation);
    submission.name = "x";
    const auto record = table.add(submission);
    ASSERT_TRUE(record.ok());
    if (operation == Operation::kAllreduce) EXPECT_EQ((*record)->submission.name, "x");
    if (operation == Operation::kSend) table.drop((*record)->handle);
    if (operation == Operation::kSend) table.finish(**record);
  }
}

// Returns the unnamed calls among `calls` with the operation of `call`; empty if `call` has a name.
std::vector<Handle> unnamed_calls_of_same_operation(SubmissionTable& table, Handle call,
                                                    const std::vector<Handle>& calls) {
  std::vector<Handle> alternatives;
  if (table.find(call)->unnamed_number == 0) return alternatives;
  for (const Handle handle : calls) {
    const Record& record = *table.find(handle);
    if (record.unnamed_number != 0 &&
        record.submission.operation == table.find(call)->submission.operation)
      alternatives.push_back(handle);
  }
  return alternatives;
}

// Runs a random program. `timing` is a seed. It decides when each call finishes, when a handle
// without a wait is dropped, and which result of several unnamed calls of one operation is taken.
// Returns the names of the submissions, or their errors.
std::vector<std::string> run_random_program(unsigned program, unsigned timing) {
  std::mt19937 program_random(program);
  std::mt19937 timing_random(timing);
  const auto random_below = [](std::mt19937& random, std::size_t end) { return random() % end; };
  SubmissionTable table;
  std::vector<Handle> kept_handles;
  std::vector<Handle> never_taken;
  std::vector<Handle> in_flight;
  std::vector<std::string> names;
  const auto finish = [&](Handle handle) {
    if (std::erase(in_flight, handle) > 0) table.finish(*table.find(handle));
  };
  for (int step = 0; step < 300; ++step) {
    const bool takes_result = random_below(program_random, 3) == 0;
    Submission call = random_below(program_random, 2) == 0
                          ? unnamed_call()
                          : named_call({"abcdef"[random_below(program_random, 6)]});
    if (random_below(program_random, 4) == 0) call.operation = Operation::kBroadcast;
    if (random_below(program_random, 50) == 0) call.operation = Operation::kJoin;
    const bool is_kept = random_below(program_random, 8) != 0 || call.operation == Operation::kJoin;
    if (takes_result && !kept_handles.empty()) {
      const auto position =
          static_cast<std::ptrdiff_t>(random_below(program_random, kept_handles.size()));
      Handle chosen_handle = kept_handles[static_cast<std::size_t>(position)];
      if (const auto alternatives =
              unnamed_calls_of_same_operation(table, chosen_handle, kept_handles);
          !alternatives.empty()) {
        chosen_handle = alternatives[random_below(timing_random, alternatives.size())];
        std::iter_swap(std::ranges::find(kept_handles, chosen_handle),
                       kept_handles.begin() + position);
      }
      finish(chosen_handle);
      (void)table.take(chosen_handle);
      kept_handles.erase(kept_handles.begin() + position);
    } else if (const Result<Record*> record = table.add(call); record.ok()) {
      names.push_back((*record)->submission.name);
      in_flight.push_back((*record)->handle);
      (is_kept ? kept_handles : never_taken).push_back((*record)->handle);
    } else {
      names.push_back(record.status().message());
    }
    if (!in_flight.empty() && random_below(timing_random, 2) == 0)
      finish(in_flight[random_below(timing_random, in_flight.size())]);
    if (!never_taken.empty() && random_below(timing_random, 2) == 0) {
      table.drop(never_taken.back());
      std::erase(in_flight, table.find(never_taken.back()) == nullptr ? never_taken.back() : 0);
      never_taken.pop_back();
    }
  }
  return names;
}

TEST(SubmissionTable, NamesDependOnTheProgramAndNotOnTiming) {
  for (unsigned program = 0; program < 200; ++program)
    ASSERT_EQ(run_random_program(program, 1), run_random_program(program, 2))
        << "program " << program;
}

TEST(SubmissionTable, ARemovedGroupLeavesNoState) {
  SubmissionTable table;
  table.forget_group(7);  // there was no call in this group
  table.roll_back(**table.add(named_call("x", 7)));
  table.forget_group(7);
  EXPECT_EQ(table.untaken_results(7), 0U);
}

// One of every thousand calls stays in flight while many newer calls come and finish.
TEST(SubmissionTable, AnOldHandleIsFoundAfterManyNewerOnes) {
  SubmissionTable table;
  constexpr Handle kInterval = 1000;
  std::vector<Record*> kept_records;
  for (Handle number = 0; number < 20 * kInterval; ++number) {
    Record& record = **table.add(unnamed_call());
    if (number % kInterval == 0) {
      kept_records.push_back(&record);
      continue;
    }
    table.finish(record);
    EXPECT_TRUE(table.take(record.handle).status.ok());
  }
  EXPECT_EQ(table.oldest_call(), kept_records.front());
  EXPECT_EQ(table.calls_in_flight(), kept_records.size());
  for (Record* const record : kept_records) {
    const Handle handle = record->handle;
    ASSERT_EQ(table.find(handle), record);
    table.finish(*record);
    EXPECT_TRUE(table.take(handle).status.ok());
    EXPECT_EQ(table.find(handle), nullptr);
  }
  EXPECT_EQ(table.calls_in_flight(), 0U);
}

TEST(SubmissionTable, ARolledBackSubmissionLeavesNoState) {
  SubmissionTable table;
  table.roll_back(**table.add(unnamed_call(Operation::kJoin)));
  table.roll_back(**table.add(unnamed_call()));
  EXPECT_EQ(table.calls_in_flight(), 0U);
  Record& record = **table.add(unnamed_call());
  EXPECT_EQ(record.submission.name, "allreduce.noname.0");
  EXPECT_EQ(record.unnamed_number, 1U);
  EXPECT_EQ(table.untaken_results(kWorld), 1U);
  EXPECT_EQ(table.untaken_results(7), 0U);
}

// A program may lose the handle, for example when it is interrupted.
TEST(SubmissionTable, AJoinWhoseHandleIsDroppedEnds) {
  for (const bool finishes_first : {false, true}) {
    SubmissionTable table;
    EXPECT_EQ(add_and_get_name(table), "allreduce.noname.0");
    table.finish(*table.find(1));
    Record& join = **table.add(unnamed_call(Operation::kJoin));
    const Handle handle = join.handle;
    EXPECT_FALSE(table.add(unnamed_call()).ok()) << "not before all ranks have joined";
    join.outcome.last_joined = 0;
    if (finishes_first) table.finish(join);
    table.drop(handle);
    if (!finishes_first) table.finish(join);
    EXPECT_EQ(add_and_get_name(table), "allreduce.noname.0") << "the names begin anew";
  }
}

// Before a join, the ranks have made different calls, and have taken different results.
TEST(SubmissionTable, AfterAJoinAllNamesAreFree) {
  SubmissionTable table;
  const auto add = [&table](const Submission& submission) {
    Record& record = **table.add(submission);
    table.finish(record);
    return record.handle;
  };
  Submission named_call = unnamed_call();
  named_call.name = "x";
  const Handle first_unnamed = add(unnamed_call());
  table.drop(add(unnamed_call()));
  const Handle first_named = add(named_call);
  named_call.name = "dropped";
  table.drop(add(named_call));
  Submission submission_in_other_group = unnamed_call();
  submission_in_other_group.group = 1;
  const Handle call_in_other_group = add(submission_in_other_group);
  Record& join = **table.add(unnamed_call(Operation::kJoin));
  join.outcome.last_joined = 0;
  table.finish(join);
  (void)table.take(join.handle);

  EXPECT_EQ(add_and_get_name(table), "allreduce.noname.0");
  EXPECT_TRUE(table.add(named_call).ok());
  named_call.name = "x";
  EXPECT_TRUE(table.add(named_call).ok());
  EXPECT_EQ((*table.add(submission_in_other_group))->submission.name, "allreduce.noname.1");
  // The program can still take the old results. This must not free a name a second time.
  for (const Handle handle : {first_unnamed, first_named, call_in_other_group})
    EXPECT_TRUE(table.take(handle).status.ok());
  EXPECT_EQ(add_and_get_name(table), "allreduce.noname.1");
  EXPECT_FALSE(table.add(named_call).ok());
  EXPECT_EQ((*table.add(submission_in_other_group))->submission.name, "allreduce.noname.2");
}

TEST(SubmissionTable, TheOldestCallIsNotAJoin) {
  SubmissionTable table;
  Submission join = unnamed_call(Operation::kJoin);
  join.group = 1;
  ASSERT_TRUE(table.add(join).ok());
  EXPECT_EQ(table.oldest_call(), nullptr);
  Record* const first = *table.add(unnamed_call());
  ASSERT_TRUE(table.add(unnamed_call()).ok());
  EXPECT_EQ(table.oldest_call(), first);
}

}  // namespace
}  // namespace farandole
