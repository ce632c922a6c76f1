// RemoteProcess: a process that we have started on one of the user's hosts: over ssh, or directly
// if the host is our own. The process gets the job's secret and its orders over its standard input.
// The end of the input tells it that we are gone.
//
// Our program first writes a greeting to its standard output and its standard error. Anything
// before the greeting comes from another program: it is a message of ssh, or of the start-up files
// of a shell.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "base/poller.h"
#include "base/process_end.h"
#include "farandole/status.h"
#include "network/tcp/job_secret.h"
#include "remote/host_list.h"
#include "remote/ssh_command.h"
#include "workers/worker_process.h"

namespace farandole {

// The started process calls this function to write its greeting. Returns false if the output has no
// reader.
bool write_greeting(std::string_view greeting);

// Only one thread may use it. It never blocks, except to start the process.
class RemoteProcess {
 public:
  struct Program {
    std::vector<std::string> words;  // the path and the arguments, the same on all hosts
    std::string greeting;            // how the greeting begins; the version follows
    SshOptions ssh{};
  };
  // The tags with which the poller reports that the process has ended, or that its input has room.
  struct Tags {
    std::uint64_t end = 0;
    std::uint64_t input = 0;
  };
  enum class LineKind { kBeforeGreeting, kGreeting, kOfProgram };

  // `poller` must outlive this object.
  RemoteProcess(HostEntry host, Poller& poller, Tags tags);
  // Kills the process if it still runs.
  ~RemoteProcess();
  RemoteProcess(const RemoteProcess&) = delete;
  RemoteProcess& operator=(const RemoteProcess&) = delete;

  // `standard_output` and `standard_error` are for the process, and borrowed. Errors: kStop for a
  // limit of this host, kFixCall if the program, or ssh, cannot be executed.
  Status start(const Program& program, int standard_output, int standard_error,
               const OriginalProcessState& state);

  const HostEntry& host() const { return host_; }
  bool is_own_host() const { return is_own_host_; }
  bool is_running() const { return process_.pid > 0; }
  // How it has ended; empty before reap() has returned true.
  const std::optional<ProcessEnd>& end() const { return end_; }

  // Returns whether the process has ended. Call it when the poller reports `end`. After a call that
  // returned true, the poller does not report `end` again.
  bool has_ended();
  // Call it when has_ended(). Closes the input. Returns false if there is no process, or if it
  // cannot be reaped yet.
  bool reap();
  // Whether the process has ended, but was not reaped yet. While a debugger traces the process,
  // reap() fails. So call reap() again later.
  bool must_be_reaped() const { return is_running() && !end_is_watched_; }
  // Sends a signal to the process here, which is ssh or our program, and to its children here.
  void signal(int number) const;

  // Call it before send(). Returns ok even if the process no longer reads its input: the reason
  // will follow from how the process ends. Errors: kStop.
  Status send_secret(const JobSecret& secret) const;
  // Sends the bytes that fit in the pipe. To send the remaining bytes, call input_writable() when
  // the poller reports `input`. Does nothing if the input is closed. Errors: kStop if the input
  // cannot be watched.
  Status send(std::string_view bytes);
  void input_writable();
  void close_input();
  // Replaces the input by another descriptor. Returns the old descriptor, and the bytes that were
  // not sent.
  struct Input {
    Descriptor descriptor;
    std::string unsent;
  };
  Input replace_input(Descriptor input);
  // The variables of this process that the process on the other host should also have.
  std::vector<std::string> variables() const;

  // Takes a line of the standard output (0) or error (1), and keeps the lines before the greeting.
  LineKind receive_line(std::size_t stream, const std::string& line);
  // Keeps a line that says why the process fails. At most kKeptLinesMax are kept.
  void keep_line(const std::string& line);
  const std::vector<std::string>& kept_lines() const { return kept_lines_; }
  // Whether the greeting has arrived on the standard output.
  bool has_greeted() const { return has_greeted_.front(); }
  // The version in this greeting.
  const std::string& version() const { return version_; }

  // Why the process has not done its work: the lines that it has shown, or how it has ended.
  std::string why_ended() const;
  // Why a process that does not answer has not done its work: the lines that it has shown, and then
  // `reason`.
  std::string why_silent(std::string_view reason) const;
  // What users can do about this failure; empty if the remedy is unknown.
  std::string advice() const;

 private:
  HostEntry host_;
  Poller& poller_;
  Tags tags_;
  bool is_own_host_;
  std::string greeting_;
  std::vector<std::string> command_;
  StartedProcess process_;
  bool end_is_watched_ = false;
  Descriptor input_;
  std::string unsent_;
  bool input_is_watched_ = false;
  std::array<bool, 2> has_greeted_{};  // by stream
  std::string version_;
  std::vector<std::string> kept_lines_;
  std::optional<ProcessEnd> end_;
};

inline constexpr std::size_t kKeptLinesMax = 20;

}  // namespace farandole
