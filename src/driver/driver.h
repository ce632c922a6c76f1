// Driver: runs a job on several hosts. It starts one process on each host: over ssh, or, on its own
// host, directly. It gives each process its order and the job's secret, passes on signals, and
// shows the output of all hosts as that of one job. The launchers on the hosts do everything else.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "driver/host_discovery.h"
#include "driver/launcher_order.h"
#include "launcher/job_options.h"
#include "remote/host_list.h"
#include "remote/ssh_command.h"

namespace farandole {

struct DriverPlan {
  // `slots` is the number of workers of each host. In an elastic job, the driver also starts a
  // launcher without workers on its own host, and this launcher becomes node 0.
  std::vector<HostEntry> hosts;
  std::optional<DiscoveryPlan> discovery{};  // if set, the driver finds the hosts; `hosts` is empty
  SshOptions ssh;
  // The program, its flags and the working directory; the driver adds the other fields for each
  // host.
  LauncherOrder order;
  std::string program;                   // the path of our program on all hosts
  std::string version;                   // the version of this program, which all hosts must have
  std::chrono::seconds start_timeout{};  // each host must answer within this time
  std::chrono::seconds grace{};          // workers must end within this time after a signal
  // The descriptors of the program that has started the job. The driver opens the channels.
  // `streams` is empty in an elastic job; in another job, it is empty or has the streams of all
  // workers. The driver takes over these streams and closes them.
  CallerDescriptors caller{};
  std::string output_folder;                     // the folder for RankFiles; empty: no files
  std::optional<Membership::Options> elastic{};  // empty: the hosts are fixed
};

// Runs the job and returns the exit code for the command: that of node 0, which knows how the job
// has ended. If the job cannot be started, the exit code is 1, or that of the first launcher that
// failed. Blocks. When it returns, the processes that it has started have ended; a process on
// another host may end later, when it notices that the driver is gone. The calling process must be
// single-threaded.
int run_driver(const DriverPlan& plan);

}  // namespace farandole
