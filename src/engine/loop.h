// Loop: the engine's only loop. Whoever holds the progress lock drives it: takes submissions in,
// moves all groups on, publishes what is finished, and sleeps by the rank's doorbell when there is
// nothing to do.
#pragma once

#include <chrono>
#include <cstddef>
#include <new>
#include <optional>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "engine/completions.h"
#include "engine/memberships.h"
#include "engine/shared_state.h"
#include "transport/shm/wait_policy.h"

namespace farandole {

// Only the holder of the progress lock calls these: take_arrived() while it has locked
// SharedState::guarded, all others while it has not.
class Loop {
 public:
  struct Options {
    WaitPolicy policy;
    std::chrono::seconds stall_limit{0};  // see EngineOptions
  };
  // All that is borrowed outlives this.
  Loop(SharedState& state, Doorbells& doorbells, Memberships& memberships, FlightRecorder& recorder,
       const Clock& clock, Options options)
      : state_(state),
        doorbells_(doorbells),
        memberships_(memberships),
        recorder_(recorder),
        clock_(clock),
        policy_(options.policy),
        stall_limit_(options.stall_limit) {}
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // Takes in what has arrived, under the guard that its submission needs anyway. False: not now.
  bool take_arrived(Submissions& submissions);
  // Looks once.
  void look() { (void)advance(); }
  // Until nothing of what is wanted is missing, the time is over, or somebody else must have the
  // progress lock. Returns how much is missing.
  std::size_t drive(const HandleRange& wanted, std::size_t missing, TimePoint deadline);
  // As the thread "progress": until somebody else must have the lock, or there is no work.
  void drive_in_background();
  // Changes the memberships between two rounds, and publishes what that has finished.
  template <class Change>  // void(Memberships&, std::vector<Record*>& finished)
  void change(Change change) {
    try {
      change(memberships_, finished_);
      publish();
    } catch (const std::bad_alloc&) {
      memberships_.abort_out_of_memory();
    }
  }
  // The last round: of what has arrived, too. As Memberships::end_by_shutdown().
  void end(std::optional<std::string_view> reason);

 private:
  bool advance();
  bool advance_all();
  bool accept_submissions();
  void give_up_if_stalled();
  void publish();
  void tick(TimePoint now);
  bool is_called_away(const SharedState::Contents& contents) const;
  void sleep(TimePoint deadline);

  SharedState& state_;
  Doorbells& doorbells_;
  Memberships& memberships_;
  FlightRecorder& recorder_;
  const Clock& clock_;
  WaitPolicy policy_;
  const std::chrono::seconds stall_limit_;
  TimePoint next_stall_check_{};
  HandleRange wanted_;             // what the driver waits for
  std::size_t missing_ = 0;        // how many of these are not done
  std::vector<Record*> arrived_;   // what it has submitted itself, or taken in
  std::vector<Record*> finished_;  // and not published; kept to save the allocations
  Completions completions_;        // of what was published
};

}  // namespace farandole
