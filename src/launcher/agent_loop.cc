#include "launcher/agent_loop.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "base/cores.h"
#include "base/descriptor_limit.h"
#include "base/format.h"
#include "base/process_end.h"
#include "base/rank_names.h"
#include "base/try.h"
#include "launcher/descriptors_needed.h"
#include "launcher/driver_lines.h"
#include "launcher/exit_report.h"
#include "launcher/worker_inheritance.h"
#include "output/rank_files.h"
#include "rendezvous/keys.h"
#include "workers/process_tree.h"
#include "workers/worker_environment.h"

namespace farandole {
namespace {

constexpr auto kMemorySampleInterval = std::chrono::milliseconds(2500);
// How often we try to reap a worker that a debugger traces.
constexpr auto kReapRetryInterval = std::chrono::milliseconds(200);

}  // namespace

int Agent::run() {
  Status started = watch_own_descriptors();
  if (started.ok() && setup_.options.nodes) {
    if (started = join_nodes(); !started.ok()) {
      output_.show_error(started.message());
      return finish(requests_.last_signal != 0               ? 128 + requests_.last_signal
                    : output_.is_closed()                    ? 128 + SIGPIPE
                    : started.code() == StatusCode::kFixCall ? 2
                                                             : 1);
    }
  }
  if (started.ok()) started = begin_output();
  const bool is_prepared = started.ok();
  if (is_prepared) started = start_workers();
  if (!started.ok()) {
    output_.show_error(started.message());
    const bool job_goes_on = nodes_ && nodes_->link().start_message()->has_begun;
    if (nodes_ && !job_goes_on) nodes_->link().report_failing({.why = started.message()});
    return finish(is_prepared && started.code() == StatusCode::kFixCall ? 126 : 1);
  }
  supervision_.emplace(workers_.pids(), setup_.options.grace, layout_.first_rank());
  if (elastic_) supervision_->set_elastic();
  if (const auto& failed_node = common_end_.other_failure())
    perform(supervision_->other_node_failed(failed_node->failure, now()));
  stalls_.begin(layout_, {nodes_ ? &nodes_->link() : nullptr, other_workers_.get()},
                {.of_this_node = [this] { return watched_workers(); },
                 .slots_by_rank =
                     [this] { return elastic_ ? elastic_->slots_by_rank() : std::vector<int>(); }},
                now());
  advance_elastic_job();  // orders may have arrived together with the start message
  while (!supervision_->is_finished() &&
         (!requests_.foreground_is_gone || supervision_->ends_at_next_commit())) {
    for (const std::uint64_t tag : poller_.wait(deadline())) handle_event(tag);
    reap_traced();
    reap_orphans();
    stalls_.show_stack(now());
    check_missing_inits();
    check_stalls();
    serve_nodes();
    advance_elastic_job();
    check_driver_loss();
    if (nodes_ && (!elastic_ || layout_.node == 0))
      common_end_.tell_own_failure(supervision_->own_failure(), nodes_->link());
    if (output_.is_closed()) handle_closed_output();
    perform(supervision_->handle_deadline(now()));
  }
  serve_until_others_have_ended();
  return finish(supervision_->exit_code());
}

Status Agent::watch_own_descriptors() {
  const int caller = setup_.options.caller.pidfd;
  const int driver_loss_pipe = setup_.driver_loss_pipe;
  if (poller_.add(setup_.signal_descriptor.get(), Poller::Interest::kReading,
                  make_tag(Source::kSignals)) &&
      poller_.add(setup_.foreground_pidfd.get(), Poller::Interest::kReading,
                  make_tag(Source::kForeground)) &&
      (driver_loss_pipe < 0 ||
       poller_.add(driver_loss_pipe, Poller::Interest::kReading, make_tag(Source::kDriverLoss))) &&
      (caller < 0 || poller_.add(caller, Poller::Interest::kReading, make_tag(Source::kCaller))) &&
      poller_.add(store_->ready_descriptor(), Poller::Interest::kReading, make_tag(Source::kStore)))
    return {};
  return Status::stop(
      "the launcher cannot watch its own descriptors; the limit is in "
      "/proc/sys/fs/epoll/max_user_watches");
}

// Waits until all nodes have joined. Then the ranks are known.
Status Agent::join_nodes() {
  NodeOptions options = *setup_.options.nodes;
  if (options.host.empty()) options.host = output_.host();
  FARANDOLE_TRY(reserve_ports());
  options.master_port = static_cast<std::uint32_t>(worker_setup_.master_port());
  options.tensorflow_ports = worker_setup_.framework_ports().tensorflow_ports();
  options.uses_jax = setup_.options.frameworks.jax;
  options.jax_port = worker_setup_.framework_ports().jax_port();
  FARANDOLE_TRY_ASSIGN(nodes_, JobNodes::begin_to_join(options, setup_.options.secret, now()));
  if (!poller_.add(nodes_->link().descriptor(), Poller::Interest::kReading,
                   make_tag(Source::kNodes)))
    return Status::stop("the launcher cannot watch its connections to the other nodes");
  for (;;) {
    serve_nodes();
    FARANDOLE_TRY(nodes_failure_);
    driver_reports_.report_addresses(nodes_->link());
    if (nodes_->link().start_message()) break;
    for (const std::uint64_t tag : poller_.wait(deadline())) handle_event(tag);
    if (requests_.last_signal != 0 || output_.is_closed())
      return Status::stop((requests_.last_signal != 0 ? signal_name(requests_.last_signal)
                                                      : "the end of the output's reader") +
                          " has ended the job before all nodes had joined");
    if (requests_.foreground_is_gone) {
      return Status::stop("the launcher was killed");
    }
  }
  layout_ = nodes_->layout();
  driver_reports_.report_job_begin(layout_.node);
  init_watch_ = InitWatch(layout_.size(), now(), layout_.first_rank());
  timelines_.emplace(
      layout_, nodes_->link(),
      TimelineCollection::Target{setup_.options.timeline_path, setup_.options.timeline_bytes},
      [this](const std::string& line) { output_.show_notice(line); });
  return {};
}

void Agent::serve_nodes() {
  if (!nodes_ || !nodes_failure_.ok()) return;
  auto news = nodes_->link().advance(now());
  nodes_failure_ = news.status();
  if (!news.ok()) return;
  for (const auto& notice : news->notices) output_.show_notice(notice);
  for (auto& worker : news->workers) {
    const ConnectionPeer& peer = worker->peer();
    const std::string name = format_text("{} ({})", name_of(peer.party), peer.addresses);
    const Status adopted = store_->adopt_remote_client(name, std::move(worker));
    if (!adopted.ok()) output_.show_notice(name + " cannot use the Store: " + adopted.message());
  }
  if (setup_.options.elastic) {
    if (!elastic_ && nodes_->link().start_message()) nodes_failure_ = begin_elastic_job();
    if (elastic_) elastic_->handle_events(*news, now());
    if (!news->changes.empty()) handle_node_changes(news->changes);
    for (const NodeMessage& message : news->messages)
      if (const auto* leaving = std::get_if<NodeLeaves>(&message))
        driver_reports_.report_node_change(kLeavingNodeLine, static_cast<int>(leaving->node));
  } else {
    for (const auto& exit : news->exits)
      report_exit(*store_, static_cast<int>(exit.rank), exit.how_it_ended);
  }
  for (const auto& question : news->messages) {
    if (supervision_) stalls_.handle(question, now());
    if (timelines_) timelines_->handle(question, now());
  }
  for (const FailedNode& failed_node : news->failures) {
    common_end_.node_failed(failed_node);
    if (!supervision_) continue;
    Actions actions = supervision_->other_node_failed(failed_node.failure, now());
    if (node_0_reports()) actions.notices.clear();
    if (!job_is_over_) perform(actions);
  }
  common_end_.nodes_ended(std::move(news->ends));
}

void Agent::handle_node_changes(const std::vector<NodeChange>& changes) {
  layout_ = nodes_->layout();
  stalls_.nodes_changed(layout_);
  if (timelines_) timelines_->nodes_changed(layout_);
  for (const NodeChange& change : changes)
    driver_reports_.report_node_change(change.is_present ? kJoinedNodeLine : kLostNodeLine,
                                       change.node);
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

Status Agent::start_workers() {
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
  if (setup_.options.elastic && !elastic_) FARANDOLE_TRY(begin_elastic_job());
  if (!nodes_) FARANDOLE_TRY(reserve_ports());
  if (workers == 0) return {};
  const auto notice = worker_setup_.choose_defaults();
  if (notice && !node_0_reports()) output_.show_notice(*notice);
  if (nodes_ && nodes_->link().start_message()->has_begun) return {};  // wait for WorkerStart
  for (int worker = 0; worker < workers; ++worker)
    FARANDOLE_TRY(start_local_worker(worker, elastic_ ? layout_.rank_of(worker) : -1));
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
  FARANDOLE_TRY_ASSIGN(
      const auto notice,
      worker_setup_.reserve_ports(!options.nodes || options.nodes->reserves_master_port));
  if (notice) output_.show_notice(*notice);
  return {};
}

Status Agent::start_local_worker(int local_rank, int elastic_number) {
  const int rank = layout_.rank_of(local_rank);
  FARANDOLE_TRY_ASSIGN(
      WorkerInheritance inherited,
      WorkerInheritance::create(local_rank, "rank " + std::to_string(rank),
                                {.store = *store_,
                                 .output = output_,
                                 .nodes = nodes_.get(),
                                 .worker_notices = elastic_ ? &worker_notices_ : nullptr}));
  WorkerSetup::Worker setup{.local_rank = local_rank,
                            .elastic_number = elastic_number,
                            .descriptors = inherited.descriptors(),
                            .standard_output = inherited.output.standard_output.get(),
                            .standard_error = inherited.output.standard_error.get()};
  setup.use_caller_descriptors(setup_.options.caller);
  FARANDOLE_TRY_ASSIGN(StartedProcess worker,
                       worker_setup_.start(setup, layout_, nodes_.get(), setup_.original_state));
  if (!poller_.add(worker.pidfd.get(), Poller::Interest::kReading,
                   make_tag(Source::kWorker, static_cast<std::uint64_t>(local_rank))))
    return Status::stop("cannot watch rank " + std::to_string(rank) +
                        "; the limit is in /proc/sys/fs/epoll/max_user_watches");
  output_.set_worker_pid(local_rank, worker.pid);
  caller_report_.worker_started(rank, worker.pid);
  sheet_->worker_started(local_rank, worker.pid, setup.descriptors.flight_record);
  if (supervision_) supervision_->worker_started(local_rank, worker.pid);
  workers_.set(local_rank, std::move(worker), std::move(inherited.record));
  return {};
}

void Agent::handle_event(std::uint64_t tag) {
  switch (source_of(tag)) {
    case Source::kSignals:
      return handle_signals();
    case Source::kForeground:
      poller_.remove(setup_.foreground_pidfd.get());
      return handle_foreground_loss();
    case Source::kDriverLoss:
      return handle_driver_loss();
    case Source::kCaller:
      poller_.remove(setup_.options.caller.pidfd);
      return handle_signal(SIGHUP);
    case Source::kReport:
      return caller_report_.sink_writable();
    case Source::kStore:
      for (const auto& complaint : store_->serve_ready()) output_.show_notice(complaint);
      if (const auto seconds = store_->number_at(keys::stall_warning()))
        stalls_.set_warn_after(*seconds);
      return;
    case Source::kWritable:
      return output_.sink_writable();
    case Source::kWorker:
      poller_.remove(workers_.pidfd(static_cast<int>(index_of(tag))));
      return handle_worker_end(static_cast<int>(index_of(tag)));
    case Source::kStream:
      return output_.stream_readable(index_of(tag));
    case Source::kStack:
    case Source::kNodes:
      return;  // these events only wake the loop, which then calls show_stack() and serve_nodes()
  }
}

std::optional<TimePoint> Agent::deadline() const {
  std::optional<TimePoint> earliest;
  const auto add_candidate = [&earliest](std::optional<TimePoint> candidate) {
    if (candidate && (!earliest || *candidate < *earliest)) earliest = candidate;
  };
  if (nodes_ && nodes_failure_.ok()) add_candidate(nodes_->link().deadline());
  if (!supervision_ || job_is_over_) return earliest;
  add_candidate(supervision_->deadline());
  add_candidate(stalls_.stack_deadline());
  add_candidate(driver_loss_.deadline());
  if (!elastic_) add_candidate(init_watch_.deadline());
  if (may_change_members()) add_candidate(elastic_->deadline());
  if (may_check_stalls()) add_candidate(stalls_.next_check());
  add_candidate(last_memory_sample_ + kMemorySampleInterval);
  if (!unreaped_workers_.empty()) add_candidate(now() + kReapRetryInterval);
  return earliest;
}

void Agent::handle_signals() {
  signalfd_siginfo signal_info{};
  while (::read(setup_.signal_descriptor.get(), &signal_info, sizeof(signal_info)) ==
         sizeof(signal_info))
    handle_signal(static_cast<int>(signal_info.ssi_signo));
}

void Agent::handle_signal(int signal) {
  switch (signal) {
    case SIGCHLD:  // handle_worker_end() and reap_orphans() handle the ends of processes
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
      if (!repeats_.is_repeat(signal, now())) request_end(signal);
  }
}

void Agent::request_end(int signal) {
  const bool is_first = std::exchange(requests_.last_signal, signal) == 0;
  if (job_is_over_ && !(is_first && pass_on_late_signal())) requests_.skip_waits = true;
  if (job_is_over_ || !supervision_ || begin_to_leave(signal)) return;
  Actions actions = supervision_->signal_received(signal, now());
  if (node_0_reports()) actions.notices.clear();
  perform(actions);
}

// Passes the last signal on to the other nodes, if the workers of this node had ended before the
// signal arrived. Returns whether to wait for the other nodes.
bool Agent::pass_on_late_signal() {
  if (!supervision_ || elastic_ || !ends_with_other_nodes()) return false;
  const int signal = requests_.last_signal;
  const bool waits =
      common_end_.pass_on_signal(supervision_->failure_by_signal(signal), nodes_->link());
  if (waits && !node_0_reports())
    output_.show_notice(signal_name(signal) +
                        ": waiting for the workers of the other hosts; a second signal ends this "
                        "wait");
  return waits;
}

void Agent::handle_worker_end(int local_rank) {
  const int rank = layout_.rank_of(local_rank);
  const auto how_it_ended = reap(workers_.pid(local_rank));
  if (!how_it_ended) return unreaped_workers_.push_back(local_rank);
  WorkerEnd end{.process_end = *how_it_ended, .record = {}, .memory_kills = {}, .at = {}};
  end.record = workers_.flight_report(local_rank);
  end.memory_kills = memory_kills_.recent_kills();
  end.at = now();
  sheet_->worker_ended(local_rank, end.process_end);
  caller_report_.worker_ended(rank, end.process_end);
  const std::string end_text = (elastic_ ? "worker " : "rank ") + std::to_string(rank) + " (pid " +
                               std::to_string(workers_.pid(local_rank)) +
                               (end.process_end.signal != 0 ? ") was " : ") has ") +
                               describe(end.process_end);
  const bool is_needed = !elastic_ || elastic_->is_needed(local_rank);
  const bool is_former_member = elastic_ && elastic_->is_former_member(local_rank);
  if (elastic_) {
    elastic_->replace_rank_by_slot(end);
    elastic_->worker_ended(local_rank, !end.process_end.failed(), end_text, now());
    if (!is_former_member && end.process_end.failed() && !supervision_->is_ending())
      output_.show_notice(end_text);
    // Kill the processes that this worker has left behind: they would keep its memory until the job
    // ends.
    if (end.process_end.failed()) workers_.send_signal(local_rank, SIGKILL);
  } else {
    report_exit(*store_, rank, end_text);
  }
  if (nodes_) report_exit_to_node_0(local_rank, end_text, !end.process_end.failed());
  perform(supervision_->worker_ended(local_rank, std::move(end), is_needed));
}

// Returns the local rank of the running worker with this pid. Workers that have ended do not count,
// because the kernel may have given the pid of such a worker to a new process.
std::optional<int> Agent::living_worker(pid_t pid) const {
  for (int local_rank = 0; supervision_ && local_rank < workers_.count(); ++local_rank)
    if (workers_.pid(local_rank) == pid && supervision_->is_alive(local_rank)) return local_rank;
  return std::nullopt;
}

// Warns the user about a stopped worker, but not if the user has stopped the whole job.
void Agent::handle_stops() {
  for (;;) {
    siginfo_t child{};
    if (::waitid(P_ALL, 0, &child, WSTOPPED | WCONTINUED | WNOHANG) != 0 || child.si_pid == 0)
      return;
    const auto worker = living_worker(child.si_pid);
    if (!worker) continue;
    const int local_rank = *worker;
    if (child.si_code == CLD_CONTINUED) {
      sheet_->worker_continued(local_rank);
      if (elastic_) elastic_->worker_continued(local_rank);
      perform(supervision_->worker_continued(local_rank));
      continue;
    }
    sheet_->worker_stopped(local_rank, child.si_status);
    if (user_stopped_job_) continue;
    perform(supervision_->worker_stopped(local_rank, child.si_status));
    if (elastic_) elastic_->worker_stopped(local_rank, now());
  }
}

// Tries again to reap the workers that have ended and are traced. While a debugger traces such a
// worker, only the debugger can reap it.
void Agent::reap_traced() {
  for (const int local_rank : std::exchange(unreaped_workers_, {})) handle_worker_end(local_rank);
}

// When a worker dies, its children become ours, because we are a subreaper. Workers are not reaped
// here but by handle_worker_end(), in the order in which their pidfds become ready.
void Agent::reap_orphans() {
  for (;;) {
    siginfo_t child{};
    if (::waitid(P_ALL, 0, &child, WEXITED | WNOHANG | WNOWAIT) != 0 || child.si_pid == 0) return;
    if (living_worker(child.si_pid)) return;
    ::waitpid(child.si_pid, nullptr, 0);
  }
}

void Agent::perform(const Actions& actions) {
  for (const auto& notice : actions.notices) output_.show_notice(notice);
  if (actions.forward_signal) {
    forward(*actions.forward_signal);
    continue_stopped();
  }
  if (actions.kill_everything) signal_descendants(SIGKILL);
}

void Agent::forward(int signal) {
  if (job_is_over_ || !supervision_) return;  // there may be no workers yet
  for (int local_rank = 0; local_rank < workers_.count(); ++local_rank)
    if (supervision_->is_alive(local_rank)) workers_.send_signal(local_rank, signal);
}

// A stopped process gets most signals only when it runs again. So continue the process, or the
// signal would not end it.
void Agent::continue_stopped() {
  for (int local_rank = 0; local_rank < workers_.count(); ++local_rank)
    if (supervision_->is_alive(local_rank) &&
        (user_stopped_job_ || supervision_->stop_signal(local_rank) != 0))
      workers_.send_signal(local_rank, SIGCONT);
}

void Agent::check_missing_inits() {
  if (elastic_) return;  // workers of an elastic job may wait in init() for each other
  if (!init_watch_.deadline() || now() < *init_watch_.deadline()) return;
  const auto line = init_watch_.check(watched_workers(), now());
  // With --tf-config or --jax, workers may never call init(), because they may communicate only
  // through another library.
  const bool is_init_optional = setup_.options.frameworks.any();
  if (line && !is_init_optional && !supervision_->is_ending()) output_.show_notice(*line);
}

// While the job ends or is stopped, it is normal that workers wait for each other.
bool Agent::may_check_stalls() const { return !user_stopped_job_ && !supervision_->is_ending(); }

void Agent::check_stalls() {
  if (now() >= last_memory_sample_ + kMemorySampleInterval) {
    last_memory_sample_ = now();
    memory_kills_.sample();
  }
  if (may_check_stalls() && stalls_.next_check() && now() >= *stalls_.next_check())
    stalls_.check(now());
}

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
