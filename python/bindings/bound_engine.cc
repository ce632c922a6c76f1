#include "bound_engine.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <utility>

#include "current_engine.h"
#include "errors.h"

namespace nb = nanobind;

namespace farandole::python {
namespace {

// If a signal handler has raised an exception, throws this exception. Python has stored this
// exception in the thread, and keeps the exception even while the thread does not hold the GIL.
void raise_if_interrupted() {
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
}

void raise_group_lost() {
  raise_if_failed(Status::rebuild_group("shutdown() was called before this call was done"));
}

}  // namespace

BoundEngine::BoundEngine(const BoundContext& context, std::vector<std::vector<int>> groups,
                         const std::string& rendezvous_id, const std::vector<int>& topology,
                         bool is_subset_of_job, bool on_one_host) {
  const bool topology_is_known = topology.size() == 2;  // `topology` is {rank, size}
  Result<EngineOptions> options = EngineOptions::from_environment(topology_is_known);
  raise_if_failed(options.status());
  if (topology_is_known) {
    // Rank 0 of the whole job serves the job's store. If an engine connects only some ranks, its
    // rank 0 may have another rank in the whole job. For such an engine, the launcher's variables
    // decide which rank serves the store.
    if (!is_subset_of_job) options->serves_job_store = topology[0] == 0;
    options->topology = {.rank = topology[0], .size = topology[1]};
    options->rendezvous_id = rendezvous_id;
  } else if (!options->rendezvous_id.empty()) {
    options->rendezvous_id += rendezvous_id;
  }
  options->is_subset_of_job = is_subset_of_job;
  if (is_subset_of_job) {
    // The launcher shows only the calls of the engine of the whole job, so an engine of only some
    // ranks records nothing.
    options->flight_record_descriptor = -1;
    options->timeline_path.clear();
  }
  if (on_one_host) {
    options->rendezvous_descriptor = -1;
    options->job_store.clear();
  } else if (topology_is_known && options->job_store.empty()) {
    raise_if_failed(Status::fix_call(
        "the ranks are on several hosts, and the launcher does not say on which host rank 0 is: "
        "set FARANDOLE_JOB_STORE=HOST:PORT for all ranks, with the host of rank 0 and a free port "
        "there"));
  }
  options->context = context.context;
  options->groups = groups;
  settings_ = options->same_on_all_ranks();
  options->interrupted = [this] {
    const nb::gil_scoped_acquire gil_lock;
    // A signal handler that runs here may call shutdown(), which waits until this counter is 0.
    --threads_inside_;
    const bool has_exception = PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0;
    ++threads_inside_;
    return has_exception;
  };
  Result<std::unique_ptr<Engine>> engine = [&] {
    const ThreadInsideEngine inside_engine(threads_inside_);
    const nb::gil_scoped_release gil_release;
    return Engine::create(*std::move(options));
  }();
  raise_if_interrupted();
  raise_if_failed(engine.status());
  engine_ = *std::move(engine);
  topology_ = engine_->topology();
  is_of_whole_job_ = !is_subset_of_job;
  if (is_of_whole_job_) set_current_engine(engine_, std::move(groups));
}

std::shared_ptr<Engine> BoundEngine::engine_for_new_calls() const {
  if (has_shutdown_begun_) raise_group_lost();
  return engine_for_calls_in_flight();
}

std::shared_ptr<Engine> BoundEngine::engine_for_calls_in_flight() const {
  if (!engine_) raise_group_lost();
  return engine_;
}

GroupId BoundEngine::add_group(const std::vector<int>& ranks) {
  const Result<GroupId> group =
      run_in_engine([&](Engine& engine) { return engine.add_group(ranks); });
  raise_if_interrupted();
  raise_if_failed(group.status());
  return *group;
}

void BoundEngine::remove_group(GroupId group) {
  const Status status = run_in_engine([&](Engine& engine) { return engine.remove_group(group); });
  raise_if_interrupted();
  raise_if_failed(status);
}

void BoundEngine::start_timeline(const nb::bytes& path, bool mark_cycles) {
  const std::string file_name(path.c_str(), path.size());
  raise_if_failed(
      run_in_engine([&](Engine& engine) { return engine.start_timeline(file_name, mark_cycles); }));
}

void BoundEngine::stop_timeline() {
  raise_if_failed(run_in_engine([](Engine& engine) { return engine.stop_timeline(); }));
}

void BoundEngine::shutdown(const std::string& reason, LeaveCause cause,
                           const std::string& traceback) {
  if (is_forked_child_ || !engine_) return;
  has_shutdown_begun_ = true;
  if (is_of_whole_job_) clear_current_engine();
  std::shared_ptr<Engine> engine = engine_;
  do {
    const nb::gil_scoped_release gil_release;
    // Engine::shutdown() fails only if a completion calls it. This cannot happen here, because
    // Python programs cannot set completions.
    (void)engine->shutdown(reason, cause, traceback);
    while (const int count = threads_inside_) threads_inside_.wait(count);
    // Another thread may have entered the engine before this thread got the GIL back. In this case,
    // repeat the loop.
  } while (threads_inside_ > 0);
  engine_.reset();
  // If this rank serves the Store by which the ranks of a host find each other, the destructor of
  // the engine waits for these ranks.
  const nb::gil_scoped_release gil_release;
  engine.reset();
}

void BoundEngine::abandon_after_fork() {
  if (!engine_) return;
  is_forked_child_ = true;
  engine_->abandon_after_fork();
}

bool BoundEngine::poll(Handle handle) const { return !engine_ || engine_->poll(handle); }

void BoundEngine::release(Handle handle) const {
  if (engine_) (void)engine_->take(handle);
}

void BoundEngine::drop(Handle handle) const {
  if (engine_) engine_->drop(handle);
}

void BoundEngine::wait(Handle handle) {
  const auto wait_for_interval = [&](Engine& engine) {
    return engine.wait(handle, kSignalCheckInterval);
  };
  while (!poll(handle)) {
    if (without_gil(engine_for_calls_in_flight(), wait_for_interval)) return;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

namespace {

void bind_context(nb::module_& module) {
  nb::class_<BoundContext>(module, "ProcessContext")
      .def(nb::init<>())
      .def("wait_for_other_ranks",
           [](BoundContext& self) {
             const auto interrupted = [] {
               const nb::gil_scoped_acquire gil_lock;
               return PyErr_CheckSignals() != 0;
             };
             {
               const nb::gil_scoped_release gil_release;
               // The wait fails only if a signal handler has raised an exception.
               // raise_if_interrupted() throws this exception.
               static_cast<void>(wait_for_other_ranks(*self.context, interrupted));
             }
             raise_if_interrupted();
           })
      .def(
          "announced_end",
          [](BoundContext& self, double limit) {
            const nb::gil_scoped_release gil_release;
            return announced_end(*self.context,
                                 std::chrono::milliseconds(static_cast<int>(1000 * limit)));
          },
          nb::arg("limit"))
      .def("set_has_state", [](BoundContext& self) { set_has_state(*self.context); })
      .def(
          "close", [](BoundContext& self) { self.context = make_process_context(); },
          nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void bind_engine(nb::module_& module, nb::class_<BoundEngine>& engine) {
  module.attr("version") = FARANDOLE_VERSION;
  nb::enum_<LeaveCause>(module, "LeaveCause")
      .value("ORDERLY", LeaveCause::kOrderly)
      .value("EXCEPTION", LeaveCause::kException)
      .value("GROUP_LOST", LeaveCause::kGroupLost);
  // Errors are ignored, because the process is ending and no code can handle them.
  module.def(
      "report_end",
      [](const std::string& reason, LeaveCause cause, const std::string& traceback) {
        const Result<EngineOptions> options = EngineOptions::from_environment();
        if (options.ok()) static_cast<void>(report_end(*options, reason, cause, traceback));
      },
      nb::arg("reason"), nb::arg("cause"), nb::arg("traceback"));
  bind_context(module);
  engine
      .def(nb::init<const BoundContext&, std::vector<std::vector<int>>, const std::string&,
                    const std::vector<int>&, bool, bool>(),
           nb::arg("context"), nb::arg("groups"), nb::arg("rendezvous_id"), nb::arg("topology"),
           nb::arg("is_subset_of_job"), nb::arg("on_one_host"))
      .def_prop_ro("rank", [](const BoundEngine& self) { return self.topology().rank; })
      .def_prop_ro("size", [](const BoundEngine& self) { return self.topology().size; })
      .def_prop_ro("local_rank", [](const BoundEngine& self) { return self.topology().local_rank; })
      .def_prop_ro("local_size", [](const BoundEngine& self) { return self.topology().local_size; })
      .def_prop_ro("cross_rank", [](const BoundEngine& self) { return self.topology().cross_rank; })
      .def_prop_ro("cross_size", [](const BoundEngine& self) { return self.topology().cross_size; })
      .def_prop_ro("is_homogeneous",
                   [](const BoundEngine& self) { return self.topology().is_homogeneous; })
      .def_prop_ro("epoch", [](BoundEngine& self) { return self.engine_for_new_calls()->epoch(); })
      .def("is_change_announced",
           [](BoundEngine& self) {
             return self.run_in_engine([](Engine& engine) { return engine.is_change_announced(); });
           })
      .def_prop_ro("is_over",
                   [](BoundEngine& self) { return self.engine_for_new_calls()->is_over(); })
      .def_prop_ro("settings", &BoundEngine::settings)
      .def_prop_ro("forked", &BoundEngine::forked)
      .def("ranks_of", [](BoundEngine& self,
                          GroupId group) { return self.engine_for_new_calls()->ranks_of(group); })
      .def("add_group", &BoundEngine::add_group)
      .def("remove_group", &BoundEngine::remove_group)
      .def("start_timeline", &BoundEngine::start_timeline)
      .def("stop_timeline", &BoundEngine::stop_timeline)
      .def("shutdown", &BoundEngine::shutdown, nb::arg("reason"), nb::arg("cause"),
           nb::arg("traceback"))
      .def("abandon_after_fork", &BoundEngine::abandon_after_fork);
}

}  // namespace farandole::python
