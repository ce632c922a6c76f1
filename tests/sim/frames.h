// The frames that lane 0 of one host part sends to lane 0 of the others. In the product, such
// frames travel in a PeerChannel. The frames here have no data.
#pragma once

#include <functional>
#include <variant>
#include <vector>

#include "collective/group.h"
#include "coordination/decision.h"

namespace farandole::sim {

// All members of the sender's host part have entered this step.
struct EntryFrame {
  StepIdentity step;
};
// The sender's host part enters no more steps after `entered`.
struct EndFrame {
  StepNumber entered;  // the last step for which the host part sent an entry; sequence 0: none
  int rank;            // the rank that leaves and so ends the group
};
using Frame = std::variant<EntryFrame, EndFrame>;

struct RoutedFrame {
  int group;
  int from;  // index of the host part
  int to;
  Frame frame;

  bool is_entry() const { return std::holds_alternative<EntryFrame>(frame); }
};
// Returns the frames to send in place of this one.
using FrameTap = std::function<std::vector<RoutedFrame>(RoutedFrame)>;

}  // namespace farandole::sim
