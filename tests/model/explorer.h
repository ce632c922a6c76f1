// The explorer visits every state that the threads of a scenario can reach together. Each thread
// has a FIFO store buffer (x86-TSO; or partial store order) and may sleep on futexes; members may
// die at any point. The explorer finds broken assertions, and deadlocks: states in which no thread
// can go on, although one has not finished. It compares states by a 64-bit fingerprint: among n
// states, two different ones get the same fingerprint with a chance of about n² / 2^65.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "scenario.h"

namespace farandole::model {

struct Limits {
  std::uint64_t states_max = 20'000'000;
  bool partial_store_order = false;
  // Breadth first finds the shortest way to an error; depth first often finds an error sooner.
  bool depth_first = false;
  // Requires that the end stays reachable from every state. This check finds threads that poll for
  // ever and so are never stuck. It costs memory, and works only if all states of the job are
  // visited.
  bool end_must_be_reachable = false;
};

enum class Verdict : std::uint8_t { kHolds, kBounded, kDeadlock, kLivelock, kViolation };

struct Finding {
  Verdict verdict = Verdict::kHolds;
  std::string text;  // what broke, or which threads are stuck and where
  std::uint64_t states = 0;
  std::uint64_t transitions = 0;
  std::string trace;  // the moves that lead to the error, one per line
};

Finding explore(const Scenario& scenario, const Limits& limits);

std::string_view name_of(Verdict verdict);

}  // namespace farandole::model
