#include "diagnosis/call_text.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace farandole {
namespace {

using std::chrono::milliseconds;

RecordedCall recorded_call(Operation operation, std::string name, std::int64_t elements) {
  RecordedCall call;
  call.operation = operation;
  call.dtype = DType::kFloat32;
  call.name = std::move(name);
  call.elements = elements;
  return call;
}

TEST(CallText, NamesACall) {
  EXPECT_EQ(describe(recorded_call(Operation::kAllreduce, "grad/fc2", 200'000)),
            "allreduce `grad/fc2` (float32, 200,000 elements)");
  EXPECT_EQ(describe(recorded_call(Operation::kBroadcast, "x", 1)),
            "broadcast `x` (float32, 1 element)");
  EXPECT_EQ(describe(recorded_call(Operation::kBarrier, "barrier.0", 1)), "barrier `barrier.0`");
  RecordedCall grouped = recorded_call(Operation::kAlltoall, "x\x1b", 1'234'567);
  grouped.group = 3;
  EXPECT_EQ(describe(grouped), "alltoall `x\\x1b` (float32, 1,234,567 elements, group 3)");
  grouped = recorded_call(Operation::kJoin, "join", 0);
  grouped.group = 3;
  EXPECT_EQ(describe(grouped), "join `join` (group 3)");
}

TEST(CallText, ACutNameEndsWithAWholeCharacter) {
  const std::string cut = std::string(kFlightNameBytes - 2, 'n') + "\xE2\x80";
  EXPECT_EQ(title_of(recorded_call(Operation::kJoin, cut, 0)),
            "join `" + std::string(kFlightNameBytes - 2, 'n') + "…`");
}

TEST(CallText, FormatsTimes) {
  EXPECT_EQ(describe(milliseconds(3)), "3 ms");
  EXPECT_EQ(describe(milliseconds(2199)), "2.1 s");
  EXPECT_EQ(describe(milliseconds(250'000)), "4 min 10 s");
}

}  // namespace
}  // namespace farandole
