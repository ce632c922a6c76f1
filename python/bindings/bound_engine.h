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
  ~BoundEngine();
  BoundEngine(const BoundEngine&) = delete;
  BoundEngine& operator=(const BoundEngine&) = delete;

  // Raises FarandoleError in a forked child.
  Engine& engine();
  // Answer in a forked child, too.
  const Place& place() const { return engine_->place(); }
  std::size_t bucket_bytes() const { return bucket_bytes_; }
  bool forked() const { return forked_; }

  void shutdown(const std::string& reason);
  void abandon_after_fork();
  // Until the call is done. An exception of a signal handler ends the waiting, not the call.
  void wait(Handle handle);

 private:
  std::unique_ptr<Engine> engine_;
  std::size_t bucket_bytes_ = 0;
  bool forked_ = false;
};

void bind_engine(nanobind::module_& module, nanobind::class_<BoundEngine>& engine);

}  // namespace farandole::python
