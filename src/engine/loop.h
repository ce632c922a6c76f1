// Loop: the engine's only loop. The holder of the progress lock drives it: it takes submissions,
// advances all groups, publishes finished calls, and sleeps on the rank's doorbell if there is
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

// Only the holder of the progress lock may call these functions. For take_arrived(), it must have
// locked SharedState::guarded; for the other functions, it must not have locked it.
class Loop {
 public:
  struct Options {
    WaitPolicy policy;
    std::chrono::seconds stall_limit{0};  // see EngineOptions
  };
  // All borrowed objects must outlive this one.
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

  // Takes the new submissions. submit() calls this function while it holds the guard. Does nothing
  // and returns false if earlier submissions are not processed yet.
  bool take_arrived(Submissions& submissions);
  // Runs one round.
  void advance_once() { (void)advance(); }
  // Runs rounds until all wanted calls are finished, the deadline has passed, or the lock must be
  // released. `unfinished`: how many of the wanted calls are unfinished. Returns how many remain
  // unfinished.
  std::size_t drive(const HandleRange& wanted, std::size_t unfinished, TimePoint deadline);
  // For the thread "progress": runs rounds until the lock must be released or there is no work.
  void drive_in_background();
  // Changes the memberships between two rounds, and publishes the calls that the change finishes.
  template <class Change>  // void(Memberships&, std::vector<Record*>& finished)
  void change(Change change) {
    try {
      change(memberships_, finished_records_);
      publish();
    } catch (const std::bad_alloc&) {
      memberships_.abort_out_of_memory();
    }
  }
  // Runs the last round: takes new submissions and ends everything with
  // Memberships::end_by_shutdown().
  void run_last_round(std::optional<std::string_view> reason);

 private:
  bool advance();
  bool advance_all();
  bool accept_submissions();
  void give_up_if_stalled();
  void publish();
  void tick(TimePoint now);
  bool holder_must_release(const SharedState::Contents& contents) const;
  void sleep(TimePoint deadline);

  SharedState& state_;
  Doorbells& doorbells_;
  Memberships& memberships_;
  FlightRecorder& recorder_;
  const Clock& clock_;
  WaitPolicy policy_;
  const std::chrono::seconds stall_limit_;
  TimePoint next_stall_check_{};
  HandleRange wanted_calls_;               // the calls for which the driving thread waits
  std::size_t unfinished_count_ = 0;       // how many calls of wanted_calls_ are unfinished
  std::vector<Record*> arrived_records_;   // submissions that memberships_ does not have yet
  std::vector<Record*> finished_records_;  // finished calls that are not published yet
  Completions completions_;                // the completions of published calls
};

}  // namespace farandole
