#include "hosts/windows.h"

#include <gtest/gtest.h>

#include <string>

#include "collective/group_in_test.h"

namespace farandole {
namespace {

// Records the calls of HostWindows.
struct Recorder {
  std::string text = {};
  std::int64_t complete_windows = 1 << 20;  // windows of which this member has all results
  bool drives = false;

  void add(char letter, std::int64_t window) {
    text += std::string(text.empty() ? "" : " ") + letter + std::to_string(window);
  }
  void stage(std::int64_t window) { add('A', window); }
  void begin(std::int64_t window) { add('K', window); }
  bool drive() const { return drives; }
  bool is_complete(std::int64_t window) const { return window < complete_windows; }
  void fetch(std::int64_t window) { add('C', window); }
};

class TwoMemberWindows : public ::testing::Test {
 protected:
  TwoMemberWindows() {
    for (int member = 0; member < 2; ++member) group_.group(member).board->enter(1, 1, {});
    for (int member = 0; member < 2; ++member)
      EXPECT_TRUE(group_.group(member).board->all_entered());
  }
  FlagBoard& board(int member) { return *group_.group(member).board; }

  GroupInTest group_{2};
};

TEST_F(TwoMemberWindows, two_windows_are_on_the_wire_at_a_time) {
  HostWindows windows;
  windows.start(board(0), 4);
  board(1).publish_phase(1000);  // the other member has already reached its last phase
  Recorder recorder;
  while (windows.advance(recorder) != Progress::kDone) {
  }
  EXPECT_EQ(recorder.text, "A0 K0 A1 K1 C0 A2 K2 C1 A3 K3 C2 C3");
}

TEST_F(TwoMemberWindows, a_single_window_is_enough) {
  HostWindows windows;
  windows.start(board(0), 1);
  board(1).publish_phase(1000);
  Recorder recorder;
  while (windows.advance(recorder) != Progress::kDone) {
  }
  EXPECT_EQ(recorder.text, "A0 K0 C0");
}

// Each row has a phase that the other member publishes, and all calls that this member makes until
// it must wait for the phase of the next row.
TEST_F(TwoMemberWindows, waits_for_the_phases_of_the_others) {
  HostWindows windows;
  windows.start(board(0), 3);
  Recorder recorder;
  const std::pair<std::uint32_t, const char*> steps[] = {
      {1, "A0"},                          // the notes
      {2, "A0 K0 A1"},                    // A0
      {3, "A0 K0 A1 K1"},                 // A1
      {4, "A0 K0 A1 K1 C0 A2"},           // B0
      {5, "A0 K0 A1 K1 C0 A2 K2"},        // A2
      {6, "A0 K0 A1 K1 C0 A2 K2 C1"},     // B1
      {8, "A0 K0 A1 K1 C0 A2 K2 C1 C2"},  // B2
  };
  for (const auto& [phase, expected_text] : steps) {
    board(1).publish_phase(phase);
    Progress progress = Progress::kAdvanced;
    while (progress == Progress::kAdvanced) progress = windows.advance(recorder);
    EXPECT_EQ(progress, phase < 8 ? Progress::kPending : Progress::kDone);
    EXPECT_EQ(recorder.text, expected_text);
  }
}

TEST_F(TwoMemberWindows, waits_for_its_lane_and_drives_it) {
  HostWindows windows;
  windows.start(board(0), 2);
  board(1).publish_phase(1000);
  Recorder recorder{.complete_windows = 0};
  Progress progress = Progress::kAdvanced;
  while (progress == Progress::kAdvanced) progress = windows.advance(recorder);
  EXPECT_EQ(progress, Progress::kPending);
  EXPECT_EQ(recorder.text, "A0 K0 A1 K1");
  EXPECT_EQ(board(1).phase(0), 3U) << "B0 is not published";
  recorder.drives = true;
  EXPECT_EQ(windows.advance(recorder), Progress::kAdvanced);
}

}  // namespace
}  // namespace farandole
