// A worker that only starts: it joins its job and meets the other ranks in a barrier. Then rank 0
// prints the time (seconds of the steady clock). bench/hosts/start.py measures starts with it.
#include <chrono>
#include <cstdio>
#include <string>

#include "farandole/engine.h"

namespace farandole {
namespace {

Result<int> meet() {
  auto options = EngineOptions::from_environment();
  if (!options.ok()) return options.status();
  auto engine = Engine::create(*std::move(options));
  if (!engine.ok()) return engine.status();
  Submission barrier;
  barrier.name = "start";
  const auto handle = (*engine)->submit(barrier, std::chrono::minutes(5));
  if (!handle.ok()) return handle.status();
  if (const Outcome outcome = (*engine)->take(*handle); !outcome.status.ok()) return outcome.status;
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  const RankTopology& topology = (*engine)->topology();
  if (topology.rank == 0) std::printf("%d ranks met at %.6f\n", topology.size, now.count());
  return 0;
}

}  // namespace
}  // namespace farandole

int main() {
  const auto met = farandole::meet();
  if (!met.ok()) std::fprintf(stderr, "%s\n", met.status().message().c_str());
  return met.ok() ? 0 : 1;
}
