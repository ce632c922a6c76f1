// farandole.core.Engine: one Engine with the manners that Python expects. Long waits let other
// Python threads run and end on Ctrl-C; in a forked child the engine is never touched again.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "farandole/engine.h"

namespace farandole::python {

// All methods need the GIL. Which process-wide engine there is, farandole/lifecycle.py decides.
class BoundEngine {
 public:
  // Meets the others; raises KeyboardInterrupt or whatever a signal handler raised meanwhile.
  explicit BoundEngine(std::vector<std::vector<int>> groups);

  // Keeps the engine while a call runs without the GIL. Raises GroupLostError after
  // shutdown(). In a forked child the engine itself refuses calls.
  std::shared_ptr<Engine> running() const;
  // These answer always.
  const Place& place() const { return place_; }
  std::size_t bucket_bytes() const { return bucket_bytes_; }
  bool forked() const { return forked_; }

  // Leaves and frees everything but memory that Python still has.
  void shutdown(const std::string& reason);
  void abandon_after_fork();
  bool poll(Handle handle) const;
  // Until the call is done. An exception of a signal handler ends the waiting, not the call.
  void wait(Handle handle) const;

 private:
  // Owned by us until shutdown(), and by the calls that are running.
  std::shared_ptr<Engine> engine_;
  Place place_;
  std::size_t bucket_bytes_ = 0;
  bool forked_ = false;
};

void bind_engine(nanobind::module_& module, nanobind::class_<BoundEngine>& engine);

}  // namespace farandole::python
