// A job of engines, each in a process of its own, and one more process that serves their Store.
#pragma once

#include <functional>

namespace farandole::bench {

// Runs the function in the process of each rank. `rendezvous` is the descriptor that the rank
// passes to its engine in EngineOptions. Returns whether the function returned true in all of these
// processes.
bool run_in_job(int ranks, const std::function<bool(int rank, int rendezvous)>& function);

}  // namespace farandole::bench
