// DriverLoss: decides what a launcher of an elastic job does when it has lost its driver. If the
// driver has ended, node 0 has lost it, too, and the job ends with the next commit. If only this
// node is cut off from the driver, this node ends, and the other nodes go on. It is a pure state
// machine.
#pragma once

#include <chrono>
#include <optional>

#include "base/time_point.h"
#include "rendezvous/launcher_notice.h"

namespace farandole {

class DriverLoss {
 public:
  // How long a node waits for the message that node 0 has lost the driver, too.
  static constexpr auto kNode0MessageTimeout = std::chrono::milliseconds(750);

  void record_loss(TimePoint now) {
    if (!lost_at_) lost_at_ = now;
  }
  bool is_lost() const { return lost_at_.has_value(); }

  enum class Verdict { kGoOn, kEndAtNextCommit, kEndNode };
  // `node_0_ends` is true if this node is node 0, or if node 0 ends or is lost. At most one call
  // returns another verdict than kGoOn. All calls after it return kGoOn.
  Verdict verdict(bool node_0_ends, TimePoint now) {
    if (!lost_at_ || is_decided_) return Verdict::kGoOn;
    is_decided_ = node_0_ends || now >= *lost_at_ + kNode0MessageTimeout;
    if (node_0_ends) return Verdict::kEndAtNextCommit;
    return is_decided_ ? Verdict::kEndNode : Verdict::kGoOn;
  }
  // When to ask for a verdict.
  std::optional<TimePoint> deadline() const {
    return lost_at_ && !is_decided_ ? std::optional(*lost_at_ + kNode0MessageTimeout)
                                    : std::nullopt;
  }
  // How much time the workers have to end. Call it if is_lost().
  Duration time_left(TimePoint now) const { return *lost_at_ + kEndLimit - now; }

 private:
  std::optional<TimePoint> lost_at_;
  bool is_decided_ = false;
};

}  // namespace farandole
