#include "submission/submission_table.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace farandole {
namespace {

Submission unnamed(Operation operation = Operation::kAllreduce) {
  Submission submission;
  submission.operation = operation;
  return submission;
}

std::string name_of_next(SubmissionTable& table) {
  const Result<Record*> record = table.add(unnamed());
  return record.ok() ? (*record)->submission.name : record.status().message();
}

TEST(SubmissionTable, AnAutomaticNameIsTheLowestThatIsFree) {
  SubmissionTable table;
  std::vector<Record*> records;
  for (int i = 0; i < 4; ++i) records.push_back(*table.add(unnamed()));
  EXPECT_EQ(records[3]->submission.name, "allreduce.noname.3");
  for (const int taken : {2, 1}) {
    Record& record = *records[static_cast<std::size_t>(taken)];
    table.finish(record);
    EXPECT_TRUE(table.remove(record.handle).status.ok());
  }
  EXPECT_EQ(name_of_next(table), "allreduce.noname.1");
  EXPECT_EQ(name_of_next(table), "allreduce.noname.2");
  EXPECT_EQ(name_of_next(table), "allreduce.noname.4");
}

// The index of a dropped call stays in use, and costs later calls nothing.
TEST(SubmissionTable, ManyDroppedCallsLeaveNothingButTheirIndices) {
  SubmissionTable table;
  constexpr int kDropped = 100'000;
  for (int i = 0; i < kDropped; ++i) {
    Record& record = **table.add(unnamed());
    const Handle handle = record.handle;
    if (i % 2 == 0) table.drop(handle);
    table.finish(record);
    if (i % 2 == 1) table.drop(handle);
    ASSERT_EQ(table.find(handle), nullptr);
  }
  EXPECT_EQ(table.in_flight(), 0U);
  EXPECT_EQ(name_of_next(table), "allreduce.noname." + std::to_string(kDropped));
}

// Also when it is over: when that is, the program cannot know.
TEST(SubmissionTable, ANameIsInUseUntilTheProgramKnowsThatTheCallIsOver) {
  SubmissionTable table;
  Submission named = unnamed();
  named.name = "loss";
  const auto is_free = [&] {
    const Result<Record*> record = table.add(named);
    if (record.ok()) table.withdraw(**record);
    return record.ok();
  };
  Record& seen = **table.add(named);
  EXPECT_FALSE(is_free());
  table.finish(seen);
  EXPECT_FALSE(is_free());
  table.free_name(seen);
  EXPECT_TRUE(is_free());
  for (const bool dropped_first : {true, false}) {
    Record& dropped = **table.add(named);
    const Handle handle = dropped.handle;
    if (dropped_first) table.drop(handle);
    EXPECT_FALSE(is_free());
    table.finish(dropped);
    if (!dropped_first) table.drop(handle);
    EXPECT_TRUE(is_free());
  }
}

TEST(SubmissionTable, AGroupThatIsGoneLeavesOnlyWhatIsInUse) {
  SubmissionTable table;
  Submission named = unnamed();
  named.group = 7;
  table.forget_names(7);  // nobody has called anything there
  named.name = "seen";
  table.withdraw(**table.add(named));
  named.name = "unseen";
  Record& unseen = **table.add(named);
  table.finish(unseen);
  table.forget_names(7);
  EXPECT_EQ(unseen.known->known.signature.name, "unseen");
  EXPECT_TRUE(table.remove(unseen.handle).status.ok());
  table.forget_names(7);
  EXPECT_EQ(table.in_flight(7), 0U);
}

// Some take their results late, or never.
TEST(SubmissionTable, AHandleIsFoundHoweverManyCameAfterIt) {
  SubmissionTable table;
  constexpr Handle kEach = 1000;
  std::vector<Record*> kept;
  for (Handle number = 0; number < 20 * kEach; ++number) {
    Record& record = **table.add(unnamed());
    if (number % kEach == 0) {
      kept.push_back(&record);
      continue;
    }
    table.finish(record);
    EXPECT_TRUE(table.remove(record.handle).status.ok());
  }
  EXPECT_EQ(table.oldest(), kept.front());
  EXPECT_EQ(table.in_flight(), kept.size());
  for (Record* const record : kept) {
    const Handle handle = record->handle;
    ASSERT_EQ(table.find(handle), record);
    table.finish(*record);
    EXPECT_TRUE(table.remove(handle).status.ok());
    EXPECT_EQ(table.find(handle), nullptr);
  }
  EXPECT_EQ(table.in_flight(), 0U);
}

TEST(SubmissionTable, WhatIsWithdrawnWasNeverThere) {
  SubmissionTable table;
  table.withdraw(**table.add(unnamed(Operation::kJoin)));
  EXPECT_EQ(table.in_flight(), 0U);
  EXPECT_EQ(name_of_next(table), "allreduce.noname.0");
  EXPECT_EQ(table.in_flight(kWorld), 1U);
  EXPECT_EQ(table.in_flight(7), 0U);
}

TEST(SubmissionTable, TheOldestIsNoJoin) {
  SubmissionTable table;
  Submission join = unnamed(Operation::kJoin);
  join.group = 1;
  ASSERT_TRUE(table.add(join).ok());
  EXPECT_EQ(table.oldest(), nullptr);
  Record* const first = *table.add(unnamed());
  ASSERT_TRUE(table.add(unnamed()).ok());
  EXPECT_EQ(table.oldest(), first);
}

}  // namespace
}  // namespace farandole
