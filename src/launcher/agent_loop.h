// Agent: the loop of the process that starts the workers of this host and watches them (agent.h).
// Its functions are in agent_loop.cc, agent_elastic.cc (what only elastic jobs need) and
// agent_end.cc (the end of the job).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/poller.h"
#include "diagnosis/failure_box.h"
#include "diagnosis/init_watch.h"
#include "diagnosis/memory_kills.h"
#include "elastic/elastic_node.h"
#include "jobs/job_sheet.h"
#include "jobs/worker_reports.h"
#include "launcher/agent.h"
#include "launcher/agent_sources.h"
#include "launcher/caller_report.h"
#include "launcher/common_end.h"
#include "launcher/driver_reports.h"
#include "launcher/job_nodes.h"
#include "launcher/stack_capture.h"
#include "launcher/stall_reports.h"
#include "launcher/timeline_collection.h"
#include "launcher/worker_notices.h"
#include "launcher/worker_setup.h"
#include "launcher/worker_table.h"
#include "nodes/node_layout.h"
#include "nodes/node_link.h"
#include "output/job_output.h"
#include "rendezvous/store_server.h"
#include "supervision/driver_loss.h"
#include "supervision/signal_repeats.h"
#include "supervision/supervision.h"

namespace farandole {

// Only one thread uses it.
class Agent {
 public:
  Agent(const AgentSetup& setup, Poller poller, std::unique_ptr<StoreServer> store)
      : setup_(setup),
        poller_(std::move(poller)),
        store_(std::move(store)),
        layout_{.node = 0, .workers = {setup.options.workers}},
        worker_setup_(setup.options),
        caller_report_(poller_, make_tag(Source::kReport), setup.options.caller.report),
        output_(poller_, {make_tag(Source::kStream), make_tag(Source::kWritable)},
                setup.options.output),
        driver_reports_(setup.options.has_driver, output_),
        workers_(setup.options.workers),
        init_watch_(setup.options.workers, now()),
        stalls_(setup.options.stall_warning,
                StackCapture(poller_, make_tag(Source::kStack), setup.original_state),
                [this](const std::string& line) { output_.show_notice(line); }),
        common_end_(requests_,
                    {.show_notice = [this](const std::string& line) { output_.show_notice(line); },
                     .show_error = [this](const std::string& line) { output_.show_error(line); },
                     .show_lines = [this](const auto& lines) { output_.show_lines(lines); }}) {}

  // Runs the job to its end and returns its exit code. Blocks.
  int run();

 private:
  static TimePoint now() { return std::chrono::steady_clock::now(); }
  void serve_until_others_have_ended();
  Status watch_own_descriptors();
  Status join_nodes();
  bool node_0_reports() const { return setup_.options.has_driver && layout_.node != 0; }
  void serve_nodes();
  void handle_node_changes(const std::vector<NodeChange>& changes);
  bool ends_with_other_nodes() const;
  CommonEnd::OwnEnd own_end(int exit_code) const;
  void wait_for_cause(int exit_code);
  int wait_for_common_exit_code(int exit_code);
  void wait_with_nodes(TimePoint limit);
  void collect_timelines();
  Status begin_output();
  Status start_workers();
  Status reserve_ports();
  Status begin_elastic_job();
  bool begin_to_leave(int signal);
  void end_at_next_commit(const std::string& why, Duration limit);
  void handle_foreground_loss();
  void handle_driver_loss();
  void record_driver_loss();
  void check_driver_loss();
  bool leaves_elastic_job() const;
  Status start_local_worker(int local_rank, int elastic_number);
  void handle_event(std::uint64_t tag);
  void handle_signals();
  void handle_signal(int signal);
  void request_end(int signal);
  bool pass_on_late_signal();
  void handle_worker_end(int local_rank);
  bool may_change_members() const {
    return elastic_ && !supervision_->is_ending() && !user_stopped_job_;
  }
  void report_exit_to_node_0(int local_rank, const std::string& end_text, bool succeeded);
  void advance_elastic_job();
  void handle_closed_output();
  std::optional<int> living_worker(pid_t pid) const;
  void handle_stops();
  void reap_traced();
  void reap_orphans();
  void perform(const Actions& actions);
  void forward(int signal);
  void continue_stopped();
  std::vector<WatchedWorker> watched_workers() const {
    return workers_.watched_workers(output_.host(), *supervision_);
  }
  void check_missing_inits();
  bool may_check_stalls() const;
  void check_stalls();
  std::optional<TimePoint> deadline() const;
  void wait_for_leftovers(TimePoint deadline);
  std::optional<Failure> failure() const;
  void report_result();
  int finish(int exit_code);
  int exit_code_after_lost_output(int exit_code);

  const AgentSetup& setup_;
  Poller poller_;
  std::unique_ptr<JobNodes> nodes_;  // null if the job is on this host only; outlives store_
  std::unique_ptr<StoreServer> store_;
  NodeLayout layout_;
  WorkerSetup worker_setup_;
  CallerReport caller_report_;
  JobOutput output_;
  DriverReports driver_reports_;
  std::unique_ptr<JobSheet> sheet_;               // what `farandole status` reads
  std::unique_ptr<WorkerReports> other_workers_;  // reports of other nodes' workers; only on node 0
  WorkerTable workers_;
  std::vector<int> unreaped_workers_;  // local ranks of ended workers that cannot be reaped yet
  WorkerNotices worker_notices_;       // only used in an elastic job
  std::optional<Supervision> supervision_;
  std::unique_ptr<ElasticNode> elastic_;         // null: the number of workers is fixed
  std::optional<TimelineCollection> timelines_;  // empty if the job is on this host only
  InitWatch init_watch_;
  StallReports stalls_;
  MemoryKillCounter memory_kills_{own_memory_counter_file()};  // also counts kills of our workers
  TimePoint last_memory_sample_ = now();
  Status nodes_failure_;  // why this node cannot take part in the job
  EndRequests requests_;
  SignalRepeats repeats_;
  DriverLoss driver_loss_;  // only used in an elastic job
  CommonEnd common_end_;
  bool user_stopped_job_ = false;
  bool job_is_over_ = false;
};

}  // namespace farandole
