#include "random_script.h"

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

void add_deaths(Random& random, Script& script) {
  for (int count = random.chance(80) ? 1 : 2; count > 0; --count)
    script.deaths.push_back(
        {random.below(script.workers), random.below(30) * script.delay_max + random.below(50)});
}

}  // namespace

Script random_script(std::uint64_t seed, ScriptKind kind) {
  Random random(seed);
  const auto chosen = random_kind(random);
  if (kind == ScriptKind::kAny) kind = chosen;
  Script script;
  script.workers = kind == ScriptKind::kLarge  ? random.between(100, random.chance(30) ? 1024 : 300)
                   : kind == ScriptKind::kLoop ? random.between(2, random.chance(80) ? 5 : 16)
                                               : random_worker_count(random);
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
  return script;
}

void add_leaves(std::uint64_t seed, Script& script) {
  Random random(~(seed << 32));
  for (auto& program : script.programs) program.emplace_back(Leave{.in_the_middle = false});
  if (!random.chance(10)) return;
  for (int count = random.chance(70) ? 1 : 2; count > 0; --count) {
    auto& program = script.programs[static_cast<std::size_t>(random.below(script.workers))];
    program.erase(program.begin() + random.below(static_cast<int>(program.size())), program.end());
    program.emplace_back(Leave{.in_the_middle = true});
  }
}

}  // namespace farandole::sim
