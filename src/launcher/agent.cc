#include "launcher/agent.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/cores.h"
#include "base/descriptor_limit.h"
#include "base/format.h"
#include "base/poller.h"
#include "base/process_end.h"
#include "base/rank_names.h"
#include "base/try.h"
#include "diagnosis/init_watch.h"
#include "diagnosis/memory_kills.h"
#include "elastic/make_elastic_node.h"
#include "jobs/job_sheet.h"
#include "jobs/worker_reports.h"
#include "launcher/agent_sources.h"
#include "launcher/caller_report.h"
#include "launcher/common_end.h"
#include "launcher/descriptors_needed.h"
#include "launcher/driver_lines.h"
#include "launcher/driver_reports.h"
#include "launcher/end_notices.h"
#include "launcher/exit_report.h"
#include "launcher/job_nodes.h"
#include "launcher/stall_reports.h"
#include "launcher/timeline_collection.h"
#include "launcher/worker_inheritance.h"
#include "launcher/worker_setup.h"
#include "launcher/worker_table.h"
#include "output/job_output.h"
#include "output/rank_files.h"
#include "rendezvous/keys.h"
#include "rendezvous/launcher_notice.h"
#include "rendezvous/store_server.h"
#include "supervision/driver_loss.h"
#include "supervision/supervision.h"
#include "workers/process_tree.h"
#include "workers/worker_environment.h"

namespace farandole {
namespace {

constexpr auto kMemorySampleTime = std::chrono::milliseconds(2500);

TimePoint now() { return std::chrono::steady_clock::now(); }

class Agent {
 public:
  Agent(const AgentSetup& setup, Poller poller, std::unique_ptr<StoreServer> store)
      : setup_(setup),
        poller_(std::move(poller)),
        store_(std::move(store)),
        layout_{.node = 0, .workers = {setup.options.workers}},
        worker_setup_(setup.options),
        report_(poller_, tag(Source::kReport), setup.options.caller.report),
        output_(poller_, {tag(Source::kStream), tag(Source::kWritable)}, setup.options.output),
        driver_(setup.options.has_driver, output_),
        workers_(setup.options.workers),
        init_watch_(setup.options.workers, now()),
        stalls_(setup.options.stall_warning,
                StackCapture(poller_, tag(Source::kStack), setup.state),
                [this](const std::string& line) { output_.notice(line); }),
        common_end_(requests_,
                    {.notice = [this](const std::string& line) { output_.notice(line); },
                     .error = [this](const std::string& line) { output_.error(line); },
                     .lines = [this](const auto& lines) { output_.show_lines(lines); }}) {}

  int run();

 private:
  void serve_until_others_have_ended();
  Status watch_own_descriptors();
  Status join_nodes();
  bool node_0_reports() const { return setup_.options.has_driver && layout_.node != 0; }
  void serve_nodes();
  void nodes_changed(const std::vector<NodeChange>& changes);
  int exit_code_with_other_nodes(int exit_code);
  void wait_with_nodes(TimePoint limit);
  void collect_timelines();
  Status begin_output();
  Status start_all();
  Status reserve_ports();
  Status begin_elastic();
  bool begins_to_leave(int signal);
  void end_at_next_commit(const std::string& why, Duration limit);
  void foreground_lost();
  void handle_driver_loss();
  void driver_lost();
  void check_driver_loss();
  bool leaves_elastic_job() const;
  Status start_one(int local_rank, int elastic_number);
  void serve(std::uint64_t ready);
  void handle_signals();
  void handle_signal(int signal);
  void worker_ended(int local_rank);
  bool may_change_members() const {
    return elastic_ && !supervision_->is_ending() && !user_stopped_job_;
  }
  void report_exit_to_node_0(int local_rank, const std::string& how, bool succeeded);
  void advance_elastic_job();
  void output_closed();
  void handle_stops();
  void reap_orphans();
  void perform(const Actions& actions);
  void forward(int signal);
  void continue_stopped();
  std::vector<WatchedWorker> watched_workers() const {
    return workers_.watched(output_.host(), *supervision_);
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
  CallerReport report_;
  JobOutput output_;
  DriverReports driver_;
  std::unique_ptr<JobSheet> sheet_;               // what `farandole status` reads
  std::unique_ptr<WorkerReports> other_workers_;  // the same about other nodes; only on node 0
  WorkerTable workers_;
  EndNotices end_notices_;  // of an elastic job
  std::optional<Supervision> supervision_;
  std::unique_ptr<ElasticNode> elastic_;         // null: the number of workers is fixed
  std::optional<TimelineCollection> timelines_;  // empty if the job is on this host only
  InitWatch init_watch_;
  StallReports stalls_;
  MemoryKillCounter memory_kills_{own_memory_counter_file()};  // the workers start in our cgroup
  TimePoint last_memory_sample_ = now();
  Status nodes_failure_;  // why this node cannot take part in the job
  EndRequests requests_;
  DriverLoss driver_loss_;  // of an elastic job
  CommonEnd common_end_;
  bool user_stopped_job_ = false;
  bool job_is_over_ = false;
};

int Agent::run() {
  Status started = watch_own_descriptors();
  if (started.ok() && setup_.options.nodes) {
    if (started = join_nodes(); !started.ok()) {
      output_.error(started.message());
      return finish(requests_.last_signal != 0               ? 128 + requests_.last_signal
                    : started.code() == StatusCode::kFixCall ? 2
                                                             : 1);
    }
  }
  if (started.ok()) started = begin_output();
  const bool prepared = started.ok();
  if (prepared) started = start_all();
  if (!started.ok()) {
    output_.error(started.message());
    const bool others_go_on = nodes_ && nodes_->link().start_message()->has_begun;
    if (nodes_ && !others_go_on) nodes_->link().report_failing({.why = started.message()});
    return finish(prepared && started.code() == StatusCode::kFixCall ? 126 : 1);
  }
  supervision_.emplace(workers_.pids(), setup_.options.grace, layout_.first_rank());
  if (elastic_) supervision_->set_elastic();
  if (const auto& other = common_end_.other_failure())
    perform(supervision_->other_node_failed(other->failure, now()));
  stalls_.begin(layout_, {nodes_ ? &nodes_->link() : nullptr, other_workers_.get()},
                {.of_node = [this] { return watched_workers(); },
                 .slots_by_rank =
                     [this] { return elastic_ ? elastic_->slots_by_rank() : std::vector<int>(); }},
                now());
  advance_elastic_job();  // orders may have come with the start
  while (!supervision_->finished() &&
         (!requests_.foreground_is_gone || supervision_->ends_at_next_commit())) {
    for (const std::uint64_t ready : poller_.wait(deadline())) serve(ready);
    reap_orphans();
    stalls_.show_stack(now());
    check_missing_inits();
    check_stalls();
    serve_nodes();
    advance_elastic_job();
    check_driver_loss();
    if (nodes_ && (!elastic_ || layout_.node == 0))
      common_end_.tell_own_failure(supervision_->own_failure(), nodes_->link());
    if (output_.closed()) output_closed();
    perform(supervision_->time_passed(now()));
  }
  serve_until_others_have_ended();
  return finish(supervision_->exit_code());
}

// If the driver is lost, the workers of other nodes need this Store until they have ended.
void Agent::serve_until_others_have_ended() {
  if (setup_.options.workers > 0 || !driver_loss_.is_lost()) return;
  wait_until_others_are_gone(nodes_->link(), layout_.nodes(), now() + driver_loss_.time_left(now()),
                             [this](TimePoint limit) { wait_with_nodes(limit); });
}

Status Agent::watch_own_descriptors() {
  const int caller = setup_.options.caller.pidfd;
  const int driver_loss = setup_.driver_loss;
  if (poller_.add(setup_.signals.get(), Poller::Interest::kReading, tag(Source::kSignals)) &&
      poller_.add(setup_.foreground.get(), Poller::Interest::kReading, tag(Source::kForeground)) &&
      (driver_loss < 0 ||
       poller_.add(driver_loss, Poller::Interest::kReading, tag(Source::kDriverLoss))) &&
      (caller < 0 || poller_.add(caller, Poller::Interest::kReading, tag(Source::kCaller))) &&
      poller_.add(store_->readiness(), Poller::Interest::kReading, tag(Source::kStore)))
    return {};
  return Status::stop(
      "the launcher cannot watch its own descriptors; the limit is in "
      "/proc/sys/fs/epoll/max_user_watches");
}

// Waits until all nodes have come. Then the ranks are known.
Status Agent::join_nodes() {
  NodeOptions options = *setup_.options.nodes;
  if (options.host.empty()) options.host = output_.host();
  FARANDOLE_TRY(reserve_ports());
  options.master_port = static_cast<std::uint32_t>(worker_setup_.master_port());
  options.tensorflow_ports = worker_setup_.framework_ports().tensorflow();
  options.uses_jax = setup_.options.frameworks.jax;
  options.jax_port = worker_setup_.framework_ports().jax();
  FARANDOLE_TRY_ASSIGN(nodes_, JobNodes::join(options, setup_.options.secret, now()));
  if (!poller_.add(nodes_->link().descriptor(), Poller::Interest::kReading, tag(Source::kNodes)))
    return Status::stop("the launcher cannot watch its connections to the other nodes");
  for (;;) {
    serve_nodes();
    FARANDOLE_TRY(nodes_failure_);
    driver_.addresses(nodes_->link());
    if (nodes_->link().start_message()) break;
    for (const std::uint64_t ready : poller_.wait(deadline())) serve(ready);
    if (requests_.last_signal != 0 || output_.closed())
      return Status::stop((requests_.last_signal != 0 ? signal_name(requests_.last_signal)
                                                      : "the end of the output's reader") +
                          " has ended the job before all nodes had come");
    if (requests_.foreground_is_gone) {
      return Status::stop("the launcher was killed");
    }
  }
  layout_ = nodes_->layout();
  driver_.job_begins(layout_.node);
  init_watch_ = InitWatch(layout_.size(), now(), layout_.first_rank());
  timelines_.emplace(
      layout_, nodes_->link(),
      TimelineCollection::Target{setup_.options.timeline_path, setup_.options.timeline_bytes},
      [this](const std::string& line) { output_.notice(line); });
  return {};
}

void Agent::serve_nodes() {
  if (!nodes_ || !nodes_failure_.ok()) return;
  auto news = nodes_->link().advance(now());
  nodes_failure_ = news.status();
  if (!news.ok()) return;
  for (const auto& notice : news->notices) output_.notice(notice);
  for (auto& worker : news->workers) {
    const OtherEnd& peer = worker->peer();
    const std::string name = format_text("{} ({})", name_of(peer.party), peer.addresses);
    const Status adopted = store_->adopt_remote_client(name, std::move(worker));
    if (!adopted.ok()) output_.notice(name + " cannot use the Store: " + adopted.message());
  }
  if (setup_.options.elastic) {
    if (!elastic_ && nodes_->link().start_message()) nodes_failure_ = begin_elastic();
    if (elastic_) elastic_->take_news(*news, now());
    if (!news->changes.empty()) nodes_changed(news->changes);
    for (const NodeMessage& message : news->messages)
      if (const auto* leaving = std::get_if<NodeLeaves>(&message))
        driver_.node_changed(kLeavingNode, static_cast<int>(leaving->node));
  } else {
    for (const auto& exit : news->exits)
      report_exit(*store_, static_cast<int>(exit.rank), exit.how);
  }
  for (const auto& question : news->messages) {
    if (supervision_) stalls_.handle(question, now());
    if (timelines_) timelines_->handle(question, now());
  }
  for (const Failing& failing : news->failures) {
    common_end_.node_failed(failing);
    if (!supervision_) continue;
    Actions actions = supervision_->other_node_failed(failing.failure, now());
    if (node_0_reports()) actions.notices.clear();
    if (!job_is_over_) perform(actions);
  }
  common_end_.nodes_ended(std::move(news->ends));
}

void Agent::nodes_changed(const std::vector<NodeChange>& changes) {
  layout_ = nodes_->layout();
  stalls_.nodes_changed(layout_);
  if (timelines_) timelines_->nodes_changed(layout_);
  for (const NodeChange& change : changes)
    driver_.node_changed(change.is_here ? kJoinedNode : kLostNode, change.node);
}

Status Agent::begin_output() {
  RankFiles files;
  if (const std::string& folder = setup_.options.output.folder; !folder.empty()) {
    FARANDOLE_TRY_ASSIGN(files, RankFiles::create(folder, setup_.options.workers,
                                                  layout_.first_rank(), layout_.size()));
  }
  output_.begin(layout_.first_rank(), std::move(files));
  output_.copy_to(setup_.options.caller.copies);
  return {};
}

Status Agent::start_all() {
  const int workers = setup_.options.workers;
  FARANDOLE_TRY(
      check_descriptors("the launcher of " + std::to_string(workers) + " workers",
                        descriptors_needed(workers, layout_, setup_.options.elastic.has_value())));
  FARANDOLE_TRY_ASSIGN(sheet_, JobSheet::create({.foreground = ::getppid(),
                                                 .agent = ::getpid(),
                                                 .started = now(),
                                                 .host = output_.host(),
                                                 .command = join_text(setup_.options.command, " "),
                                                 .size = layout_.size(),
                                                 .first_rank = layout_.first_rank(),
                                                 .workers = {}},
                                                workers));
  if (nodes_ && layout_.node == 0) {
    FARANDOLE_TRY_ASSIGN(other_workers_, WorkerReports::create(layout_.size()));
  }
  if (setup_.options.elastic && !elastic_) FARANDOLE_TRY(begin_elastic());
  if (!nodes_) FARANDOLE_TRY(reserve_ports());
  if (workers == 0) return {};
  const auto notice = worker_setup_.choose_defaults();
  if (notice && !node_0_reports()) output_.notice(*notice);
  if (nodes_ && nodes_->link().start_message()->has_begun) return {};  // node 0 will order workers
  for (int worker = 0; worker < workers; ++worker)
    FARANDOLE_TRY(start_one(worker, elastic_ ? layout_.rank_of(worker) : -1));
  return {};
}

Status Agent::begin_elastic() {
  FARANDOLE_TRY_ASSIGN(
      elastic_,
      make_elastic_node(*setup_.options.elastic, nodes_ ? nodes_->layout() : layout_, *store_,
                        nodes_ ? &nodes_->link() : nullptr, now(),
                        setup_.options.nodes ? setup_.options.nodes->replaces : std::nullopt));
  return {};
}

Status Agent::reserve_ports() {
  const JobOptions& options = setup_.options;
  if (options.frameworks.tf_config) {
    FARANDOLE_TRY(check_descriptors(
        format_text("--tf-config: the launcher of {} workers", options.workers),
        descriptors_needed(options.workers, layout_, options.elastic.has_value()) +
            options.workers));
  }
  FARANDOLE_TRY_ASSIGN(const auto notice, worker_setup_.reserve_ports(
                                              !options.nodes || options.nodes->has_master_port));
  if (notice) output_.notice(*notice);
  return {};
}

Status Agent::start_one(int local_rank, int elastic_number) {
  const int rank = layout_.rank_of(local_rank);
  FARANDOLE_TRY_ASSIGN(
      WorkerInheritance inherited,
      WorkerInheritance::make(local_rank, "rank " + std::to_string(rank),
                              {.store = *store_,
                               .output = output_,
                               .nodes = nodes_.get(),
                               .end_notices = elastic_ ? &end_notices_ : nullptr}));
  WorkerSetup::Worker setup{.local_rank = local_rank,
                            .elastic_number = elastic_number,
                            .descriptors = inherited.numbers(),
                            .standard_output = inherited.output.standard_output.get(),
                            .standard_error = inherited.output.standard_error.get()};
  setup.use(setup_.options.caller);
  FARANDOLE_TRY_ASSIGN(StartedWorker worker,
                       worker_setup_.start(setup, layout_, nodes_.get(), setup_.state));
  if (!poller_.add(worker.pidfd.get(), Poller::Interest::kReading,
                   tag(Source::kWorker, static_cast<std::uint64_t>(local_rank))))
    return Status::stop("cannot watch rank " + std::to_string(rank) +
                        "; the limit is in /proc/sys/fs/epoll/max_user_watches");
  output_.worker_started(local_rank, worker.pid);
  report_.worker_started(rank, worker.pid);
  sheet_->worker_started(local_rank, worker.pid, setup.descriptors.flight_record);
  if (supervision_) supervision_->worker_started(local_rank, worker.pid);
  workers_.set(local_rank, std::move(worker), std::move(inherited.record));
  return {};
}

void Agent::serve(std::uint64_t ready) {
  switch (source_of(ready)) {
    case Source::kSignals:
      return handle_signals();
    case Source::kForeground:
      poller_.remove(setup_.foreground.get());
      return foreground_lost();
    case Source::kDriverLoss:
      return handle_driver_loss();
    case Source::kCaller:
      poller_.remove(setup_.options.caller.pidfd);
      return handle_signal(SIGHUP);
    case Source::kReport:
      return report_.sink_writable();
    case Source::kStore:
      for (const auto& complaint : store_->serve_ready()) output_.notice(complaint);
      if (const auto seconds = store_->number_at(keys::stall_warning()))
        stalls_.warn_after(*seconds);
      return;
    case Source::kWritable:
      return output_.sink_writable();
    case Source::kWorker:
      return worker_ended(static_cast<int>(index_of(ready)));
    case Source::kStream:
      return output_.stream_readable(index_of(ready));
    case Source::kStack:
    case Source::kNodes:
      return;  // they only wake the loop, which then calls show_stack() and serve_nodes()
  }
}

std::optional<TimePoint> Agent::deadline() const {
  std::optional<TimePoint> first;
  const auto consider = [&first](std::optional<TimePoint> other) {
    if (other && (!first || *other < *first)) first = other;
  };
  if (nodes_ && nodes_failure_.ok()) consider(nodes_->link().deadline());
  if (!supervision_ || job_is_over_) return first;
  consider(supervision_->deadline());
  consider(stalls_.stack_deadline());
  consider(driver_loss_.deadline());
  if (!elastic_) consider(init_watch_.deadline());
  if (may_change_members()) consider(elastic_->deadline());
  if (may_check_stalls()) consider(stalls_.next_check());
  consider(last_memory_sample_ + kMemorySampleTime);
  return first;
}

void Agent::handle_signals() {
  signalfd_siginfo info{};
  while (::read(setup_.signals.get(), &info, sizeof(info)) == sizeof(info))
    handle_signal(static_cast<int>(info.ssi_signo));
}

void Agent::handle_signal(int signal) {
  switch (signal) {
    case SIGCHLD:  // worker_ended() and reap_orphans() handle the ends of processes
      return handle_stops();
    case SIGWINCH:
      output_.window_changed();
      return forward(SIGWINCH);
    case SIGTSTP:
      user_stopped_job_ = true;
      return forward(SIGSTOP);
    case SIGCONT:
      user_stopped_job_ = false;
      stalls_.job_continued(now());
      return forward(SIGCONT);
    case SIGUSR1:
    case SIGUSR2:
      return forward(signal);
    default:
      requests_.last_signal = signal;
      if (job_is_over_) requests_.skip_waits = true;
      if (job_is_over_ || !supervision_ || begins_to_leave(signal)) return;
      Actions actions = supervision_->signal_received(signal, now());
      if (node_0_reports()) actions.notices.clear();
      perform(actions);
  }
}

void Agent::worker_ended(int local_rank) {
  const int rank = layout_.rank_of(local_rank);
  poller_.remove(workers_.pidfd(local_rank));
  const auto how_it_ended = reap(workers_.pid(local_rank));
  if (!how_it_ended) return;
  WorkerEnd end{.how = *how_it_ended, .record = {}, .memory_kills = {}, .at = {}};
  end.record = workers_.report(local_rank);
  end.memory_kills = memory_kills_.recent_kills();
  end.at = now();
  sheet_->worker_ended(local_rank, end.how);
  report_.worker_ended(rank, end.how);
  const std::string how = (elastic_ ? "worker " : "rank ") + std::to_string(rank) + " (pid " +
                          std::to_string(workers_.pid(local_rank)) +
                          (end.how.signal != 0 ? ") was " : ") has ") + describe(end.how);
  const bool matters = !elastic_ || elastic_->matters(local_rank);
  const bool is_superfluous = elastic_ && elastic_->is_superfluous(local_rank);
  if (elastic_) {
    elastic_->use_slots(end);
    elastic_->worker_ended(local_rank, !end.how.failed(), how, now());
    if (!is_superfluous && end.how.failed() && !supervision_->is_ending()) output_.notice(how);
    // Processes that it has left behind would keep its memory until the job ends.
    if (end.how.failed()) workers_.signal(local_rank, SIGKILL);
  } else {
    report_exit(*store_, rank, how);
  }
  if (nodes_) report_exit_to_node_0(local_rank, how, !end.how.failed());
  perform(supervision_->worker_ended(local_rank, std::move(end), matters));
}

void Agent::report_exit_to_node_0(int local_rank, const std::string& how, bool succeeded) {
  nodes_->link().report_exit({.rank = static_cast<std::uint32_t>(layout_.rank_of(local_rank)),
                              .how = how,
                              .succeeded = succeeded});
}

// Does what the membership of an elastic job has decided.
void Agent::advance_elastic_job() {
  if (!may_change_members()) return;
  const ElasticOrders orders = elastic_->advance(now());
  if (orders.group_formed) {
    supervision_->failures_survived();
    driver_.group_formed(layout_.node, elastic_->epoch());
  }
  if (!node_0_reports())
    for (const auto& notice : orders.notices) output_.notice(notice);
  for (const auto& [local_rank, number] : orders.starts) {
    const int slot = layout_.rank_of(local_rank);
    const Status started = start_one(local_rank, number);
    output_.notice(started.ok()
                       ? format_text("worker {} (pid {}) is new", slot, workers_.pid(local_rank))
                       : started.message());
    if (started.ok()) continue;
    const std::string how = format_text("worker {} could not start", slot);
    elastic_->worker_ended(local_rank, false, how, now());
    if (nodes_) report_exit_to_node_0(local_rank, how, false);
  }
  for (const int local_rank : orders.kills) workers_.signal(local_rank, SIGKILL);
  if (orders.must_leave) handle_signal(SIGTERM);
  if (!orders.end.empty()) perform(supervision_->cannot_go_on(orders.end, now()));
  if (elastic_->is_over()) supervision_->no_more_workers();
}

// A node of an elastic job that gets SIGTERM leaves at the next commit.
bool Agent::begins_to_leave(int signal) {
  return signal == SIGTERM && may_change_members() && elastic_->leave(now() + setup_.options.grace);
}

// Lets the workers of an elastic job finish their step, save their state and end. All ranks agree
// on the step, so it is enough that one launcher tells its workers. Those of this launcher that are
// left at the limit are killed.
void Agent::end_at_next_commit(const std::string& why, Duration limit) {
  if (!elastic_ || !supervision_ || job_is_over_ || supervision_->ends_at_next_commit()) return;
  perform(supervision_->end_at_next_commit(why, limit, now()));
  if (!supervision_->ends_at_next_commit()) return;  // it ends already
  end_notices_.send(why, limit);
  output_.drop_when_full();
  handle_signal(SIGCONT);  // a stopped worker could not save anything
}

// In a job over several hosts, only this node is lost, and the others go on.
void Agent::foreground_lost() {
  requests_.foreground_is_gone = true;
  if (!nodes_) end_at_next_commit("the foreground process of the launcher was killed", kEndLimit);
}

void Agent::handle_driver_loss() {
  poller_.remove(setup_.driver_loss);
  char byte = 0;  // without it, the foreground process has ended
  if (::read(setup_.driver_loss, &byte, 1) == 1) driver_lost();
}

void Agent::driver_lost() {
  driver_loss_.lost(now());
  if (!supervision_ || job_is_over_) requests_.foreground_is_gone = true;
}

void Agent::check_driver_loss() {
  if (!driver_loss_.is_lost()) return;
  const bool node_0_ends =
      layout_.node == 0 || common_end_.other_failure() || nodes_->link().has_lost_node_0();
  const auto verdict = driver_loss_.verdict(node_0_ends, now());
  if (verdict == DriverLoss::Verdict::kGoOn) return;
  requests_.foreground_is_gone = true;
  if (verdict == DriverLoss::Verdict::kEndAtNextCommit)
    end_at_next_commit("the driver of the job (`farandole run`) was killed",
                       driver_loss_.time_left(now()));
}

void Agent::output_closed() {
  if (supervision_->ends_at_next_commit() || driver_loss_.is_lost()) return;
  // Only a driver that is lost closes it.
  if (elastic_ && setup_.options.has_driver) return driver_lost();
  perform(supervision_->signal_received(SIGPIPE, now()));
}

// Whether this node ends while the others go on.
bool Agent::leaves_elastic_job() const {
  return elastic_ && elastic_->leaves_job() && !common_end_.other_failure();
}

// Warns the user about a stopped worker, but not if the user has stopped the whole job.
void Agent::handle_stops() {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WSTOPPED | WCONTINUED | WNOHANG) != 0 || info.si_pid == 0) return;
    const auto worker = workers_.find(info.si_pid);
    if (!worker || !supervision_) continue;
    const int rank = *worker;
    if (info.si_code == CLD_CONTINUED) {
      sheet_->worker_continued(rank);
      if (elastic_) elastic_->worker_continued(rank);
      perform(supervision_->worker_continued(rank));
      continue;
    }
    sheet_->worker_stopped(rank, info.si_status);
    if (user_stopped_job_) continue;
    perform(supervision_->worker_stopped(rank, info.si_status));
    if (elastic_) elastic_->worker_stopped(rank, now());
  }
}

// When a worker dies, its children become ours, because we are a subreaper. Workers are not reaped
// here but by worker_ended(), in the order in which their pidfds become ready.
void Agent::reap_orphans() {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    if (const auto worker = workers_.find(info.si_pid); worker && supervision_->is_alive(*worker))
      return;
    ::waitpid(info.si_pid, nullptr, 0);
  }
}

void Agent::perform(const Actions& actions) {
  for (const auto& notice : actions.notices) output_.notice(notice);
  if (actions.forward_signal) {
    forward(*actions.forward_signal);
    continue_stopped();
  }
  if (actions.kill_everything) signal_descendants(SIGKILL);
}

void Agent::forward(int signal) {
  if (job_is_over_) return;
  for (int rank = 0; rank < workers_.count(); ++rank)
    if (supervision_->is_alive(rank)) workers_.signal(rank, signal);
}

// A stopped process gets most signals only when it runs again, so continue it to end it.
void Agent::continue_stopped() {
  for (int rank = 0; rank < workers_.count(); ++rank)
    if (supervision_->stopped_by(rank) != 0) workers_.signal(rank, SIGCONT);
}

void Agent::check_missing_inits() {
  if (elastic_) return;  // workers of an elastic job may wait in init() for each other
  if (!init_watch_.deadline() || now() < *init_watch_.deadline()) return;
  const auto line = init_watch_.check(watched_workers(), now());
  const bool is_asked_for = setup_.options.frameworks.any();  // another library communicates
  if (line && !is_asked_for && !supervision_->is_ending()) output_.notice(*line);
}

// While the job ends or is stopped, it is normal that workers wait for each other.
bool Agent::may_check_stalls() const { return !user_stopped_job_ && !supervision_->is_ending(); }

void Agent::check_stalls() {
  if (now() >= last_memory_sample_ + kMemorySampleTime) {
    last_memory_sample_ = now();
    memory_kills_.sample();
  }
  if (may_check_stalls() && stalls_.next_check() && now() >= *stalls_.next_check())
    stalls_.check(now());
}

// After all workers have succeeded, waits for processes that they have left behind. Such a process,
// for example `tee log`, may still have to write the last lines.
void Agent::wait_for_leftovers(TimePoint deadline) {
  while (has_descendants() && now() < deadline && requests_.may_wait()) {
    for (const std::uint64_t ready : poller_.wait(deadline)) serve(ready);
    reap_orphans();
  }
}

std::optional<Failure> Agent::failure() const {
  auto failure = supervision_ ? supervision_->failure() : std::nullopt;
  if (failure && elastic_) failure->rank = elastic_->rank_of(failure->rank);
  if (failure && nodes_) {
    const std::string& given = setup_.options.nodes->host;
    failure->host = given.empty() ? output_.host() : given;
  }
  return failure;
}

void Agent::report_result() {
  if (const auto failure = this->failure())
    output_.show_lines(failure_box(
        *failure, {.columns = output_.box_columns(), .colors = output_.box_has_colors()}));
  for (const auto& line : supervision_->closing_lines()) output_.error(line);
  // A worker of an elastic job may come too late for init().
  if (supervision_->exit_code() != 0 || setup_.options.frameworks.any() || elastic_) return;
  if (const auto line = never_initialized(watched_workers(), layout_.first_rank(), layout_.size()))
    output_.notice(*line);
}

int Agent::finish(int exit_code) {
  job_is_over_ = true;
  stalls_.stop();
  if (exit_code == 0) {
    wait_for_leftovers(now() + Supervision::kLeftoverTime);
    if (has_descendants()) signal_descendants(SIGTERM);
    wait_for_leftovers(now() + Supervision::kLeftoverTime);
  }
  end_descendants(now() + Supervision::kKillTime);
  if (requests_.foreground_is_gone) {
    if (supervision_ && elastic_) output_.read_remaining();  // for the files of the ranks
    return exit_code;
  }
  output_.read_remaining();
  if (supervision_ && !node_0_reports()) report_result();
  exit_code = exit_code_with_other_nodes(exit_code);
  if (supervision_ && node_0_reports() && nodes_->link().has_lost_node_0()) report_result();
  if (const auto failure = supervision_ ? supervision_->failure() : std::nullopt)
    report_.first_cause(failure->rank, failure->pid);
  collect_timelines();
  output_.close();
  driver_.job_ends(layout_.node, exit_code);
  // Wait for a slow reader of the output, but not after a signal.
  const auto all_written = [this] {
    return output_.everything_is_written() && report_.everything_is_written();
  };
  while (!all_written() && requests_.may_wait())
    for (const std::uint64_t ready : poller_.wait(std::nullopt)) serve(ready);
  return exit_code_after_lost_output(exit_code);
}

int Agent::exit_code_with_other_nodes(int exit_code) {
  if (!nodes_ || !nodes_->link().start_message() || leaves_elastic_job()) return exit_code;
  const auto failure = this->failure();
  CommonEnd::OwnEnd own{.exit_code = exit_code,
                        .has_failed_itself = supervision_ && supervision_->has_failed_itself(),
                        .is_first_node = layout_.node == 0,
                        .is_elastic = elastic_ != nullptr,
                        .node_0_reports = node_0_reports()};
  if (failure) own.report = failure_box(*failure, {.columns = setup_.options.output.box_columns});
  return common_end_.exit_code(own, nodes_->link(),
                               [this](TimePoint limit) { wait_with_nodes(limit); });
}

void Agent::wait_with_nodes(TimePoint limit) {
  if (const auto other = deadline()) limit = std::min(limit, *other);
  for (const std::uint64_t ready : poller_.wait(limit)) serve(ready);
  serve_nodes();
}

// Adds the timelines of the other nodes to that of node 0. The exit code is known before, and does
// not depend on it.
void Agent::collect_timelines() {
  if (!timelines_) return;
  const NodeLink& link = nodes_->link();
  // Otherwise, ranks of other nodes may still write to their files.
  if (!link.outcome()) return timelines_->skip("not all nodes have ended");
  timelines_->begin(store_->text_at(keys::job_name()).value_or(""), now());
  while (!timelines_->is_over() && nodes_failure_.ok() && requests_.may_wait()) {
    wait_with_nodes(timelines_->deadline());
    timelines_->time_passed(now());
  }
  timelines_->give_up(requests_.skip_waits
                          ? signal_name(requests_.last_signal) + " has ended the collection"
                          : nodes_failure_.message());
}

// Reports lost output and makes the job fail, because the user must learn that lines are missing.
int Agent::exit_code_after_lost_output(int exit_code) {
  const auto lost = output_.lost_output();
  if (!lost || requests_.foreground_is_gone) return exit_code;
  std::fprintf(stderr, "farandole: %s\n", lost->c_str());
  return exit_code == 0 ? 1 : exit_code;
}

}  // namespace

int run_agent(const AgentSetup& setup) {
  auto poller = Poller::create();
  auto store = StoreServer::create("the launcher");
  if (!poller.ok() || !store.ok()) {
    const Status& failure = poller.ok() ? store.status() : poller.status();
    std::fprintf(stderr, "farandole: cannot start the job: %s (look at `ulimit -n`)\n",
                 failure.message().c_str());
    return 1;
  }
  Agent agent(setup, std::move(poller).value(), std::move(store).value());
  return agent.run();
}

}  // namespace farandole
