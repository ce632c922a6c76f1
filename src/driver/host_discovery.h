// HostDiscovery: repeatedly runs a program of the user that lists the hosts of an elastic job. The
// program writes one host per line, as in a hostfile.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "base/poller.h"
#include "base/time_point.h"
#include "remote/host_list.h"
#include "workers/worker_process.h"

namespace farandole {

// How an elastic job finds its hosts.
struct DiscoveryPlan {
  std::string program;     // the command, with its arguments
  int slots_at_start = 1;  // the job starts when the hosts have at least this many slots
  int slots_max = 1;       // the largest number of workers of the job
  int slots_default = 1;   // the slots of a host that is listed without a number
};

// Only one thread may use it. No function blocks, except to start the program.
class HostDiscovery {
 public:
  static constexpr auto kRunPause = std::chrono::seconds(1);     // the pause between two runs
  static constexpr auto kRunTimeMax = std::chrono::seconds(20);  // the longest time of a run
  static constexpr std::size_t kOutputBytesMax = 1 << 20;        // the most output of a run

  // If a host has more than `slots_max` slots, only `slots_max` slots count. The poller reports
  // `tag` when advance() has something to do. `poller` and `state` must outlive this object.
  HostDiscovery(DiscoveryPlan plan, Poller& poller, std::uint64_t tag,
                const OriginalProcessState& state);
  ~HostDiscovery();
  HostDiscovery(const HostDiscovery&) = delete;
  HostDiscovery& operator=(const HostDiscovery&) = delete;

  struct Update {
    std::optional<std::vector<HostEntry>> hosts{};  // the hosts that a run has listed
    std::string error{};  // the error of a run, unless the previous run had the same error
  };
  Update advance(TimePoint now);
  // When to call advance() again, even if the poller reports nothing.
  TimePoint deadline() const { return process_.pid > 0 ? run_deadline_ : next_run_; }

 private:
  Status start(TimePoint now);
  void read_output();
  Result<std::vector<HostEntry>> parse_output() const;
  void end_run();

  DiscoveryPlan plan_;
  std::string name_;  // the command, as messages to the user show it
  Poller& poller_;
  std::uint64_t tag_;
  const OriginalProcessState& original_state_;
  StartedProcess process_;  // pid 0: the program does not run
  Descriptor output_;
  std::string output_text_;
  TimePoint next_run_{};
  TimePoint run_deadline_{};
  bool has_timed_out_ = false;
  std::optional<int> exit_code_{};
  std::string last_error_;
};

}  // namespace farandole
