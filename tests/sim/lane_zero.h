// LaneZero: what member 0 of a host part, here called lane 0, does for its part. When all members
// of the part have entered a step, lane 0 tells the other hosts, and finds out whether the members
// on all hosts have entered the step. Lane 0 also decides after which step the group ends for its
// part. This class does no I/O: it takes frames and returns frames.
//
// A host part is *closed* once lane 0 knows that a member of the group has left or wants to leave.
// From then on, lane 0 sends no entry. A step for which it has sent an entry is still open: other
// hosts may complete it. So lane 0 waits until every other host has sent an entry of the step or is
// closed without having sent one. Because every host sends an entry either to all hosts or to none,
// all hosts decide in the same way.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "channels/peer_entries.h"
#include "flaws.h"
#include "frames.h"

namespace farandole::sim {

class LaneZero {
 public:
  enum class StepState : std::uint8_t {
    kOpen,          // some host may still enter the step
    kEnteredByAll,  // all hosts have entered it, with equal identities
    kMispredicted,  // all hosts have entered it, with different identities
    kNeverEntered,  // some host will never enter the step
  };

  // `flaws` must outlive this object.
  LaneZero(int parts, int own_part, const Flaws& flaws);

  void take(int from, const Frame& frame);
  // Call this function when all members of our host part have entered this step. The host part must
  // not be closed.
  void enter(const StepIdentity& step);
  bool has_entered(const StepIdentity& step) const;
  StepState state_of(const StepIdentity& step) const;

  // Call this function when a member of this host part has left or wants to leave.
  void close(int rank);
  // The rank whose leave has closed this host part.
  const std::optional<int>& closed_by() const { return closed_by_; }

  // Whether this host part has answered the EndFrame that closed it with an EndFrame of its own.
  bool has_answered() const { return has_answered_; }

  // The next frame to send, and the host part to which it goes.
  std::optional<std::pair<int, Frame>> next_frame();

 private:
  struct Part {
    PeerEntries entries = {};
    std::optional<EndFrame> end = {};
  };

  const PeerEntries::Entry* find(const Part& part, const StepIdentity& step) const;
  void take_entry(Part& part, const EntryFrame& frame);
  void take_end(Part& part, const EndFrame& frame);
  void send_to_all(const Frame& frame);

  int own_part_;
  const Flaws& flaws_;
  std::vector<Part> parts_;
  StepNumber last_entered_ = {.generation = 1, .sequence = 0};  // our host part's last entered step
  std::uint32_t generation_ = 1;  // the generation of the last entry; only for a planted bug
  std::optional<int> closed_by_;
  std::deque<std::pair<int, Frame>> outgoing_;
  bool has_answered_ = false;
};

}  // namespace farandole::sim
