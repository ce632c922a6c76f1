#include "timeline/trace_events.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace farandole {
namespace {

TimePoint at(int nanoseconds) { return TimePoint(std::chrono::nanoseconds(nanoseconds)); }

Submission call(std::string name, std::vector<std::int64_t> shape = {}) {
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
  std::size_t place = 0;
  while (const auto event = buffer.next(place)) events.push_back(*event);
  return events;
}

TEST(TraceBuffer, ReturnsTheRecordedEvents) {
  TraceBuffer buffer(1024);
  EXPECT_TRUE(buffer.empty());
  buffer.submitted(7, call("ninechars", {2, 0, 5}), at(1));
  buffer.changed(7, TraceEvent::Kind::kRunning, at(2));
  buffer.submitted(8, call(""), at(3));
  buffer.changed(7, TraceEvent::Kind::kFailed, at(4));
  EXPECT_FALSE(buffer.empty());
  const auto events = events_of(buffer);
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].kind, TraceEvent::Kind::kSubmitted);
  EXPECT_EQ(events[0].handle, 7U);
  EXPECT_EQ(events[0].time, at(1));
  EXPECT_EQ(events[0].operation, Operation::kAllgather);
  EXPECT_EQ(events[0].dtype, DType::kInt16);
  EXPECT_EQ(events[0].group, 3U);
  EXPECT_EQ(events[0].name, "ninechars");
  EXPECT_EQ(std::vector<std::int64_t>(events[0].shape.begin(), events[0].shape.end()),
            (std::vector<std::int64_t>{2, 0, 5}));
  EXPECT_EQ(events[1].kind, TraceEvent::Kind::kRunning);
  EXPECT_EQ(events[1].time, at(2));
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
  buffer.submitted(1, call("a"), at(1));
  EXPECT_FALSE(buffer.is_half_full());
  buffer.submitted(2, call("b"), at(2));
  EXPECT_TRUE(buffer.is_half_full());
  EXPECT_FALSE(buffer.lost_since());
  buffer.submitted(3, call(std::string(100, 'c')), at(3));
  EXPECT_EQ(buffer.lost_since(), at(3));
  // This event would fit, but it comes after one that did not fit.
  buffer.changed(1, TraceEvent::Kind::kDone, at(4));
  buffer.submitted(4, call("d"), at(5));
  EXPECT_EQ(events_of(buffer).size(), 2U);
  EXPECT_EQ(buffer.lost_since(), at(3));
  EXPECT_EQ(buffer.lost_calls(), 2U);
  buffer.clear();
  EXPECT_FALSE(buffer.lost_since());
  EXPECT_EQ(buffer.lost_calls(), 0U);
  buffer.submitted(5, call("e"), at(6));
  EXPECT_EQ(events_of(buffer).size(), 1U);
}

TEST(TraceBuffer, WithoutAnyRoomLosesEverything) {
  TraceBuffer buffer(0);
  buffer.changed(1, TraceEvent::Kind::kDone, at(1));
  EXPECT_FALSE(buffer.empty());
  EXPECT_TRUE(events_of(buffer).empty());
  EXPECT_EQ(buffer.lost_since(), at(1));
  EXPECT_EQ(buffer.lost_calls(), 0U);
}

}  // namespace
}  // namespace farandole
