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

// A bug to be planted.
struct Bug {
  std::function<Tap(const Script&)> tap;  // may be empty
  Flaws flaws;
};

// What came of it.
struct Findings {
  std::optional<std::string> problem;  // nothing when all is well
  std::uint64_t number = 0;            // stands for the whole story
  std::deque<std::string> lines;       // the story's end
  std::uint64_t steps = 0;
  std::uint64_t steps_joined = 0;  // of these: that somebody got because it had joined
  std::uint64_t steps_fused = 0;   // of these: of several calls
  std::uint64_t refusals = 0;
  std::uint64_t releases = 0;
  std::uint64_t withdrawals = 0;
  std::uint64_t messages = 0;
  bool must_fall_silent = false;  // it came to where no message may be sent
  bool fell_silent = false;       // it came to where nothing was new, and no message was sent
  bool somebody_died = false;
};

struct Seed {
  std::uint64_t number;
  Kind kind = Kind::kAny;
};
Findings simulate(const Seed& seed, Telling telling, const Bug& bug = {});

}  // namespace farandole::sim
