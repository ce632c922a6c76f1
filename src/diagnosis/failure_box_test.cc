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

Failure failure(ProcessEnd how) {
  Failure made{.rank = 1, .pid = 711, .end = {}, .exit_code = how.exit_code(), .other_ends = ""};
  made.end.process_end = how;
  made.end.at = kEnd;
  return made;
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

Failure member_failure(ProcessEnd how, CallState state, Duration before_the_end) {
  Failure made = failure(how);
  made.end.record.member_state = MemberState::kMember;
  made.end.record.calls = {last_call(state, before_the_end)};
  return made;
}

TEST(FailureBox, NamesTheHostIfThereAreSeveral) {
  Failure made = failure({.code = 7});
  made.host = "hen";
  EXPECT_THAT(failure_box(made, {}).at(1), HasSubstr("rank 1 (hen, pid 711) exited with code 7"));
}

TEST(FailureBox, NamesTheSignalThatKilledAWorker) {
  Failure made = member_failure({.signal = SIGKILL}, CallState::kWaiting, milliseconds(2100));
  made.other_ends = "ranks 0, 2: exited with code 1; rank 3: ended with SIGTERM";
  EXPECT_EQ(box_text(made), R"(
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
  Failure made = member_failure({.code = 1}, CallState::kDone, milliseconds(3));
  made.end.record.member_state = MemberState::kLeft;
  made.end.record.cause = LeaveCause::kException;
  made.end.record.reason = "raised ValueError: no label for image 4711";
  made.end.record.traceback =
      "Traceback (most recent call last):\n  File \"train.py\", line 8, in <module>\n"
      "    label = labels[name]\nValueError: no label for image 4711\n";
  made.other_ends = "rank 0: exited with code 1";
  EXPECT_EQ(box_text(made), R"(
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
  Failure made = member_failure({.signal = SIGKILL}, CallState::kRunning, seconds(1));
  made.end.memory_kills = {.in_cgroup = 1, .on_machine = 1};
  EXPECT_EQ(box_text(made), R"(
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
  Failure made = failure({.signal = SIGKILL});
  made.end.memory_kills = {.in_cgroup = 0, .on_machine = 2};
  EXPECT_EQ(box_text(made), R"(
╭─ farandole: the job has failed ──────────────────────────────────────────────╮
│ rank 1 (pid 711) was killed by signal 9 (SIGKILL)                            │
│ memory      the kernel has just killed 2 processes of this machine for       │
│             memory; perhaps this one                                         │
╰─ exit code 137 ──────────────────────────────────────────────────────────────╯
)");
}

TEST(FailureBox, AChildMayHaveBeenKilledForMemory) {
  Failure made = failure({.code = 1});
  made.end.memory_kills = {.in_cgroup = 1, .on_machine = 1};
  EXPECT_EQ(box_text(made), R"(
╭─ farandole: the job has failed ──────────────────────────────────────────────╮
│ rank 1 (pid 711) exited with code 1                                          │
│ memory      the kernel has just killed 1 process of its memory cgroup;       │
│             perhaps a child of this worker                                   │
╰─ exit code 1 ────────────────────────────────────────────────────────────────╯
)");
}

// The cause in the record, not the text, decides whether an exception ended the program.
TEST(FailureBox, ShowsAnExceptionWithoutATraceback) {
  Failure made = failure({.code = 1});
  made.end.record.cause = LeaveCause::kGroupLost;
  made.end.record.reason = "raised GroupLostError: rank 0 died";
  EXPECT_THAT(box_text(made), HasSubstr("(pid 711) raised GroupLostError: rank 0 died"));
  made.end.record.cause = LeaveCause::kOrderly;
  EXPECT_THAT(box_text(made), Not(HasSubstr("raised")));
}

TEST(FailureBox, ExplainsAnExitWithCode0) {
  Failure made = member_failure({.code = 0}, CallState::kFailed, seconds(130));
  made.end.record.member_state = MemberState::kLeft;
  made.end.record.reason = "its program ended";
  made.end.record.counts.calls = 1204;
  made.exit_code = 1;
  made.other_ends = "rank 0: exited with code 1";
  EXPECT_EQ(box_text(made), R"(
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
  Failure made = failure({.code = 0});
  made.exit_code = 1;
  EXPECT_EQ(box_text(made, {.columns = 100}), R"(
╭─ farandole: the job has failed ──────────────────────────────────────────────────────────────────╮
│ rank 1 (pid 711) ended with exit code 0 without calling init(), where others waited for it       │
╰─ exit code 1 ────────────────────────────────────────────────────────────────────────────────────╯
)");
}

TEST(FailureBox, ExplainsThatTheLauncherEndedAWorkerThatHadLeft) {
  Failure made = member_failure({.signal = SIGTERM}, CallState::kDone, seconds(2));
  made.end.record.member_state = MemberState::kLeft;
  made.end.record.reason = "it called shutdown()";
  made.ended_by_launcher = true;
  made.exit_code = 1;
  EXPECT_EQ(box_text(made), R"(
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
  Failure made = failure({.code = 2});
  made.end.record.member_state = MemberState::kForming;
  made.end.record.since = kEnd - seconds(4);
  EXPECT_EQ(box_text(made, {.columns = 60}), R"(
╭─ farandole: the job has failed ──────────────────────────╮
│ rank 1 (pid 711) exited with code 2                      │
│ last call   none; it was in init(), where it waited for  │
│             the others for 4.0 s                         │
╰─ exit code 2 ────────────────────────────────────────────╯
)");
}

TEST(FailureBox, CutsLongTextsAndEscapesControlCharacters) {
  Failure made = failure({.code = 1});
  made.end.record.member_state = MemberState::kLeft;
  made.end.record.cause = LeaveCause::kException;
  made.end.record.reason = "raised RuntimeError: " + std::string(70, 'x') + " \x1b[2J \xff 数据";
  for (int line = 1; line <= 40; ++line)
    made.end.record.traceback += "line " + std::to_string(line) + "\n";
  made.end.record.traceback += "    " + std::string(90, 'y') + " z\n\tRuntimeError: \r\x07\n";
  made.other_ends = std::string(200, 'o');
  EXPECT_EQ(box_text(made), R"(
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
  Failure made = member_failure({.code = 1}, CallState::kDone, seconds(1));
  made.end.record.cause = LeaveCause::kException;
  made.end.record.reason = "raised E: e\xCC\x81 数据";
  made.end.record.traceback = std::string(300, 'x') + "\n数据 数据\n\xE2\x82";
  made.other_ends = std::string(200, 'o');
  for (const int columns : {20, 40, 80, 99, 100, 300}) {
    const int used = std::clamp(columns, 40, 100);
    for (const auto& line : failure_box(made, {.columns = columns}))
      EXPECT_EQ(columns_of(line), used) << line;
  }
}

std::string without_colors(std::string text) {
  for (auto begin = text.find("\x1b["); begin != std::string::npos; begin = text.find("\x1b["))
    text.erase(begin, text.find('m', begin) + 1 - begin);
  return text;
}

TEST(FailureBox, ColorsDoNotChangeTheText) {
  const Failure made = member_failure({.code = 3}, CallState::kWaiting, seconds(1));
  const auto plain = failure_box(made, {.columns = 80});
  const auto colored = failure_box(made, {.columns = 80, .colors = true});
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
