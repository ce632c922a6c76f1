#include "bound_engine.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <optional>
#include <span>
#include <utility>

#include "errors.h"

namespace nb = nanobind;

namespace farandole::python {
namespace {

// How long a wait may keep Python from looking at signals.
constexpr std::chrono::milliseconds kSlice{100};

}  // namespace

BoundEngine::BoundEngine(std::vector<std::vector<int>> groups) {
  Result<EngineOptions> options = EngineOptions::from_environment();
  raise_if_failed(options.status());
  options->groups = std::move(groups);
  bucket_bytes_ = options->bucket_bytes;
  std::optional<nb::python_error> signal;
  options->interrupted = [&signal] {
    const nb::gil_scoped_acquire locked;
    if (!signal && PyErr_CheckSignals() != 0) signal.emplace();
    return signal.has_value();
  };
  Result<std::unique_ptr<Engine>> engine = [&options] {
    const nb::gil_scoped_release unlocked;
    return Engine::create(*std::move(options));
  }();
  if (signal) throw *std::move(signal);
  raise_if_failed(engine.status());
  engine_ = *std::move(engine);
  place_ = engine_->place();
}

std::shared_ptr<Engine> BoundEngine::running() const {
  if (!engine_) {
    raise_if_failed(Status::rebuild_group("shutdown() was called before this call was done"));
  }
  return engine_;
}

void BoundEngine::shutdown(const std::string& reason) {
  if (forked_ || !engine_) return;
  const std::shared_ptr<Engine> engine = std::move(engine_);
  const nb::gil_scoped_release unlocked;
  engine->shutdown(reason);
}

void BoundEngine::abandon_after_fork() {
  if (!engine_) return;
  forked_ = true;
  engine_->abandon_after_fork();
}

bool BoundEngine::poll(Handle handle) const { return !engine_ || engine_->poll(handle); }

void BoundEngine::wait(Handle handle) const {
  while (!poll(handle)) {
    const std::shared_ptr<Engine> engine = running();
    {
      const nb::gil_scoped_release unlocked;
      if (engine->wait(handle, kSlice)) return;
    }
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

void bind_engine(nb::module_& module, nb::class_<BoundEngine>& engine) {
  module.attr("version") = FARANDOLE_VERSION;
  engine.def(nb::init<std::vector<std::vector<int>>>(), nb::arg("groups"))
      .def_prop_ro("rank", [](const BoundEngine& self) { return self.place().rank; })
      .def_prop_ro("size", [](const BoundEngine& self) { return self.place().size; })
      .def_prop_ro("local_rank", [](const BoundEngine& self) { return self.place().local_rank; })
      .def_prop_ro("local_size", [](const BoundEngine& self) { return self.place().local_size; })
      .def_prop_ro("cross_rank", [](const BoundEngine& self) { return self.place().cross_rank; })
      .def_prop_ro("cross_size", [](const BoundEngine& self) { return self.place().cross_size; })
      .def_prop_ro("bucket_bytes", &BoundEngine::bucket_bytes)
      .def_prop_ro("forked", &BoundEngine::forked)
      .def("ranks_of",
           [](BoundEngine& self, GroupId group) {
             const std::shared_ptr<Engine> running = self.running();
             const std::span<const int> ranks = running->ranks_of(group);
             return std::vector<int>(ranks.begin(), ranks.end());
           })
      .def("shutdown", &BoundEngine::shutdown, nb::arg("reason"))
      .def("abandon_after_fork", &BoundEngine::abandon_after_fork);
}

}  // namespace farandole::python
