// The explorer: visits every state that the threads of a scenario can reach together, with a FIFO
// store buffer per thread (x86-TSO; or partial store order), sleeping on futexes, and members that
// die at any point. Finds broken assertions, and states in which nobody can go on though somebody
// should. States are told apart by a 64-bit fingerprint: with n of them, two different ones are
// mistaken for one with a chance of about n² / 2^65.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "scenario.h"

namespace farandole::model {

struct Limits {
  std::uint64_t states_max = 20'000'000;
  bool partial_store_order = false;
  // Breadth first finds the shortest way to what is wrong, depth first often finds one sooner.
  bool depth_first = false;
  // The end must stay reachable from every state, for threads that look again and again and are so
  // never stuck. Only of jobs that are explored to their end; costs memory.
  bool must_end = false;
};

enum class Verdict : std::uint8_t { kHolds, kBounded, kDeadlock, kLivelock, kViolation };

struct Finding {
  Verdict verdict = Verdict::kHolds;
  std::string text;  // what broke, or who is stuck where
  std::uint64_t states = 0;
  std::uint64_t transitions = 0;
  std::string trace;  // the way there, a line per step
};

Finding explore(const Scenario& scenario, const Limits& limits);

std::string_view name_of(Verdict verdict);

}  // namespace farandole::model
