#include "engine/submission_table.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
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
  EXPECT_EQ(records[3]->submission.name, "allreduce.unnamed.3");
  for (const int taken : {2, 1}) {
    Record& record = *records[static_cast<std::size_t>(taken)];
    table.finish(record);
    EXPECT_TRUE(table.remove(record.handle).status.ok());
  }
  EXPECT_EQ(name_of_next(table), "allreduce.unnamed.1");
  EXPECT_EQ(name_of_next(table), "allreduce.unnamed.2");
  EXPECT_EQ(name_of_next(table), "allreduce.unnamed.4");
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
  EXPECT_EQ(name_of_next(table), "allreduce.unnamed." + std::to_string(kDropped));
}

Submission named(std::string name, std::vector<std::int64_t> shape = {}) {
  Submission submission = unnamed();
  submission.name = std::move(name);
  submission.shape = std::move(shape);
  return submission;
}

void pass_through(SubmissionTable& table, const Submission& submission) {
  Record& record = **table.add(submission);
  table.finish(record);
  EXPECT_TRUE(table.remove(record.handle).status.ok());
}

TEST(SubmissionTable, AHandleIsFoundHoweverManyCameSince) {
  SubmissionTable table;
  const Handle first = (*table.add(named("first")))->handle;
  for (int i = 0; i < 1000; ++i) pass_through(table, unnamed());
  std::vector<Handle> handles;
  for (int i = 0; i < 1000; ++i) handles.push_back((*table.add(unnamed()))->handle);
  for (int i = 0; i < 1000; ++i) pass_through(table, unnamed());
  ASSERT_NE(table.find(first), nullptr);
  EXPECT_EQ(table.find(first)->submission.name, "first");
  EXPECT_EQ(table.oldest(), table.find(first));
  EXPECT_EQ(table.in_flight(), 1001U);
  EXPECT_EQ(table.in_flight(kWorld), 1001U);
  for (const Handle handle : handles) {
    ASSERT_NE(table.find(handle), nullptr);
    EXPECT_EQ(table.find(handle)->handle, handle);
    table.drop(handle);
    table.finish(*table.find(handle));
    EXPECT_EQ(table.find(handle), nullptr);
  }
  table.finish(*table.find(first));
  EXPECT_TRUE(table.remove(first).status.ok());
  EXPECT_EQ(table.find(first), nullptr);
  EXPECT_EQ(table.in_flight(), 0U);
}

TEST(SubmissionTable, ANameKeepsItsSignatureUntilItHasAnotherOne) {
  SubmissionTable table;
  pass_through(table, named("weight", {2, 3}));
  Record& again = **table.add(named("weight", {2, 3}));
  const KnownName* const name = again.name;
  EXPECT_EQ(name->known.digest, digest_of(name->known.signature));
  EXPECT_EQ(name->known.signature.dimensions, (std::vector<std::int64_t>{2, 3}));
  table.finish(again);
  Record& other = **table.add(named("weight", {7}));
  EXPECT_EQ(other.name, name);
  EXPECT_EQ(name->known.digest, digest_of(name->known.signature));
  EXPECT_EQ(name->known.signature.dimensions, (std::vector<std::int64_t>{7}));
  EXPECT_EQ(table.add(named("weight")).status().message(),
            "`weight` is already in flight: wait for its handle first, or give each of the "
            "concurrent calls its own name");
}

TEST(SubmissionTable, NamesInFlightStayAmongHoweverManyOthers) {
  SubmissionTable table;
  Record& stays = **table.add(named("the name of a tensor that is waited for"));
  for (std::size_t i = 0; i < 3 * kIdleNamesMax; ++i)
    pass_through(table, named("another tensor's name " + std::to_string(i)));
  EXPECT_EQ(stays.name->known.signature.name, stays.submission.name);
  EXPECT_FALSE(table.add(named(stays.submission.name)).ok());
}

TEST(SubmissionTable, WhatIsWithdrawnWasNeverThere) {
  SubmissionTable table;
  table.withdraw(**table.add(unnamed(Operation::kJoin)));
  EXPECT_EQ(table.in_flight(), 0U);
  EXPECT_EQ(name_of_next(table), "allreduce.unnamed.0");
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
