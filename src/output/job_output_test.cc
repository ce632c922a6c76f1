#include "output/job_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <string>

namespace farandole {
namespace {

constexpr std::size_t kPipeBytes = 64 * 1024;

// One worker, whose standard output is also copied to a pipe that nobody reads. Its lines are taken
// instead of shown.
class JobOutputTest : public ::testing::Test {
 protected:
  JobOutputTest() {
    ::signal(SIGPIPE, SIG_IGN);
    output_.set_line_consumer(
        [this](int /*worker*/, std::size_t /*stream*/, const std::string& line) {
          ++lines_;
          last_line_ = line;
          return true;
        });
    output_.begin(0, {});
    ends_ = *output_.add_worker(0);
  }

  void write_line(std::size_t bytes) const {
    const std::string line = std::string(bytes - 1, 'x') + "\n";
    EXPECT_EQ(::write(ends_.standard_output.get(), line.data(), line.size()),
              static_cast<ssize_t>(bytes));
  }

  Poller poller_ = *Poller::create();
  OutputOptions options_{.prefix = *LinePrefix::parse(""),
                         .shown_ranks = {},
                         .folder = {},
                         .line_bytes_max = kLineBytesMax,
                         .uses_terminals = false};
  JobOutput output_{poller_, {0, 100}, options_};
  JobOutput::WorkerEnds ends_;
  int lines_ = 0;
  std::string last_line_;
};

TEST_F(JobOutputTest, RemainingOutputIsReadEvenIfTheReaderIsSlow) {
  std::array<int, 4> pipes{};
  ASSERT_EQ(::pipe2(pipes.data(), O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(pipes.data() + 2, O_CLOEXEC), 0);
  output_.copy_to({pipes[1], pipes[3]});
  for (int i = 0; i < 20; ++i) {  // until too many bytes wait to be copied
    write_line(kPipeBytes);
    output_.read_rest(0);
  }
  write_line(10);
  output_.stream_readable(0);
  EXPECT_EQ(last_line_.size(), kPipeBytes - 1) << "the slow reader stops the worker";
  output_.read_rest(0);
  EXPECT_EQ(last_line_, "xxxxxxxxx");
  for (const int pipe : pipes) ::close(pipe);
}

// A process that the first worker has left behind still has the streams of that worker.
TEST_F(JobOutputTest, AReplacementWorkerHasItsOwnStreams) {
  const JobOutput::WorkerEnds replacement_ends = *output_.add_worker(0);
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK), 0);
  const Descriptor replaced_descriptor =
      output_.replace_stream(replacement_ends.ours.front(), Descriptor(pipe[0]));
  EXPECT_EQ(replaced_descriptor.get(), replacement_ends.ours.front());
  ASSERT_EQ(::write(pipe[1], "second\n", 7), 7);
  output_.read_rest(0);
  EXPECT_EQ(last_line_, "second");
  write_line(10);
  output_.read_rest(0);
  EXPECT_EQ(last_line_, "xxxxxxxxx");
  EXPECT_FALSE(output_.replace_stream(replacement_ends.ours.front(), Descriptor()).valid())
      << "it was replaced";
  ::close(pipe[1]);
}

TEST_F(JobOutputTest, AProcessThatKeepsWritingDoesNotDelayTheLauncher) {
  constexpr int kLines = 1000;
  // For each line that is read, another one is written, so the pipe is never empty.
  output_.set_line_consumer([this](int, std::size_t, const std::string&) {
    if (++lines_ < kLines) write_line(kPipeBytes / 2);
    return true;
  });
  write_line(kPipeBytes / 2);
  output_.read_remaining();
  EXPECT_GT(lines_, 0);
  EXPECT_LT(lines_, kLines / 10);
}

}  // namespace
}  // namespace farandole
