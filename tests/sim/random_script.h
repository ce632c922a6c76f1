// Makes the script of a seed.
#pragma once

#include <cstdint>

#include "script.h"

namespace farandole::sim {

// The kind of a seed's script. Everything else about the script is random.
enum class ScriptKind : std::uint8_t {
  kAny,
  kFree,   // phases that differ, with batches, joins and mismatches
  kLoop,   // the same calls again and again, so the group must learn them
  kLarge,  // hundreds of members with few calls
  kNames,  // calls without names, names in use, polls and dropped handles
  kHosts,  // one of the kinds above, with workers on several hosts
};

Script random_script(std::uint64_t seed, ScriptKind kind = ScriptKind::kAny);
// Makes every worker leave at the end of its program. In some jobs, one or two workers leave
// earlier. The workloads have no leaves, because all their workers must make all their calls.
void add_leaves(std::uint64_t seed, Script& script);

}  // namespace farandole::sim
