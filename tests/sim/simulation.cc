#include "simulation.h"

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "random.h"
#include "referee.h"
#include "story.h"

namespace farandole::sim {
namespace {

// More than any script needs: a job that goes on and on has no end.
constexpr std::uint64_t kHappeningsMax = 3'000'000;

class Simulation {
 public:
  Simulation(std::uint64_t seed, Telling telling, const Bug& bug)
      : script_(random_script(seed)),
        random_(~seed),
        story_(telling),
        referee_(script_),
        network_(script_, timeline_, random_, referee_, bug.tap ? bug.tap(script_) : Tap()),
        around_{script_, bug.flaws, timeline_, random_, network_, referee_, story_} {
    for (int number = 0; number < script_.workers; ++number)
      workers_.push_back(std::make_unique<SimulatedWorker>(number, around_));
  }

  Report run() {
    tell_cast();
    for (int worker = 0; worker < script_.workers; ++worker)
      timeline_.add(random_.between(0, static_cast<int>(script_.delay_max)), Run{worker});
    for (const auto& [worker, time] : script_.deaths) timeline_.add(time, Die{worker});

    std::uint64_t happenings = 0;
    while (!referee_.problem()) {
      const auto next = timeline_.next();
      if (!next) break;
      std::visit([this](const auto& what) { happen(what); }, *next);
      if (++happenings > kHappeningsMax) referee_.blow("the job does not come to an end");
    }
    if (!referee_.problem()) check_end();
    if (referee_.problem()) story_.tell(timeline_.now(), "WRONG: {}", *referee_.problem());
    return {.problem = referee_.problem(),
            .number = story_.number(),
            .lines = story_.lines(),
            .steps = referee_.steps(),
            .steps_joined = referee_.steps_joined(),
            .refusals = referee_.refusals(),
            .releases = referee_.releases(),
            .messages = network_.messages(),
            .somebody_died = died_};
  }

 private:
  void tell_cast() {
    story_.tell(0, "{} workers, {} calls, delays up to {} µs", script_.workers,
                script_.calls.size(), script_.delay_max);
    for (std::size_t group = 0; group < script_.groups.size(); ++group)
      story_.tell(0, "group {}: workers {}; at most {} names", group,
                  fmt::join(script_.groups[group], " "), script_.names_max[group]);
  }

  SimulatedWorker& worker(int number) { return *workers_[static_cast<std::size_t>(number)]; }

  void happen(const Deliver& deliver) {
    const auto envelope = network_.take(deliver);
    const auto& members = script_.groups[static_cast<std::size_t>(deliver.group)];
    worker(members[static_cast<std::size_t>(deliver.to)]).receive(envelope);
  }

  void happen(const Run& run) { worker(run.worker).run(); }

  void happen(const Die& death) {
    if (!worker(death.worker).alive() || all_finished()) return;
    died_ = true;
    worker(death.worker).die();
    bool tells = !around_.flaws.one_survivor_is_not_told;
    for (int other = 0; other < script_.workers; ++other) {
      if (!worker(other).alive()) continue;
      const Time delay = random_.between(0, 3 * static_cast<int>(script_.delay_max));
      if (tells) timeline_.add(timeline_.now() + delay, Learn{other, death.worker});
      tells = true;
    }
  }

  void happen(const Learn& learn) { worker(learn.worker).learn(learn.dead); }

  bool all_finished() const {
    for (const auto& one : workers_)
      if (!one->finished()) return false;
    return true;
  }

  void check_end() {
    std::vector<std::string> waiting;
    for (const auto& one : workers_)
      if (one->alive() && !one->finished()) waiting.push_back(one->waiting_for());
    if (!waiting.empty())
      referee_.blow(fmt::format("deadlock: {}", fmt::join(waiting, "; ")));
    else if (!died_)
      referee_.check_end();
  }

  Script script_;
  Timeline timeline_;
  Random random_;
  Story story_;
  Referee referee_;
  Network network_;
  Surroundings around_;
  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  bool died_ = false;
};

}  // namespace

Report simulate(std::uint64_t seed, Telling telling, const Bug& bug) {
  return Simulation(seed, telling, bug).run();
}

}  // namespace farandole::sim
