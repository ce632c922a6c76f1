#include "timeline/trace_reader.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "timeline/trace_file.h"
#include "timeline/trace_line_in_test.h"

namespace farandole {
namespace {

class TraceReaderTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ + "/trace.json"; }
  void write(const std::string& lines) const {
    auto file = TraceFile::open(path(), {.job = "one"});
    ASSERT_EQ(file.status(), Status());
    ASSERT_EQ(file->append(lines), Status());
  }
  std::string read(const TraceReader::Ranks& ranks) const {
    auto reader = TraceReader::open(path(), "one", ranks);
    EXPECT_EQ(reader.status(), Status());
    std::string all;
    while (reader.ok() && !reader->at_end()) {
      const auto lines = reader->next();
      EXPECT_EQ(lines.status(), Status());
      all += lines.value();
    }
    return all;
  }

  std::string folder_ = "/tmp/farandole-reader-XXXXXX";
};

TEST_F(TraceReaderTest, ReturnsTheLinesOfItsRanks) {
  write(trace_line_of(0) + trace_line_of(2) + trace_line_of(1) + trace_line_of(3) +
        trace_line_of(2, "y"));
  EXPECT_EQ(read({.first_rank = 1, .ranks = 2}),
            trace_line_of(2) + trace_line_of(1) + trace_line_of(2, "y"));
  EXPECT_EQ(read({.first_rank = 0, .ranks = 1}), trace_line_of(0)) << "the head is not an event";
  EXPECT_EQ(read({.first_rank = 4, .ranks = 9}), "");
}

TEST_F(TraceReaderTest, ReadsLongFilesAndLongLines) {
  const std::string long_line = trace_line_of(2, std::string(200'000, 'z'));
  std::string lines;
  std::string own;
  for (int i = 0; i < 5000; ++i) {
    lines += trace_line_of(1) + trace_line_of(2, std::to_string(i));
    own += trace_line_of(2, std::to_string(i));
  }
  write(lines + long_line + trace_line_of(2));
  EXPECT_EQ(read({.first_rank = 2, .ranks = 1}), own + long_line + trace_line_of(2));
}

TEST_F(TraceReaderTest, DropsTheLineOfAKilledRank) {
  write(trace_line_of(2));
  std::filesystem::resize_file(path(), std::filesystem::file_size(path()) - kTraceEnd.size());
  std::ofstream(path(), std::ios::app) << trace_line_of(2).substr(0, 20);
  EXPECT_EQ(read({.first_rank = 2, .ranks = 1}), trace_line_of(2));
}

TEST_F(TraceReaderTest, DropsLinesThatAreTooLong) {
  write(trace_line_of(2));
  std::ofstream(path(), std::ios::app) << std::string(3 * kTraceLineBytesMax, 'z') << "\n";
  std::ofstream(path(), std::ios::app) << trace_line_of(2, "y");
  EXPECT_EQ(read({.first_rank = 2, .ranks = 1}), trace_line_of(2) + trace_line_of(2, "y"));
}

TEST_F(TraceReaderTest, ReadsNothingThatIsAddedOrCutLater) {
  write(trace_line_of(2));
  auto reader = TraceReader::open(path(), "one", {.first_rank = 2, .ranks = 1});
  write(trace_line_of(2, std::string(1000, 'y')));
  EXPECT_EQ(reader->next().value(), trace_line_of(2));
  EXPECT_TRUE(reader->at_end());
  auto other = TraceReader::open(path(), "one", {.first_rank = 2, .ranks = 1});
  std::filesystem::resize_file(path(), 0);
  EXPECT_EQ(other->next().value(), "");
  EXPECT_TRUE(other->at_end());
}

TEST_F(TraceReaderTest, ReturnsTheFirstEvent) {
  write("");
  EXPECT_EQ(TraceReader::open(path(), "one", {})->first_event(), "");
  write(trace_line_of(3) + trace_line_of(2));
  const auto reader = TraceReader::open(path(), "one", {.first_rank = 2, .ranks = 1});
  EXPECT_EQ(reader->first_event() + "\n", trace_line_of(3));
}

TEST_F(TraceReaderTest, FilesOfOtherKindsAreErrors) {
  const auto status_of = [&](const std::string& where) {
    return TraceReader::open(where, "two", {}).status();
  };
  const auto cannot = [](const std::string& where, const std::string& why) {
    return Status::fix_call("the timeline `" + where + "` cannot be read: " + why);
  };
  EXPECT_EQ(status_of(path()), cannot(path(), "No such file or directory"));
  EXPECT_EQ(status_of("/dev/null"), cannot("/dev/null", "it is not a regular file"));
  write(trace_line_of(2));
  EXPECT_EQ(status_of(path()), cannot(path(), "it is not the timeline of this job"));
  std::ofstream(path()) << "of yesterday";
  EXPECT_EQ(status_of(path()), cannot(path(), "it is not the timeline of this job"));
}

}  // namespace
}  // namespace farandole
