#include "timeline/trace_text.h"

#include <gtest/gtest.h>

#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/format.h"

namespace farandole {
namespace {

TimePoint at(std::int64_t nanoseconds) {
  return TimePoint(std::chrono::nanoseconds(1'000'000 + nanoseconds));
}

TraceEvent submitted(Handle handle, std::string_view name, std::int64_t nanoseconds) {
  TraceEvent event;
  event.kind = TraceEvent::Kind::kSubmitted;
  event.handle = handle;
  event.time = at(nanoseconds);
  event.operation = Operation::kAllreduce;
  event.dtype = DType::kFloat32;
  event.name = name;
  return event;
}

TraceEvent changed(Handle handle, TraceEvent::Kind kind, std::int64_t nanoseconds) {
  TraceEvent event;
  event.kind = kind;
  event.handle = handle;
  event.time = at(nanoseconds);
  return event;
}

class TraceTextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    text_.begin(at(0), 1 << 20, 1);
    text_.take();
  }
  // Adds a whole call and returns its lines.
  std::string trace_call(Handle handle, std::string_view name, std::int64_t nanoseconds) {
    text_.add(submitted(handle, name, nanoseconds));
    text_.add(changed(handle, TraceEvent::Kind::kRunning, nanoseconds + 1));
    text_.add(changed(handle, TraceEvent::Kind::kDone, nanoseconds + 2));
    return text_.take();
  }
  static int count(const std::string& text, std::string_view part) {
    int found = 0;
    for (auto place = text.find(part); place != std::string::npos;
         place = text.find(part, place + 1))
      ++found;
    return found;
  }

  TraceText text_{{.rank = 2, .size = 4, .pid = 712}};
};

TEST_F(TraceTextTest, WritesTheNameOfTheRank) {
  text_.begin(at(0), 1 << 20, 1);
  EXPECT_EQ(text_.take(),
            R"_({"ph":"M","pid":2,"tid":2,"name":"process_name","args":{"name":"rank 2 (pid 712)"}},
{"ph":"M","pid":2,"tid":2,"name":"process_sort_index","args":{"sort_index":2}},
)_");
}

TEST_F(TraceTextTest, WritesACallWithHorovodsNames) {
  const std::vector<std::int64_t> shape{2, 3};
  TraceEvent event = submitted(9, "grad/fc", 12'345);
  event.shape = shape;
  text_.add(event);
  text_.add(changed(9, TraceEvent::Kind::kRunning, 20'000));
  text_.add(changed(9, TraceEvent::Kind::kDone, 3'000'020'007));
  EXPECT_EQ(text_.take(),
            R"({"ph":"M","pid":2,"tid":6,"name":"thread_name","args":{"name":"allreduce.grad/fc"}},
{"ph":"B","ts":12.345,"pid":2,"tid":6,"name":"NEGOTIATE_ALLREDUCE"},
{"ph":"E","ts":20.000,"pid":2,"tid":6},
{"ph":"B","ts":20.000,"pid":2,"tid":6,"name":"ALLREDUCE"},
{"ph":"E","ts":3000020.007,"pid":2,"tid":6,"args":{"dtype":"float32","shape":"[2, 3]","bytes":24}},
)");
  event.handle = 10;
  text_.add(event);
  EXPECT_EQ(count(text_.take(), "thread_name"), 0) << "a track is named only once";
}

TEST_F(TraceTextTest, CallsWithoutATensorHaveNoArguments) {
  TraceEvent event = submitted(1, "barrier.0", 1);
  event.operation = Operation::kBarrier;
  event.group = 5;
  text_.add(event);
  text_.add(changed(1, TraceEvent::Kind::kRunning, 2));
  text_.add(changed(1, TraceEvent::Kind::kDone, 3));
  EXPECT_EQ(
      text_.take(),
      R"_({"ph":"M","pid":2,"tid":6,"name":"thread_name","args":{"name":"barrier.0 (group 5)"}},
{"ph":"B","ts":0.001,"pid":2,"tid":6,"name":"NEGOTIATE_BARRIER"},
{"ph":"E","ts":0.002,"pid":2,"tid":6},
{"ph":"B","ts":0.002,"pid":2,"tid":6,"name":"BARRIER"},
{"ph":"E","ts":0.003,"pid":2,"tid":6},
)_");
}

TEST_F(TraceTextTest, AFailedCallEndsInItsCurrentPhase) {
  text_.add(submitted(1, "a", 1));
  text_.add(changed(1, TraceEvent::Kind::kFailed, 2));
  TraceEvent join = submitted(2, "join", 3);
  join.operation = Operation::kJoin;
  text_.add(join);
  text_.add(changed(2, TraceEvent::Kind::kFailed, 4));
  const std::string lines = text_.take();
  EXPECT_EQ(count(lines, "\"ph\":\"B\""), 2);
  EXPECT_EQ(
      count(
          lines,
          R"("ts":0.002,"pid":2,"tid":6,"args":{"dtype":"float32","shape":"[]","bytes":4,"failed":true}})"),
      1);
  EXPECT_EQ(count(lines, R"("ts":0.004,"pid":2,"tid":10,"args":{"failed":true}})"), 1);
}

TEST_F(TraceTextTest, EventsOfUnknownCallsAreDropped) {
  text_.add(changed(1, TraceEvent::Kind::kRunning, 1));
  text_.add(changed(1, TraceEvent::Kind::kDone, 2));
  text_.add(changed(2, TraceEvent::Kind::kFailed, 3));
  EXPECT_EQ(text_.take(), "");
}

TEST_F(TraceTextTest, NamesAreEscaped) {
  const std::string lines = trace_call(1, "a\"b\\c\n\x1b[31m\xff\xc3\xa9/\x7f{}[],:", 1);
  EXPECT_TRUE(lines.find(R"("args":{"name":"allreduce.a\"b\\c\\x0a\\x1b[31m\\xff)"
                         "\xc3\xa9"
                         R"(/\\x7f{}[],:"}})") != std::string::npos)
      << lines;
}

TEST_F(TraceTextTest, TimesNeverDecreaseOnATrack) {
  trace_call(1, "a", 1000);
  // Another thread read its clock before the first call ended.
  const std::string lines = trace_call(2, "a", 990);
  EXPECT_EQ(count(lines, "\"ts\":1.002"), 4) << lines;
  // A time before the beginning of the file counts as its beginning.
  text_.add(submitted(3, "b", -5));
  EXPECT_EQ(count(text_.take(), "\"ts\":0.000"), 1);
}

TEST_F(TraceTextTest, EndsOpenCalls) {
  text_.add(submitted(1, "a", 1));
  text_.add(submitted(2, "b", 2));
  text_.add(changed(2, TraceEvent::Kind::kRunning, 3));
  text_.take();
  text_.end(at(7));
  EXPECT_EQ(
      text_.take(),
      R"({"ph":"E","ts":0.007,"pid":2,"tid":6,"args":{"dtype":"float32","shape":"[]","bytes":4,"unfinished":true}},
{"ph":"E","ts":0.007,"pid":2,"tid":10,"args":{"dtype":"float32","shape":"[]","bytes":4,"unfinished":true}},
)");
  text_.add(changed(1, TraceEvent::Kind::kDone, 8));
  EXPECT_EQ(text_.take(), "");
}

TEST_F(TraceTextTest, SaysHowManyCallsWereLost) {
  text_.add(submitted(1, "a", 1));
  text_.take();
  text_.mark_lost(at(5), 1234);
  EXPECT_EQ(
      text_.take(),
      R"({"ph":"E","ts":0.005,"pid":2,"tid":6,"args":{"dtype":"float32","shape":"[]","bytes":4,"unknown":true}},
{"ph":"i","ts":0.005,"pid":2,"tid":2,"name":"CALLS_LEFT_OUT","s":"p","args":{"calls":1234,"reason":"they came faster than they can be written"}},
)");
}

TEST_F(TraceTextTest, MarksWhereACycleBegins) {
  trace_call(1, "a", 1);
  EXPECT_EQ(count(text_.take(), "CYCLE_START"), 0) << "mark_cycles is off";
  text_.begin(at(0), 1 << 20, 1, true);
  text_.add(submitted(2, "a", 7));
  text_.add(submitted(3, "b", 8));
  const std::string lines = text_.take();
  EXPECT_EQ(count(lines, "CYCLE_START"), 1) << lines;
  EXPECT_EQ(
      count(lines,
            R"({"ph":"i","ts":0.007,"pid":2,"tid":2,"name":"CYCLE_START","s":"p","args":{}},)"),
      1);
  text_.add(changed(2, TraceEvent::Kind::kDone, 9));
  EXPECT_EQ(count(trace_call(4, "c", 10), "CYCLE_START"), 0) << "a call is in flight";
  text_.add(changed(3, TraceEvent::Kind::kFailed, 15));
  EXPECT_EQ(count(trace_call(5, "c", 20), "CYCLE_START"), 1);
}

TEST_F(TraceTextTest, DropsNewCallsAtItsSizeLimit) {
  text_.begin(at(0), 10'000, 1);
  std::size_t bytes = 0;
  for (Handle handle = 1; handle <= 1000; ++handle)
    bytes += trace_call(handle, "a", static_cast<std::int64_t>(handle) * 10).size();
  EXPECT_TRUE(text_.is_full());
  EXPECT_GT(bytes, 10'000U);
  EXPECT_LT(bytes, 11'000U);
  text_.end(at(20'000));
  const std::string lines = text_.take();
  EXPECT_EQ(count(lines, R"("name":"CALLS_LEFT_OUT")"), 1) << lines;
  EXPECT_EQ(count(lines, R"("reason":"the timeline was full")"), 1);
  // A new file has its full size limit again.
  text_.begin(at(0), 10'000, 1);
  EXPECT_FALSE(text_.is_full());
  EXPECT_EQ(count(trace_call(2000, "a", 0), "thread_name"), 1);
}

TEST_F(TraceTextTest, AFullTimelineIsReportedOnce) {
  text_.begin(at(0), 1, 1);
  text_.take();
  text_.add(submitted(1, "a", 1));
  text_.add(submitted(2, "b", 2));
  const std::string lines = text_.take();
  EXPECT_EQ(count(lines, "TIMELINE_IS_FULL"), 1);
  EXPECT_EQ(count(lines, "\"B\""), 0);
}

TEST_F(TraceTextTest, ManyNamesShareTracks) {
  text_.begin(at(0), 64 << 20, 1);
  for (std::size_t i = 0; i < kTraceTracksMax; ++i)
    trace_call(i + 1, format_text("name {}", i), static_cast<std::int64_t>(i));
  text_.add(submitted(5001, "x", 10'000));
  text_.add(submitted(5002, "y \"", 10'001));
  const std::string lines = text_.take();
  EXPECT_EQ(count(lines, R"("name":"further tensors")"), 2) << lines;
  text_.add(changed(5001, TraceEvent::Kind::kDone, 10'002));
  EXPECT_EQ(count(text_.take(), R"("bytes":4,"tensor":"x")"), 1);
  text_.add(submitted(5003, "z", 10'003));
  EXPECT_EQ(text_.take(), format_text("{{\"ph\":\"B\",\"ts\":10.003,\"pid\":2,\"tid\":{},\"name\":"
                                      "\"NEGOTIATE_ALLREDUCE\"}},\n",
                                      2 + 4 * (kTraceTracksMax + 1)));
  // Tensors that already had a track of their own keep it.
  EXPECT_EQ(count(trace_call(5004, "name 0", 10'004), "\"tid\":6"), 5 - 1);
}

TEST_F(TraceTextTest, AnotherEngineHasThreadsOfItsOwn) {
  text_.begin(at(0), 1 << 20, 2);
  EXPECT_EQ(count(trace_call(1, "a", 1), format_text("\"tid\":{}", 6 + 4 * (1 << 20))), 5);
}

// Worker 7 of an elastic job, in slot 2, which has had another process before.
TEST_F(TraceTextTest, WorkersOfAnElasticJobKeepTheirNamesAndTracks) {
  TraceText worker({.rank = 2, .pid = 712, .elastic_worker = 7});
  const std::string begin =
      R"({"ph":"M","pid":2,"tid":2,"name":"process_name","args":{"name":"worker 2"}},
{"ph":"M","pid":2,"tid":2,"name":"process_sort_index","args":{"sort_index":2}},
)";
  worker.begin(at(0), 1 << 20, 1);
  worker.add_group({.epoch = 3, .rank = 1, .size = 2}, at(1000));
  EXPECT_EQ(worker.take(), begin +
                               R"({"ph":"i","ts":1.000,"pid":2,"tid":2,"name":"GROUP","s":"p",)" +
                               R"("args":{"epoch":3,"rank":1,"size":2,"pid":712}},
)");
  worker.add(submitted(1, "a", 2000));
  worker.end(at(3000));
  EXPECT_EQ(count(worker.take(), R"("tid":524289)"), 3);
  worker.begin(at(0), 1 << 20, 1);
  worker.take();
  worker.add(submitted(1, "b", 4000));
  worker.add(submitted(2, "a", 5000));
  const std::string lines = worker.take();
  EXPECT_EQ(count(lines, R"("tid":524290)"), 2);
  EXPECT_EQ(count(lines, R"("tid":524289)"), 2) << "the same track as in the last group";
  TraceText next({.rank = 2, .pid = 713, .elastic_worker = 8});
  next.begin(at(0), 1 << 20, 1);
  next.add(submitted(1, "c", 6000));
  EXPECT_EQ(count(next.take(), R"("tid":589825)"), 2);
}

TEST_F(TraceTextTest, EveryLineOfAnEventNamesItsRank) {
  text_.begin(at(0), 1 << 20, 1, true);
  text_.add_clock_error(at(2) - at(1));
  text_.mark_lost(at(1), 3);
  const std::string lines = text_.take() + trace_call(1, "\",\"pid\":7,", 1);
  std::istringstream text(lines);
  for (std::string line; std::getline(text, line);) EXPECT_EQ(rank_of_trace_line(line), 2) << line;
}

TEST(TraceLine, ATextThatIsNoEventHasNoRank) {
  const std::string line = R"({"ph":"E","ts":1.002,"pid":12,"tid":3},)";
  EXPECT_EQ(rank_of_trace_line(line), 12);
  for (std::size_t bytes = 0; bytes < line.size(); ++bytes)
    EXPECT_EQ(rank_of_trace_line(line.substr(0, bytes)), std::nullopt);
  const std::string_view end = kTraceEnd;
  for (const std::string_view other :
       {end.substr(0, end.size() - 1), std::string_view("    "), std::string_view("["),
        std::string_view(R"({"ph":"E","ts":1.002,"pid":-1,"tid":3},)"),
        std::string_view(R"({"ph":"E","ts":1.002,"pid":2147483648,"tid":3},)"),
        std::string_view(R"({"ph":"E","ts":x,"pid":1,"tid":3},)"),
        std::string_view(R"({"ph":"E","ts":)"),
        std::string_view("{\"ph\":\"E\",\"pid\":1,\"tid\":3,\"name\":\"\x1b\"},")})
    EXPECT_EQ(rank_of_trace_line(other), std::nullopt) << other;
}

TEST(TraceHead, IsReadAsItWasWritten) {
  const TraceHead head{.job = "1764.712", .zero = at(123'456'789), .epoch_us = 1'764'000'000'000};
  const std::string text = head.text();
  EXPECT_EQ(
      text,
      "[\n{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"start\",\"args\":{\"job\":\"1764.712\","
      "\"clock_ns\":124456789,\"start_time_since_epoch_in_micros\":1764000000000}},\n");
  EXPECT_LE(text.size(), kTraceHeadBytesMax);
  const auto found = read_trace_head(text + "{\"ph\":…");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->job, head.job);
  EXPECT_EQ(found->zero, head.zero);
  EXPECT_EQ(found->epoch_us, head.epoch_us);
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes)
    EXPECT_FALSE(read_trace_head(text.substr(0, bytes)));
  std::mt19937 random(1);
  for (int i = 0; i < 10'000; ++i) {
    std::string other = text;
    char& letter = other[random() % other.size()];
    letter = static_cast<char>(letter ^ static_cast<char>(1 + random() % 255));
    if (const auto read = read_trace_head(other)) {
      EXPECT_NE(read->text(), text) << other;
    }
  }
}

}  // namespace
}  // namespace farandole
