#include "random_script.h"

#include <algorithm>

#include "free_script.h"
#include "loop_script.h"
#include "names_script.h"
#include "random.h"
#include "random_calls.h"

namespace farandole::sim {
namespace {

ScriptKind random_kind(Random& random) {
  const int kind = random.below(400);
  if (kind == 0) return ScriptKind::kLarge;
  if (kind < 200) return ScriptKind::kFree;
  return kind < 380 ? ScriptKind::kLoop : ScriptKind::kNames;
}

// Sometimes all workers of a host die at once.
void add_deaths(Random& random, Script& script) {
  for (int count = random.chance(80) ? 1 : 2; count > 0; --count) {
    const Death death{random.below(script.workers),
                      random.below(30) * script.delay_max + random.below(50)};
    script.deaths.push_back(death);
    if (script.hosts.empty() || random.chance(50)) continue;
    for (int other = 0; other < script.workers; ++other)
      if (other != death.worker && script.host_of(other) == script.host_of(death.worker))
        script.deaths.push_back({other, death.time});
  }
}

// Up to 20 hosts, so that leaders may have leaders above and below them. The workers of a host need
// not have consecutive numbers.
void add_hosts(Random& random, Script& script) {
  const int hosts = random.between(2, random.chance(50) ? 4 : 20);
  for (int worker = 0; worker < script.workers; ++worker)
    script.hosts.push_back(random.chance(50) ? worker * hosts / script.workers
                                             : random.below(hosts));
}

// Partitions in one direction or in both.
void add_partitions(Random& random, Script& script) {
  for (int count = random.between(1, 5); count > 0; --count) {
    const int from = random.pick(script.hosts);
    const int to = random.pick(script.hosts);
    const Time begin = random.below(80) * script.delay_max;
    const Time end = begin + random.between(1, 40) * script.delay_max;
    if (from == to) continue;
    std::optional<Traffic> only;
    if (random.chance(50)) only = random.chance(50) ? Traffic::kEntries : Traffic::kMessages;
    script.partitions.push_back({from, to, begin, end, only});
    if (random.chance(50)) script.partitions.push_back({to, from, begin, end, only});
    script.pauses += 2 * (end - begin);
  }
  std::ranges::sort(script.partitions, {}, &Partition::begin);
}

// Pauses hosts, but not in loops that must fall silent: in such a loop, a member that was stopped
// between two submissions may ask for a replan.
void add_host_pauses(Random& random, Script& script) {
  if (script.must_fall_silent) return;
  for (int count = random.between(1, 3); count > 0; --count) {
    const Time begin = random.below(80) * script.delay_max;
    const Time end = begin + random.between(1, 40) * script.delay_max;
    script.host_pauses.push_back({random.pick(script.hosts), begin, end});
    script.pauses += end - begin;
  }
}

ScriptKind kind_on_hosts(Random& random) {
  const int kind = random.below(100);
  if (kind < 45) return ScriptKind::kFree;
  return kind < 85 ? ScriptKind::kLoop : ScriptKind::kNames;
}

int worker_count(Random& random, ScriptKind kind, bool on_hosts) {
  if (on_hosts) return random.between(2, random.chance(70) ? 12 : 40);
  if (kind == ScriptKind::kLarge) return random.between(100, random.chance(30) ? 1024 : 300);
  if (kind == ScriptKind::kLoop) return random.between(2, random.chance(80) ? 5 : 16);
  return random_worker_count(random);
}

}  // namespace

Script random_script(std::uint64_t seed, ScriptKind kind) {
  Random random(seed);
  const auto chosen = random_kind(random);
  if (kind == ScriptKind::kAny) kind = chosen;
  const bool on_hosts = kind == ScriptKind::kHosts;
  if (on_hosts) kind = kind_on_hosts(random);
  Script script;
  script.workers = worker_count(random, kind, on_hosts);
  if (on_hosts) add_hosts(random, script);
  script.groups = random_groups(random, script.workers);
  script.delay_max = random.chance(20) ? 2 : random.between(10, 200);
  for (std::size_t group = 0; group < script.groups.size(); ++group)
    script.options.push_back(random_options(random, script.delay_max));
  if (kind == ScriptKind::kNames)
    write_names_script(random, script);
  else if (kind == ScriptKind::kLoop || (kind == ScriptKind::kLarge && random.chance(50)))
    write_loop_script(random, script);
  else
    write_free_script(random, script);
  if (random.chance(kind == ScriptKind::kLoop ? 10 : 25)) add_deaths(random, script);
  if (on_hosts && random.chance(40))
    script.delay_factors.at(random.chance(70) ? 0 : 1) = random.between(2, 12);
  if (on_hosts && random.chance(60)) add_partitions(random, script);
  if (on_hosts && random.chance(20)) add_host_pauses(random, script);
  return script;
}

void add_leaves(std::uint64_t seed, Script& script) {
  Random random(~(seed << 32));
  for (auto& program : script.programs) program.emplace_back(Leave{.is_early = false});
  if (!random.chance(script.hosts.empty() ? 10 : 30)) return;
  for (int count = random.chance(70) ? 1 : 2; count > 0; --count) {
    auto& program = script.programs[static_cast<std::size_t>(random.below(script.workers))];
    program.erase(program.begin() + random.below(static_cast<int>(program.size())), program.end());
    if (!script.hosts.empty() &&
        random.chance(50)) {  // gives the worker time to enter its last step
      const Time time = random.between(1, 20) * script.delay_max;
      program.emplace_back(Pause{time, false});
      script.pauses += time;
    }
    program.emplace_back(Leave{.is_early = true});
  }
}

}  // namespace farandole::sim
