#include "diagnosis/stack_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/format.h"

namespace farandole {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr std::string_view kDump =
    "Process 42: python train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\n"
    "Thread 40 (idle): \"Thread-1\"\n    wait (threading.py:320)\n\n"
    "Thread 42 (active): \"MainThread\"\n    evaluate (eval.py:88)\n    <module> (train.py:3)\n\n"
    "Thread 43 (idle)\n    run (pool.py:1)\n";

TEST(StackText, ShowsTheMainThread) {
  EXPECT_THAT(main_thread_frames(kDump, 42),
              ElementsAre("    evaluate (eval.py:88)", "    <module> (train.py:3)"));
}

TEST(StackText, AnErrorTextIsNotAStack) {
  const std::string error = "Error: Permission denied\nTry sudo\x1b\n\n";
  EXPECT_THAT(main_thread_frames(error, 42), IsEmpty());
  EXPECT_EQ(last_line_of(error), "Try sudo\\x1b");
  EXPECT_EQ(last_line_of("one"), "one");
  EXPECT_EQ(last_line_of("\n"), "");
}

TEST(StackText, ShowsOtherThreadsWithoutAMainThread) {
  EXPECT_THAT(main_thread_frames(kDump, 4), SizeIs(9));
}

TEST(StackText, CutsDeepStacksInTheMiddle) {
  std::string dump = "Thread 42 (active)\n";
  for (int i = 1; i <= 12; ++i) dump += format_text("    f (x.py:{})\n", i);
  EXPECT_THAT(main_thread_frames(dump, 42), AllOf(SizeIs(12), Not(Contains(HasSubstr("…")))));
  for (int i = 13; i <= 100; ++i) dump += format_text("    f (x.py:{})\n", i);
  EXPECT_THAT(
      main_thread_frames(dump, 42),
      ElementsAre("    f (x.py:1)", "    f (x.py:2)", "    f (x.py:3)", "    f (x.py:4)",
                  "    f (x.py:5)", "    … 89 lines", "    f (x.py:95)", "    f (x.py:96)",
                  "    f (x.py:97)", "    f (x.py:98)", "    f (x.py:99)", "    f (x.py:100)"));
}

TEST(StackText, ReplacesFramesOfFarandoleByTheirNumber) {
  const std::string dump =
      "Thread 42 (active)\n    wait (farandole/handle.py:9)\n    step (farandole/torch/a.py:1)\n"
      "    hook (torch/autograd.py:5)\n    run (farandole/calls.py:7)\n    <module> (train.py:3)\n";
  EXPECT_THAT(main_thread_frames(dump, 42),
              ElementsAre("    … 2 frames of Farandole", "    hook (torch/autograd.py:5)",
                          "    … 1 frame of Farandole", "    <module> (train.py:3)"));
}

}  // namespace
}  // namespace farandole
