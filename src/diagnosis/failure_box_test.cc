#include "diagnosis/failure_box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "base/visible_text.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr TimePoint kEnd{seconds(1000)};

std::string box_text(const Failure& failure, const BoxStyle& style = {}) {
  std::string text = "\n";
  for (const auto& line : failure_box(failure, style)) text += line + "\n";
  return text;
}

Failure failure(ProcessEnd end) {
  Failure sample{.rank = 1, .pid = 711, .end = {}, .exit_code = end.exit_code(), .other_ends = ""};
  sample.end.process_end = end;
  sample.end.at = kEnd;
  return sample;
}

RecordedCall last_call(CallState state, Duration before_the_end) {
  RecordedCall call;
  call.handle = 9;
  call.operation = Operation::kAllreduce;
  call.dtype = DType::kFloat32;
  call.elements = 200'000;
  call.name = "grad/fc2";
  call.state = state;
  call.changed = kEnd - before_the_end;
  return call;
}

Failure member_failure(ProcessEnd end, CallState state, Duration before_the_end) {
  Failure sample = failure(end);
  sample.end.record.member_state = MemberState::kMember;
  sample.end.record.calls = {last_call(state, before_the_end)};
  return sample;
}

TEST(FailureBox, NamesTheHostIfThereAreSeveral) {
  Failure sample = failure({.code = 7});
  sample.host = "hen";
  EXPECT_THAT(failure_box(sample, {}).at(1), HasSubstr("rank 1 (hen, pid 711) exited with code 7"));
}

TEST(FailureBox, NamesTheSignalThatKilledAWorker) {
  Failure sample = member_failure({.signal = SIGKILL}, CallState::kWaiting, milliseconds(2100));
  sample.other_ends = "ranks 0, 2: exited with code 1; rank 3: ended with SIGTERM";
  EXPECT_EQ(box_text(sample), R"(
╭─ farandole: the job has failed ──────────────────────────────────────────────╮
│ rank 1 (pid 711) was killed by signal 9 (SIGKILL)                            │
│ last call   allreduce `grad/fc2` (float32, 200,000 elements), which waited   │
│             for other ranks for 2.1 s                                        │
│                                                                              │
│ the others: ranks 0, 2: exited with code 1; rank 3: ended with SIGTERM       │
╰─ exit code 137 ──────────────────────────────────────────────────────────────╯
)");
}

TEST(FailureBox, ShowsTheExceptionAndItsTraceback) {
  Failure sample = member_failure({.code = 1}, CallState::kDone, milliseconds(3));
  sample.end.record.member_state = MemberState::kLeft;
  sample.end.record.cause = LeaveCause::kException;
  sample.end.record.reason = "raised ValueError: no label for image 4711";
  sample.end.record.traceback =
      "Traceback (most recent call last):\n  File \"train.py\", line 8, in <module>\n"
      "    label = labels[name]\nValueError: no label for image 4711\n";
  sample.other_ends = "rank 0: exited with code 1";
  EXPECT_EQ(box_text(sample), R"(
╭─ farandole: the job has failed ──────────────────────────────────────────────╮
│ rank 1 (pid 711) raised ValueError: no label for image 4711                  │
│ end         exited with code 1                                               │
│ last call   allreduce `grad/fc2` (float32, 200,000 elements), finished 3 ms  │
│             before the end                                                   │
│                                                                              │
│ Traceback (most recent call last):                                           │
│   File "train.py", line 8, in <module>                                       │
│     label = labels[name]                                                     │
│ ValueError: no label for image 4711                                          │
│                                                                              │
│ the others: rank 0: exited with code 1                                       │
╰─ exit code 1 ────────────────────────────────────────────────────────────────╯
)");
}

TEST(FailureBox, ASigkillAfterAKillInTheCgroupIsProbablyForMemory) {
  Failure sample = member_failure({.signal = SIGKILL}, CallState::kRunning, seconds(1));
  sample.end.memory_kills = {.in_cgroup = 1, .on_machine = 1};
  EXPECT_EQ(box_text(sample), R"(
╭─ farandole: the job has failed ──────────────────────────────────────────────╮
│ rank 1 (pid 711) was probably killed by the kernel for memory (SIGKILL)      │
│ last call   allreduce `grad/fc2` (float32, 200,000 elements), which was      │
│             running for 1.0 s                                                │
│ memory      the kernel has just killed 1 process of its memory cgroup: raise │
│             the limit, or use less                                           │
╰─ exit code 137 ──────────────────────────────────────────────────────────────╯
)");
}

TEST(FailureBox, ASigkillAfterAKillOnTheMachineIsPerhapsForMemory) {
  Failure sample = failure({.signal = SIGKILL});
  sample.end.memory_kills = {.in_cgroup = 0, .on_machine = 2};
  EXPECT_EQ(box_text(sample), R"(
╭─ farandole: the job has failed ──────────────────────────────────────────────╮
│ rank 1 (pid 711) was killed by signal 9 (SIGKILL)                            │
│ memory      the kernel has just killed 2 processes of this machine for       │
│             memory; perhaps this one                                         │
╰─ exit code 137 ──────────────────────────────────────────────────────────────╯
)");
}

TEST(FailureBox, AChildMayHaveBeenKilledForMemory) {
  Failure sample = failure({.code = 1});
  sample.end.memory_kills = {.in_cgroup = 1, .on_machine = 1};
  EXPECT_EQ(box_text(sample), R"(
╭─ farandole: the job has failed ──────────────────────────────────────────────╮
│ rank 1 (pid 711) exited with code 1                                          │
│ memory      the kernel has just killed 1 process of its memory cgroup;       │
│             perhaps a child of this worker                                   │
╰─ exit code 1 ────────────────────────────────────────────────────────────────╯
)");
}

// The cause in the record, not the text, decides whether an exception ended the program.
TEST(FailureBox, ShowsAnExceptionWithoutATraceback) {
  Failure sample = failure({.code = 1});
  sample.end.record.cause = LeaveCause::kGroupLost;
  sample.end.record.reason = "raised GroupLostError: rank 0 died";
  EXPECT_THAT(box_text(sample), HasSubstr("(pid 711) raised GroupLostError: rank 0 died"));
  sample.end.record.cause = LeaveCause::kOrderly;
  EXPECT_THAT(box_text(sample), Not(HasSubstr("raised")));
}

TEST(FailureBox, ExplainsAnExitWithCode0) {
  Failure sample = member_failure({.code = 0}, CallState::kFailed, seconds(130));
  sample.end.record.member_state = MemberState::kLeft;
  sample.end.record.reason = "its program ended";
  sample.end.record.counts.calls = 1204;
  sample.exit_code = 1;
  sample.other_ends = "rank 0: exited with code 1";
  EXPECT_EQ(box_text(sample), R"(
╭─ farandole: the job has failed ──────────────────────────────────────────────╮
│ rank 1 (pid 711) ended with exit code 0 while others still needed it, after  │
│   1,204 calls                                                                │
│ last call   allreduce `grad/fc2` (float32, 200,000 elements), failed 2 min   │
│             10 s before the end                                              │
│                                                                              │
│ the others: rank 0: exited with code 1                                       │
╰─ exit code 1 ────────────────────────────────────────────────────────────────╯
)");
}

TEST(FailureBox, ExplainsAnExitWithCode0WithoutInit) {
  Failure sample = failure({.code = 0});
  sample.exit_code = 1;
  EXPECT_EQ(box_text(sample, {.columns = 100}), R"(
╭─ farandole: the job has failed ──────────────────────────────────────────────────────────────────╮
│ rank 1 (pid 711) ended with exit code 0 without calling init(), where others waited for it       │
╰─ exit code 1 ────────────────────────────────────────────────────────────────────────────────────╯
)");
}

TEST(FailureBox, ExplainsThatTheLauncherEndedAWorkerThatHadLeft) {
  Failure sample = member_failure({.signal = SIGTERM}, CallState::kDone, seconds(2));
  sample.end.record.member_state = MemberState::kLeft;
  sample.end.record.reason = "it called shutdown()";
  sample.ended_by_launcher = true;
  sample.exit_code = 1;
  EXPECT_EQ(box_text(sample), R"(
╭─ farandole: the job has failed ──────────────────────────────────────────────╮
│ rank 1 (pid 711) has left the job while others still needed it: it called    │
│   shutdown()                                                                 │
│ end         was ended with SIGTERM by the launcher                           │
│ last call   allreduce `grad/fc2` (float32, 200,000 elements), finished 2.0 s │
│             before the end                                                   │
╰─ exit code 1 ────────────────────────────────────────────────────────────────╯
)");
}

TEST(FailureBox, ExplainsAnExitInInit) {
  Failure sample = failure({.code = 2});
  sample.end.record.member_state = MemberState::kForming;
  sample.end.record.since = kEnd - seconds(4);
  EXPECT_EQ(box_text(sample, {.columns = 60}), R"(
╭─ farandole: the job has failed ──────────────────────────╮
│ rank 1 (pid 711) exited with code 2                      │
│ last call   none; it was in init(), where it waited for  │
│             the others for 4.0 s                         │
╰─ exit code 2 ────────────────────────────────────────────╯
)");
}

TEST(FailureBox, CutsLongTextsAndEscapesControlCharacters) {
  Failure sample = failure({.code = 1});
  sample.end.record.member_state = MemberState::kLeft;
  sample.end.record.cause = LeaveCause::kException;
  sample.end.record.reason = "raised RuntimeError: " + std::string(70, 'x') + " \x1b[2J \xff 数据";
  for (int line = 1; line <= 40; ++line)
    sample.end.record.traceback += "line " + std::to_string(line) + "\n";
  sample.end.record.traceback += "    " + std::string(90, 'y') + " z\n\tRuntimeError: \r\x07\n";
  sample.other_ends = std::string(200, 'o');
  EXPECT_EQ(box_text(sample), R"(
╭─ farandole: the job has failed ──────────────────────────────────────────────╮
│ rank 1 (pid 711) raised RuntimeError: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx │
│   xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx \x1b[2J \xff 数据                         │
│ end         exited with code 1                                               │
│ last call   none                                                             │
│                                                                              │
│ … 12 more lines                                                              │
│ line 13                                                                      │
│ line 14                                                                      │
│ line 15                                                                      │
│ line 16                                                                      │
│ line 17                                                                      │
│ line 18                                                                      │
│ line 19                                                                      │
│ line 20                                                                      │
│ line 21                                                                      │
│ line 22                                                                      │
│ line 23                                                                      │
│ line 24                                                                      │
│ line 25                                                                      │
│ line 26                                                                      │
│ line 27                                                                      │
│ line 28                                                                      │
│ line 29                                                                      │
│ line 30                                                                      │
│ line 31                                                                      │
│ line 32                                                                      │
│ line 33                                                                      │
│ line 34                                                                      │
│ line 35                                                                      │
│ line 36                                                                      │
│ line 37                                                                      │
│ line 38                                                                      │
│ line 39                                                                      │
│ line 40                                                                      │
│     yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy │
│       yyyyyyyyyyyyyyyyyy z                                                   │
│     RuntimeError: \x0d\x07                                                   │
│                                                                              │
│ the others: ooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooooo… │
╰─ exit code 1 ────────────────────────────────────────────────────────────────╯
)");
}

TEST(FailureBox, EveryLineHasTheSameWidth) {
  Failure sample = member_failure({.code = 1}, CallState::kDone, seconds(1));
  sample.end.record.cause = LeaveCause::kException;
  sample.end.record.reason = "raised E: e\xCC\x81 数据";
  sample.end.record.traceback = std::string(300, 'x') + "\n数据 数据\n\xE2\x82";
  sample.other_ends = std::string(200, 'o');
  for (const int columns : {20, 40, 80, 99, 100, 300}) {
    const int used = std::clamp(columns, 40, 100);
    for (const auto& line : failure_box(sample, {.columns = columns}))
      EXPECT_EQ(columns_of(line), used) << line;
  }
}

std::string without_colors(std::string text) {
  for (auto begin = text.find("\x1b["); begin != std::string::npos; begin = text.find("\x1b["))
    text.erase(begin, text.find('m', begin) + 1 - begin);
  return text;
}

TEST(FailureBox, ColorsDoNotChangeTheText) {
  const Failure sample = member_failure({.code = 3}, CallState::kWaiting, seconds(1));
  const auto plain = failure_box(sample, {.columns = 80});
  const auto colored = failure_box(sample, {.columns = 80, .has_colors = true});
  ASSERT_EQ(plain.size(), colored.size());
  EXPECT_THAT(plain, Each(Not(HasSubstr("\x1b"))));
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_THAT(colored[i], StartsWith("\x1b[31m"));
    EXPECT_THAT(colored[i], EndsWith("\x1b[0m"));
    EXPECT_EQ(without_colors(colored[i]), plain[i]);
  }
}

}  // namespace
}  // namespace farandole
