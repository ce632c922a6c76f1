#include "farandole/status.h"

#include <gtest/gtest.h>

#include <memory>

namespace farandole {
namespace {

TEST(Status, is_ok_without_a_message_by_default) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.message(), "");
}

TEST(Status, carries_code_and_message) {
  EXPECT_EQ(Status::retry("later").code(), StatusCode::kRetry);
  EXPECT_EQ(Status::rebuild_group("rank 2 died").code(), StatusCode::kRebuildGroup);
  EXPECT_EQ(Status::fix_call("shape").code(), StatusCode::kFixCall);
  EXPECT_EQ(Status::stop("no memory").code(), StatusCode::kStop);
  EXPECT_EQ(Status::rebuild_group("rank 2 died").message(), "rank 2 died");
  EXPECT_FALSE(Status::retry("later").ok());
}

TEST(Status, compares_code_and_message) {
  EXPECT_EQ(Status::stop("a"), Status::stop("a"));
  EXPECT_NE(Status::stop("a"), Status::stop("b"));
  EXPECT_NE(Status::stop("a"), Status::retry("a"));
  EXPECT_EQ(Status(), Status());
}

TEST(Result, holds_a_value) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(4));
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.status().ok());
  EXPECT_EQ(**result, 4);
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 4);
}

TEST(Result, holds_a_failure) {
  const Result<int> result(Status::fix_call("no such rank"));
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status(), Status::fix_call("no such rank"));
}

TEST(ResultDeathTest, misuse_stops_the_process) {
  const Result<int> failed(Status::fix_call("no such rank"));
  EXPECT_DEATH(static_cast<void>(failed.value()), "");
  EXPECT_DEATH(static_cast<void>(Result<int>{Status()}), "");
}

}  // namespace
}  // namespace farandole
