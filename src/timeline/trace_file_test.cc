#include "timeline/trace_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace farandole {
namespace {

constexpr std::string_view kLine = "{\"a\":1},\n";

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TraceHead head_of(std::string job, int start = 0) {
  return {.job = std::move(job), .zero = TimePoint(std::chrono::nanoseconds(start)), .epoch_us = 7};
}

class TraceFileTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "trace.json") const { return folder_ + "/" + name; }
  TraceFile must_open(const std::string& job = "one", int start = 0) {
    auto file = TraceFile::open(path(), head_of(job, start));
    EXPECT_TRUE(file.ok()) << file.status().message();
    if (!file.ok()) std::abort();
    return *std::move(file);
  }
  // Replaces the end mark by a part of a line, as if a rank had been killed while it wrote.
  void write_half(std::string_view part) const {
    std::filesystem::resize_file(path(), std::filesystem::file_size(path()) - kTraceEnd.size());
    std::ofstream(path(), std::ios::app) << part;
  }
  // The expected text of a file with `count` lines.
  static std::string with_lines(int count, bool ended = true) {
    std::string text = head_of("one").text();
    for (int i = 0; i < count; ++i) text += kLine;
    return ended ? text + std::string(kTraceEnd) : text;
  }

  std::string folder_ = "/tmp/farandole-trace-XXXXXX";
};

TEST_F(TraceFileTest, AlwaysHasItsEndMark) {
  TraceFile first = must_open();
  TraceFile second = must_open("one", 99);
  EXPECT_EQ(second.head().zero, first.head().zero) << "times count from the first";
  EXPECT_EQ(text_of(path()), with_lines(0));
  EXPECT_TRUE(first.append(kLine).ok());
  EXPECT_TRUE(second.append(kLine).ok());
  EXPECT_EQ(text_of(path()), with_lines(2));
  first.close();
  EXPECT_EQ(text_of(path()), with_lines(2));
  EXPECT_TRUE(second.append(kLine).ok());
  second.close();
  EXPECT_EQ(text_of(path()), with_lines(3));
}

TEST_F(TraceFileTest, TheSameJobContinuesItsFile) {
  TraceFile first = must_open();
  EXPECT_TRUE(first.append(kLine).ok());
  first.close();
  TraceFile again = must_open("one", 99);
  EXPECT_EQ(again.head().zero, TimePoint{});
  EXPECT_EQ(again.bytes_at_open(), with_lines(1, false).size());
  EXPECT_TRUE(again.append(kLine).ok());
  again.close();
  EXPECT_EQ(text_of(path()), with_lines(2));
}

TEST_F(TraceFileTest, OtherContentsAreReplaced) {
  std::ofstream(path()) << "some text";
  must_open("two").close();
  EXPECT_EQ(text_of(path()), head_of("two").text() + std::string(kTraceEnd));
  must_open("one").close();
  EXPECT_EQ(text_of(path()), with_lines(0));
}

TEST_F(TraceFileTest, AFileThatAnotherJobWritesIsNotReplaced) {
  TraceFile file = must_open();
  const auto other = TraceFile::open(path(), head_of("two"));
  EXPECT_EQ(other.status(),
            Status::fix_call("the timeline cannot be written to `" + path() +
                             "`: another job writes there; give each job its own file"));
  EXPECT_TRUE(file.append(kLine).ok());
  file.close();
  EXPECT_EQ(text_of(path()), with_lines(1));
}

TEST_F(TraceFileTest, AKilledWriterReleasesItsLocksAndItsIncompleteLineIsCutOff) {
  TraceFile file = must_open();
  const pid_t child = ::fork();
  if (child == 0) {
    TraceFile own = must_open();
    (void)own.append(kLine);
    write_half("{\"half");
    ::kill(::getpid(), SIGKILL);
  }
  int state = 0;
  ::waitpid(child, &state, 0);
  ASSERT_TRUE(WIFSIGNALED(state));
  EXPECT_EQ(text_of(path()), with_lines(1, false) + "{\"half");
  EXPECT_TRUE(file.append(kLine).ok());
  file.close();
  EXPECT_EQ(text_of(path()), with_lines(2));
}

TEST_F(TraceFileTest, NoLineCrossesAPage) {
  TraceFile file = must_open();
  std::string lines;
  for (std::size_t bytes = 1; bytes < 300; ++bytes) lines += std::string(bytes, 'a') + '\n';
  std::string large(10'001, 'b');
  large.back() = '\n';
  EXPECT_TRUE(file.append(lines + large + lines).ok());
  file.close();
  const std::string text = text_of(path());
  for (std::size_t border = 4096; border < text.size(); border += 4096)
    EXPECT_TRUE(text[border - 1] == '\n' || text[border] == 'b' || text[border - 1] == 'b')
        << border;
  std::string without_padding;
  std::istringstream rows(text);
  for (std::string row; std::getline(rows, row);)
    if (row.find_first_not_of(' ') != std::string::npos) without_padding += row + '\n';
  EXPECT_EQ(without_padding,
            head_of("one").text() + lines + large + lines + std::string(kTraceEnd));
}

TEST_F(TraceFileTest, AnIncompleteEndMarkIsCutOff) {
  TraceFile first = must_open();
  EXPECT_TRUE(first.append(kLine).ok());
  write_half(kTraceEnd.substr(0, 20));
  TraceFile second = must_open();
  first.close();
  second.close();
  EXPECT_EQ(text_of(path()), with_lines(1));
}

TEST_F(TraceFileTest, AForkedChildNeitherKeepsNorReleasesLocks) {
  TraceFile first = must_open();
  int stop_pipe[2] = {-1, -1};
  ASSERT_EQ(::pipe(stop_pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {  // this child keeps the file open without using it
    char none = 0;
    ::close(stop_pipe[1]);
    _exit(static_cast<int>(::read(stop_pipe[0], &none, 1)));
  }
  const pid_t other = ::fork();
  if (other == 0) {
    first.abandon_after_fork();
    _exit(0);
  }
  ::waitpid(other, nullptr, 0);
  EXPECT_FALSE(TraceFile::open(path(), head_of("two")).ok()) << "the first job still writes";
  first.close();
  EXPECT_EQ(text_of(path()), with_lines(0));
  must_open("two").close();
  ::close(stop_pipe[1]);
  ::waitpid(child, nullptr, 0);
  ::close(stop_pipe[0]);
}

TEST_F(TraceFileTest, AFullDiskIsReportedAndTheFileStaysValid) {
  TraceFile file = must_open();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(file.append(kLine).ok());
  struct rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  auto* handler = ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small{with_lines(20).size() + kLine.size() / 2, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const Status appended = file.append(kLine);
  const std::string after = text_of(path());
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(appended,
            Status::stop("the timeline cannot be written to `" + path() + "`: File too large"));
  EXPECT_EQ(after, with_lines(20));
  EXPECT_TRUE(file.append(kLine).ok());
  EXPECT_EQ(text_of(path()), with_lines(21));
}

TEST_F(TraceFileTest, AnExistingFileIsContinuedAndRepaired) {
  EXPECT_EQ(must_open().append(kLine), Status());
  write_half("{\"a\"");
  auto file = TraceFile::open_existing(path(), "one");
  ASSERT_EQ(file.status(), Status());
  EXPECT_EQ(text_of(path()), with_lines(1));
  EXPECT_EQ(file->append(kLine), Status());
  EXPECT_EQ(text_of(path()), with_lines(2));
  EXPECT_EQ(file->bytes(), with_lines(2, false).size());
}

TEST_F(TraceFileTest, OnlyTheFileOfTheJobIsContinued) {
  const auto write_error = [&](const std::string& why) {
    return Status::fix_call("the timeline cannot be written to `" + path() + "`: " + why);
  };
  EXPECT_EQ(TraceFile::open_existing(path(), "one").status(),
            write_error("No such file or directory"));
  EXPECT_FALSE(std::filesystem::exists(path()));
  must_open("two").close();
  const std::string before = text_of(path());
  EXPECT_EQ(TraceFile::open_existing(path(), "one").status(),
            write_error("it is not the timeline of this job"));
  EXPECT_EQ(text_of(path()), before);
}

TEST_F(TraceFileTest, OpeningAnExistingFileDoesNotWait) {
  must_open().close();
  auto file = TraceFile::open_existing(path(), "one");
  ASSERT_EQ(file.status(), Status());
  const Descriptor other(::open(path().c_str(), O_RDWR | O_CLOEXEC));
  struct flock range{.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 1, .l_pid = 0};
  ASSERT_EQ(::fcntl(other.get(), F_OFD_SETLK, &range), 0);
  const auto busy_error = Status::stop("the timeline cannot be written to `" + path() +
                                       "`: another process writes to it");
  EXPECT_EQ(file->append(kLine), busy_error);
  EXPECT_EQ(TraceFile::open_existing(path(), "one").status(), busy_error);
  EXPECT_EQ(text_of(path()), with_lines(0));
}

TEST_F(TraceFileTest, WrongPathsAreReportedWithTheReason) {
  const auto status_of_open = [&](const std::string& where) {
    return TraceFile::open(where, head_of("one")).status();
  };
  const auto write_error = [](const std::string& where, const std::string& why) {
    return Status::fix_call("the timeline cannot be written to `" + where + "`: " + why);
  };
  EXPECT_EQ(status_of_open(path("no/such/trace.json")),
            write_error(path("no/such/trace.json"), "No such file or directory"));
  EXPECT_EQ(status_of_open(folder_), write_error(folder_, "Is a directory"));
  EXPECT_EQ(status_of_open(""), write_error("", "No such file or directory"));
  EXPECT_EQ(status_of_open("/dev/null"), write_error("/dev/null", "it is not a regular file"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(status_of_open(path("pipe")), write_error(path("pipe"), "it is not a regular file"));
}

}  // namespace
}  // namespace farandole
