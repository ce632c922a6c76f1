// A job of engines, each in a process of its own, and one more process that serves their Store.
#pragma once

#include <functional>

namespace farandole::bench {

// Runs the function in each process; `rendezvous` is the rank's descriptor for EngineOptions.
// Returns whether it returned true in all.
bool in_job(int ranks, const std::function<bool(int rank, int rendezvous)>& function);

}  // namespace farandole::bench
