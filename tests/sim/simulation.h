// Simulation: a whole job in one thread from one seed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "network.h"
#include "random_script.h"
#include "script.h"
#include "story.h"
#include "worker.h"

namespace farandole::sim {

// A bug to plant.
struct Bug {
  std::function<Tap(const Script&)> tap;  // may be empty
  Flaws flaws;
  std::function<FrameTap(const Script&)> frame_tap = {};  // may be empty
};

// The result of a simulation.
struct SimulationResult {
  std::optional<std::string> problem;  // empty if all rules were kept
  std::uint64_t digest = 0;            // of the whole story
  std::deque<std::string> lines;       // the end of the story
  std::uint64_t steps = 0;
  // of `steps`: steps in which a member that had joined took part
  std::uint64_t steps_joined = 0;
  std::uint64_t steps_fused = 0;  // of `steps`: steps that fused several calls
  std::uint64_t rejections = 0;
  std::uint64_t releases = 0;
  std::uint64_t rollbacks = 0;
  std::uint64_t messages = 0;
  bool must_fall_silent = false;  // the job reached the part in which no message may be sent
  // the job reached the part in which nothing is new, and no message was sent there
  bool fell_silent = false;
  bool any_member_died = false;
  bool any_member_left_early = false;
  MultiHostCounts multi_host_counts;
  Time time = 0;  // when the last program ended
};

struct Seed {
  std::uint64_t number;
  ScriptKind kind = ScriptKind::kAny;
};
SimulationResult simulate(const Seed& seed, StoryOptions story_options, const Bug& bug = {});
// Runs a given script. The seed decides when things happen.
SimulationResult simulate(Script script, std::uint64_t seed, StoryOptions story_options,
                          const Bug& bug = {});

}  // namespace farandole::sim
