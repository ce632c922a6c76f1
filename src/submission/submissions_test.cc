#include "submission/submissions.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace farandole {
namespace {

constexpr GroupId kGroup = 1;

Submission call_named(const std::string& name, GroupId group = kWorld) {
  Submission submission;
  submission.operation = Operation::kBarrier;
  submission.name = name;
  submission.group = group;
  return submission;
}

class SubmissionsTest : public testing::Test {
 protected:
  SubmissionsTest() {
    submissions_.open_group(kWorld);
    submissions_.open_group(kGroup);
  }

  Status add(const std::vector<Submission>& batch) {
    handles_.assign(batch.size(), 0);
    return submissions_.add(batch, handles_, TimePoint{});
  }
  // Takes all added calls and finishes them.
  void finish_all() {
    std::vector<Record*> arrived;
    submissions_.take_arrived(arrived);
    for (Record* const record : arrived) submissions_.finish(*record);
  }

  Submissions submissions_;
  std::vector<Handle> handles_;
};

TEST_F(SubmissionsTest, ABatchArrivesInItsOrder) {
  ASSERT_TRUE(add({call_named("a"), call_named("b")}).ok());
  const std::vector<Handle> batch_handles = handles_;
  ASSERT_TRUE(add({call_named("c")}).ok());
  EXPECT_EQ(submissions_.newest_records(1).front()->submission.name, "c");
  EXPECT_EQ(submissions_.calls_in_flight(), 3U);
  EXPECT_EQ(submissions_.count_unfinished({batch_handles[0], 2}), 2U);
  std::vector<Record*> arrived;
  submissions_.take_arrived(arrived);
  ASSERT_EQ(arrived.size(), 3U);
  EXPECT_EQ(arrived[0]->submission.name, "a");
  EXPECT_NE(arrived[0]->context.batch, 0U);
  EXPECT_EQ(arrived[0]->context.batch, arrived[1]->context.batch);
  EXPECT_EQ(arrived[2]->context.batch, 0U);
  EXPECT_EQ(submissions_.oldest_call(), arrived[0]);
  submissions_.finish(*arrived[1]);
  EXPECT_EQ(submissions_.count_unfinished({batch_handles[0], 2}), 1U);
}

TEST_F(SubmissionsTest, ABatchIsAddedAsAWholeOrNotAtAll) {
  ASSERT_TRUE(add({call_named("a")}).ok());
  EXPECT_EQ(add({call_named("b"), call_named("a")}).code(), StatusCode::kFixCall);
  EXPECT_EQ(submissions_.calls_in_flight(), 1U);
  EXPECT_TRUE(add({call_named("b")}).ok());
}

TEST_F(SubmissionsTest, ResultsAreTakenOnce) {
  ASSERT_TRUE(add({call_named("a")}).ok());
  const Handle handle = handles_[0];
  EXPECT_FALSE(submissions_.poll(handle));
  EXPECT_EQ(submissions_.peek(handle).status, Status::retry("`a` is not done yet"));
  EXPECT_EQ(submissions_.take(handle).status, Status::retry("`a` is not done yet"));
  finish_all();
  EXPECT_TRUE(submissions_.poll(handle));
  EXPECT_TRUE(submissions_.peek(handle).status.ok());
  EXPECT_TRUE(submissions_.take(handle).status.ok());
  EXPECT_EQ(submissions_.take(handle).status.code(), StatusCode::kFixCall);
  EXPECT_EQ(submissions_.count_unfinished({handle, 1}), 0U);
}

// At a quiescent point the program has seen the end of all earlier calls, or has dropped them.
TEST_F(SubmissionsTest, ContextsDependOnWhatTheProgramHasSeen) {
  const auto quiescent_point_count = [&] {
    return submissions_.newest_records(1).front()->context.quiescent_points;
  };
  ASSERT_TRUE(add({call_named("a")}).ok());
  const std::uint32_t first_count = quiescent_point_count();
  const Handle handle = handles_[0];
  ASSERT_TRUE(add({call_named("b")}).ok());
  EXPECT_EQ(quiescent_point_count(), first_count);
  submissions_.drop(handles_[0]);
  finish_all();
  EXPECT_TRUE(submissions_.poll(handle));
  ASSERT_TRUE(add({call_named("c")}).ok());
  EXPECT_EQ(quiescent_point_count(), first_count + 1);
}

TEST_F(SubmissionsTest, AGroupIsClosedOnlyAfterAllResultsAreTaken) {
  ASSERT_TRUE(add({call_named("a", kGroup)}).ok());
  const Handle handle = handles_[0];
  EXPECT_EQ(submissions_.close_group(kGroup).code(), StatusCode::kFixCall);
  finish_all();
  EXPECT_EQ(submissions_.close_group(kGroup).code(), StatusCode::kFixCall);
  (void)submissions_.take(handle);
  EXPECT_TRUE(submissions_.close_group(kGroup).ok());
  EXPECT_EQ(add({call_named("b", kGroup)}),
            Status::fix_call("group 1 is being removed; no more calls can be made in it"));
  EXPECT_TRUE(add({call_named("b")}).ok());
  submissions_.reopen_group(kGroup);
  EXPECT_TRUE(add({call_named("b", kGroup)}).ok());
}

TEST_F(SubmissionsTest, AnEndedGroupRejectsCallsWithItsFirstReason) {
  const Status first_reason = Status::rebuild_group("over");
  submissions_.end_group(kGroup, first_reason);
  submissions_.end_group(kGroup, Status::stop("later"));
  EXPECT_TRUE(submissions_.is_over(kGroup));
  EXPECT_EQ(add({call_named("a", kGroup)}), first_reason);
  EXPECT_FALSE(submissions_.is_over(kWorld));
  submissions_.forget_group(kGroup);
  EXPECT_FALSE(submissions_.is_over(kGroup));
}

}  // namespace
}  // namespace farandole
