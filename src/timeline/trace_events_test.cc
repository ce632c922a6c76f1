#include "timeline/trace_events.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace farandole {
namespace {

TimePoint at_nanosecond(int nanoseconds) {
  return TimePoint(std::chrono::nanoseconds(nanoseconds));
}

Submission allgather_submission(std::string name, std::vector<std::int64_t> shape = {}) {
  Submission submission;
  submission.operation = Operation::kAllgather;
  submission.dtype = DType::kInt16;
  submission.group = 3;
  submission.name = std::move(name);
  submission.shape = std::move(shape);
  return submission;
}

std::vector<TraceEvent> events_of(const TraceBuffer& buffer) {
  std::vector<TraceEvent> events;
  std::size_t position = 0;
  while (const auto event = buffer.next(position)) events.push_back(*event);
  return events;
}

TEST(TraceBuffer, ReturnsTheRecordedEvents) {
  TraceBuffer buffer(1024);
  EXPECT_TRUE(buffer.empty());
  buffer.add_submitted(7, allgather_submission("ninechars", {2, 0, 5}), at_nanosecond(1));
  buffer.add_change(7, TraceEvent::Kind::kRunning, at_nanosecond(2));
  buffer.add_submitted(8, allgather_submission(""), at_nanosecond(3));
  buffer.add_change(7, TraceEvent::Kind::kFailed, at_nanosecond(4));
  EXPECT_FALSE(buffer.empty());
  const auto events = events_of(buffer);
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].kind, TraceEvent::Kind::kSubmitted);
  EXPECT_EQ(events[0].handle, 7U);
  EXPECT_EQ(events[0].time, at_nanosecond(1));
  EXPECT_EQ(events[0].operation, Operation::kAllgather);
  EXPECT_EQ(events[0].dtype, DType::kInt16);
  EXPECT_EQ(events[0].group, 3U);
  EXPECT_EQ(events[0].name, "ninechars");
  EXPECT_EQ(std::vector<std::int64_t>(events[0].shape.begin(), events[0].shape.end()),
            (std::vector<std::int64_t>{2, 0, 5}));
  EXPECT_EQ(events[1].kind, TraceEvent::Kind::kRunning);
  EXPECT_EQ(events[1].time, at_nanosecond(2));
  EXPECT_EQ(events[2].name, "");
  EXPECT_TRUE(events[2].shape.empty());
  EXPECT_EQ(events[3].kind, TraceEvent::Kind::kFailed);
  EXPECT_EQ(events[3].handle, 7U);
  buffer.clear();
  EXPECT_TRUE(buffer.empty());
  EXPECT_TRUE(events_of(buffer).empty());
}

TEST(TraceBuffer, DropsAllEventsAfterTheFirstThatDidNotFit) {
  TraceBuffer buffer(128);
  buffer.add_submitted(1, allgather_submission("a"), at_nanosecond(1));
  EXPECT_FALSE(buffer.is_half_full());
  buffer.add_submitted(2, allgather_submission("b"), at_nanosecond(2));
  EXPECT_TRUE(buffer.is_half_full());
  EXPECT_FALSE(buffer.lost_since());
  buffer.add_submitted(3, allgather_submission(std::string(100, 'c')), at_nanosecond(3));
  EXPECT_EQ(buffer.lost_since(), at_nanosecond(3));
  // This event would fit, but it comes after one that did not fit.
  buffer.add_change(1, TraceEvent::Kind::kDone, at_nanosecond(4));
  buffer.add_submitted(4, allgather_submission("d"), at_nanosecond(5));
  EXPECT_EQ(events_of(buffer).size(), 2U);
  EXPECT_EQ(buffer.lost_since(), at_nanosecond(3));
  EXPECT_EQ(buffer.lost_calls(), 2U);
  buffer.clear();
  EXPECT_FALSE(buffer.lost_since());
  EXPECT_EQ(buffer.lost_calls(), 0U);
  buffer.add_submitted(5, allgather_submission("e"), at_nanosecond(6));
  EXPECT_EQ(events_of(buffer).size(), 1U);
}

TEST(TraceBuffer, DropsAllEventsIfItHasNoRoom) {
  TraceBuffer buffer(0);
  buffer.add_change(1, TraceEvent::Kind::kDone, at_nanosecond(1));
  EXPECT_FALSE(buffer.empty());
  EXPECT_TRUE(events_of(buffer).empty());
  EXPECT_EQ(buffer.lost_since(), at_nanosecond(1));
  EXPECT_EQ(buffer.lost_calls(), 0U);
}

}  // namespace
}  // namespace farandole
