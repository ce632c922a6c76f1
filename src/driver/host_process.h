// HostProcess: what the driver knows about the process that it has started for one host: our
// launcher there, or the ssh that connects to it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/poller.h"
#include "base/time_point.h"
#include "driver/stream_relay.h"
#include "remote/host_list.h"
#include "remote/remote_process.h"

namespace farandole {

struct HostProcess {
  enum class State { kNotStarted, kConnecting, kGreeted, kHasOrder, kEnded };

  HostProcess(const HostEntry& host, Poller& poller, RemoteProcess::Tags tags,
              int first_rank_of_host)
      : remote(host, poller, tags), first_rank(first_rank_of_host) {}

  const std::string& name() const { return remote.host().name; }

  RemoteProcess remote;
  State state = State::kNotStarted;
  int output = -1;  // the process's standard output has this number in JobOutput
  TimePoint answer_deadline{};
  bool has_got_order = false;
  bool has_failed = false;         // this host could not start its part of the job
  bool has_exit_code_255 = false;  // the launcher there has said that its exit code is kSshError
  int first_rank = 0;
  std::unique_ptr<StreamRelay> relay{};  // null before the order, or if nothing is relayed
  std::string incomplete_report_line{};  // the rest of this line has not arrived yet
  // The following fields are for elastic jobs.
  bool was_told_to_leave = false;  // the driver has told this node to leave
  bool is_leaving = false;
  bool takes_part = false;   // has joined the job, and was not lost after that
  bool job_is_over = false;  // node 0 has said that the job is over
  std::optional<TimePoint> kill_time{};
  std::optional<TimePoint> join_time{};
  int failure_count = 0;                    // how often the process has failed
  std::optional<TimePoint> restart_time{};  // when to start the process again
  std::string why_failed{};                 // why the process must be started again
};

// Whether the connection to the host was lost, or the process was killed by a signal.
bool was_lost(const HostProcess& process);
// Call these two functions when the process has ended. how_it_ended() returns a text for the user.
// exit_code_of() returns the exit code of the launcher, or 1 if it is not known.
std::string how_it_ended(const HostProcess& process);
int exit_code_of(const HostProcess& process);

}  // namespace farandole
