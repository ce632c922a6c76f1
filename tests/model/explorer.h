// The explorer visits every state that the threads of a scenario can reach together. Each thread
// has a FIFO store buffer (x86-TSO; or partial store order) and may sleep on futexes; members may
// die at any point. The explorer finds broken assertions and deadlocks. A deadlock is a state in
// which no thread can go on, although some thread has not finished. The explorer compares states by
// a 64-bit fingerprint: among n states, the probability that two different ones get the same
// fingerprint is about n² / 2^65.
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
  // Requires that every state has a way to the end. This finds threads that poll for ever, which do
  // not count as a deadlock. The check costs memory, and works only if all states of the job are
  // visited.
  bool end_must_be_reachable = false;
};

enum class Verdict : std::uint8_t { kHolds, kBounded, kDeadlock, kLivelock, kViolation };

struct Finding {
  Verdict verdict = Verdict::kHolds;
  std::string text;  // the broken assertion, or the stuck threads and what each waits for
  std::uint64_t states = 0;
  std::uint64_t transitions = 0;
  std::string trace;  // the moves that lead to the error, one per line
};

Finding explore(const Scenario& scenario, const Limits& limits);

std::string_view name_of(Verdict verdict);

}  // namespace farandole::model
