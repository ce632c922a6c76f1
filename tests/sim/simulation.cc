#include "simulation.h"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/format.h"
#include "host_parts.h"
#include "random.h"
#include "referee.h"
#include "story.h"

namespace farandole::sim {
namespace {

class Simulation {
 public:
  Simulation(Script script, std::uint64_t seed, StoryOptions story_options, const Bug& bug)
      : script_(std::move(script)),
        random_(~seed),
        story_(story_options),
        referee_(script_),
        hosts_(script_),
        network_(hosts_, timeline_, random_, referee_,
                 {bug.tap ? bug.tap(script_) : Tap(),
                  bug.frame_tap ? bug.frame_tap(script_) : FrameTap()}),
        pids_(static_cast<std::size_t>(script_.workers)),
        dependencies_{script_, bug.flaws, timeline_, random_, network_,
                      hosts_,  referee_,  story_,    pids_} {
    for (int number = 0; number < script_.workers; ++number)
      workers_.push_back(std::make_unique<SimulatedWorker>(number, dependencies_));
  }

  SimulationResult run() {
    add_job_to_story();
    for (int worker = 0; worker < script_.workers; ++worker)
      timeline_.add(random_.between(0, static_cast<int>(script_.delay_max)), Run{worker});
    for (const auto& [worker, time] : script_.deaths) timeline_.add(time, Die{worker});
    for (const auto& [host, begin, end] : script_.host_pauses)
      timeline_.add(begin, PauseHost{host, end});

    const Time limit = time_limit();
    while (!referee_.problem()) {
      const auto next = timeline_.take_next();
      if (!next) break;
      std::visit([this](const auto& what) { process(what); }, *next);
      if (!finished_at_ && all_finished()) finished_at_ = timeline_.now();
      if (timeline_.now() > limit)
        referee_.report_problem(format_text("the job is not over after {} µs", limit));
    }
    if (!referee_.problem()) check_end();
    if (referee_.problem()) story_.tell(timeline_.now(), "WRONG: {}", *referee_.problem());
    return {.problem = referee_.problem(),
            .digest = story_.digest(),
            .lines = story_.lines(),
            .steps = referee_.steps(),
            .steps_joined = referee_.steps_joined(),
            .steps_fused = referee_.steps_fused(),
            .rejections = referee_.rejections(),
            .releases = referee_.releases(),
            .rollbacks = referee_.rollbacks(),
            .messages = network_.messages(),
            .must_fall_silent = referee_.all_programs_repeat() && script_.must_fall_silent,
            .fell_silent = referee_.all_programs_repeat() && referee_.late_messages() == 0,
            .any_member_died = any_member_died_,
            .any_member_left_early = referee_.any_group_is_cut_short(),
            .multi_host_counts = multi_host_counts(),
            .time = finished_at_.value_or(timeline_.now())};
  }

 private:
  void add_job_to_story() {
    story_.tell(0, "{} workers, {} calls, delays up to {} µs", script_.workers,
                script_.calls.size(), script_.delay_max);
    if (!script_.hosts.empty())
      story_.tell(0, "hosts of the workers: {}", join_text(script_.hosts, " "));
    for (std::size_t group = 0; group < script_.groups.size(); ++group)
      story_.tell(
          0, "group {}: workers {}; at most {} names, steps of {} bytes, grace {} µs", group,
          join_text(script_.groups[group], " "), script_.options[group].names_max,
          script_.options[group].fusion_bytes,
          std::chrono::ceil<std::chrono::microseconds>(script_.options[group].grace_time).count());
  }

  SimulatedWorker& worker(int number) { return *workers_[static_cast<std::size_t>(number)]; }

  void process(const Deliver& deliver) {
    const auto envelope = network_.take(deliver);
    const auto& members = script_.groups[static_cast<std::size_t>(deliver.group)];
    worker(members[static_cast<std::size_t>(deliver.to)]).receive(envelope);
  }

  void process(const DeliverFrame& arrive) {
    const auto frame = network_.take_frame(arrive);
    worker(hosts_.worker_of_lane_0(arrive.group, arrive.to)).receive(frame);
  }

  // Wakes the workers of the host part when the last flag that they may wait for has become
  // visible.
  void process(const Settle& settle) {
    auto& part = hosts_.part(settle.group, hosts_.part_of(settle.group, settle.member));
    if (!part.board.settle(hosts_.index_of(settle.group, settle.member))) return;
    for (const int member : part.members) {
      const Time delay = random_.between(0, static_cast<int>(script_.delay_max));
      const auto& ranks = script_.members(settle.group);
      timeline_.add(timeline_.now() + delay, Run{ranks[static_cast<std::size_t>(member)]});
    }
  }

  void process(const Run& run) { worker(run.worker).run(); }

  void process(const PauseHost& pause) {
    if (all_finished()) return;
    ++host_pauses_;
    for (const int number : hosts_.host(pause.host).workers) worker(number).stop(pause.end);
  }

  void process(const Die& death) {
    if (!worker(death.worker).is_alive() || all_finished()) return;
    any_member_died_ = true;
    referee_.record_death(death.worker);
    worker(death.worker).die();
    const int host = hosts_.host_of(death.worker);
    for (const int other : hosts_.hosts_connected_to(death.worker))
      network_.send_death(host, other, death.worker);
    record_death(host, death.worker);
    notify_workers(host);
  }

  void process(const NotifyHostOfDeath& event) {
    if (record_death(event.host, event.worker)) notify_workers(event.host);
  }

  // Returns whether this is the first death of which the host has learned.
  bool record_death(int host_number, int worker) {
    auto& host = hosts_.host(host_number);
    if (host.ended.first_dead_rank) return false;
    host.ended.first_dead_rank = worker;
    host.ended.leaves_before_death = host.tickets;
    return true;
  }

  void process(const ShowLeave& leave) {
    auto& host = hosts_.host(hosts_.host_of(leave.worker));
    const std::uint32_t ticket = ++host.tickets;
    const bool reverses_order = dependencies_.flaws.the_last_leaver_is_blamed;
    host.ended.leavers[static_cast<std::size_t>(leave.worker)] = {
        .ticket = reverses_order ? UINT32_MAX - 1 - ticket : ticket, .reason = "enough"};
    referee_.record_leave(leave.worker);
    notify_workers(hosts_.host_of(leave.worker));
  }

  void notify_workers(int host) {
    bool forgets_one = dependencies_.flaws.one_survivor_is_not_notified;
    for (const int other : hosts_.host(host).workers) {
      if (!worker(other).is_alive()) continue;
      const Time delay = random_.between(0, 3 * static_cast<int>(script_.delay_max));
      if (!forgets_one) timeline_.add(timeline_.now() + delay, NotifyWorker{other});
      forgets_one = false;
    }
  }

  void process(const NotifyWorker& event) { worker(event.worker).notify(); }

  MultiHostCounts multi_host_counts() const {
    auto counts = referee_.multi_host_counts();
    counts.partitions_used = network_.partitions_used();
    counts.host_pauses = host_pauses_;
    return counts;
  }

  bool all_finished() const {
    for (const auto& each_worker : workers_)
      if (!each_worker->has_finished()) return false;
    return true;
  }

  void check_end() {
    std::vector<std::string> waiting;
    for (const auto& each_worker : workers_)
      if (each_worker->is_alive() && !each_worker->has_finished())
        waiting.push_back(each_worker->waiting_for());
    if (!waiting.empty()) {
      const auto waiting_count = waiting.size();
      if (waiting_count > 6) waiting.resize(6);
      referee_.report_problem(
          format_text("deadlock of {}: {}", waiting_count, join_text(waiting, "; ")));
    }
    if (any_member_died_ || referee_.problem()) return;
    referee_.check_end();
  }

  // An upper bound of the time that all calls may take together, including replans.
  Time time_limit() const {
    Time grace = 0;
    for (const auto& options : script_.options)
      grace += std::chrono::ceil<std::chrono::microseconds>(options.grace_time).count();
    const auto calls = static_cast<Time>(script_.calls.size()) + 10;
    const int delay_factor = script_.delay_factors[0] * 5 + script_.delay_factors[1] * 55;
    return script_.pauses + calls * (delay_factor * script_.delay_max + 2 * grace);
  }

  Script script_;
  Timeline timeline_;
  Random random_;
  Story story_;
  Referee referee_;
  Hosts hosts_;
  Network network_;
  const std::vector<std::int64_t> pids_;
  Dependencies dependencies_;
  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  bool any_member_died_ = false;
  std::uint64_t host_pauses_ = 0;
  std::optional<Time> finished_at_;
};

}  // namespace

SimulationResult simulate(const Seed& seed, StoryOptions story_options, const Bug& bug) {
  Script script = random_script(seed.number, seed.kind);
  add_leaves(seed.number, script);
  return simulate(std::move(script), seed.number, story_options, bug);
}

SimulationResult simulate(Script script, std::uint64_t seed, StoryOptions story_options,
                          const Bug& bug) {
  return Simulation(std::move(script), seed, story_options, bug).run();
}

}  // namespace farandole::sim
