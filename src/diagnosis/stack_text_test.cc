#include "diagnosis/stack_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::string_view kDump =
    "Process 42: python train.py\nPython v3.11.2 (/usr/bin/python3.11)\n\n"
    "Thread 40 (idle): \"Thread-1\"\n    wait (threading.py:320)\n\n"
    "Thread 42 (active): \"MainThread\"\n    evaluate (eval.py:88)\n    <module> (train.py:3)\n\n"
    "Thread 43 (idle)\n    run (pool.py:1)\n";

TEST(StackText, ShowsTheMainThread) {
  EXPECT_THAT(main_thread_in(kDump, 42),
              ElementsAre("    evaluate (eval.py:88)", "    <module> (train.py:3)"));
}

TEST(StackText, AnErrorTextIsNotAStack) {
  const std::string error = "Error: Permission denied\nTry sudo\x1b\n\n";
  EXPECT_THAT(main_thread_in(error, 42), IsEmpty());
  EXPECT_EQ(last_line_of(error), "Try sudo\\x1b");
  EXPECT_EQ(last_line_of("one"), "one");
  EXPECT_EQ(last_line_of("\n"), "");
}

TEST(StackText, ShowsOtherThreadsWithoutAMainThread) {
  EXPECT_THAT(main_thread_in(kDump, 4), SizeIs(9));
}

TEST(StackText, CutsDeepStacks) {
  std::string dump = "Thread 42 (active)\n";
  for (int i = 0; i < 100; ++i) dump += "    f (x.py:1)\n";
  EXPECT_THAT(main_thread_in(dump, 42), SizeIs(12));
}

}  // namespace
}  // namespace farandole
