#include "launcher/caller_report.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <string>

#include "base/clock.h"
#include "base/descriptor.h"

namespace farandole {
namespace {

class CallerReportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    caller_ = Descriptor(ends[0]);
    launcher_ = Descriptor(ends[1]);
  }

  std::string read_available_text() {
    std::string bytes(1 << 16, '\0');
    const ssize_t count = ::read(caller_.get(), bytes.data(), bytes.size());
    bytes.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
    return bytes;
  }

  Poller poller_ = Poller::create().value();
  Descriptor caller_;
  Descriptor launcher_;
};

TEST_F(CallerReportTest, WritesALineForEachEvent) {
  CallerReport report(poller_, 7, launcher_.get());
  report.worker_started(3, 712);
  report.worker_ended(3, {.code = 5});
  report.worker_ended(0, {.signal = 9});
  report.report_first_cause(3, 712);
  EXPECT_TRUE(report.everything_is_written());
  EXPECT_EQ(read_available_text(),
            "started 3 712\nended 3 code 5\nended 0 signal 9\ncause 3 712\n");
}

TEST_F(CallerReportTest, NeverBlocksAndLosesNothing) {
  CallerReport report(poller_, 7, launcher_.get());
  std::string expected;
  for (int rank = 0; report.everything_is_written(); ++rank) {
    report.report_first_cause(rank, 7);
    expected += "cause " + std::to_string(rank) + " 7\n";
  }
  std::string received;
  while (!report.everything_is_written()) {
    received += read_available_text();
    for (const auto tag : poller_.wait(TimePoint::max())) {
      EXPECT_EQ(tag, 7);
      report.sink_writable();
    }
  }
  launcher_.reset();
  for (std::string next_text = read_available_text(); !next_text.empty();
       next_text = read_available_text())
    received += next_text;
  EXPECT_EQ(received, expected);
}

TEST_F(CallerReportTest, WorksWithoutADescriptor) {
  CallerReport report(poller_, 7, -1);
  report.worker_started(0, 1);
  EXPECT_TRUE(report.everything_is_written());
}

}  // namespace
}  // namespace farandole
