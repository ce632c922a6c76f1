// Whole jobs in one process, for tests: every rank is a thread, and all ranks share one
// MemoryStore.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_in_test.h"
#include "engine/assemble.h"
#include "rendezvous/keys.h"
#include "rendezvous/memory_store.h"

namespace farandole {

inline constexpr std::chrono::milliseconds kTestTimeout(60'000);

inline std::unique_ptr<Engine> value_or_abort(Result<std::unique_ptr<Engine>> engine) {
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  if (!engine.ok()) std::abort();
  return std::move(*engine);
}

inline EngineOptions options_of(int rank, int size, std::vector<std::vector<int>> groups = {}) {
  EngineOptions options;
  options.context = make_process_context();
  options.bucket_bytes = 0;
  options.heap_bytes = 64 << 20;
  options.topology = {.rank = rank, .size = size, .local_rank = rank, .local_size = size};
  options.groups = std::move(groups);
  options.start_timeout = kTestTimeout;
  return options;
}

// The value of keys::process() for a process of this host.
inline Bytes record_of_process(std::int64_t pid, LocalStore& store) {
  const std::function<bool()> never_interrupted;
  const Bytes token = store.wait(keys::host_token(), {TimePoint{}, never_interrupted}).value();
  return keys::ProcessRecord{pid, ByteReader(token).get_text(), "here"}.encode();
}

// Makes an engine of a job on one host.
inline Result<std::unique_ptr<Engine>> assemble(const EngineOptions& options,
                                                std::shared_ptr<LocalStore> store) {
  return assemble(options, Stores::on_one_host(std::move(store)));
}

// Runs body(rank, store) on `size` threads that share one store.
template <class Body>
void run_ranks(int size, Body body) {
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) threads.emplace_back([&, rank] { body(rank, store); });
  for (auto& thread : threads) thread.join();
}

// Runs body(engine) on `size` threads, each with its own engine of one job.
template <class Body>
void run_job(int size, const std::vector<std::vector<int>>& groups, Body body) {
  run_ranks(size, [&](int rank, const std::shared_ptr<LocalStore>& store) {
    const auto engine = value_or_abort(assemble(options_of(rank, size, groups), store));
    body(*engine);
  });
}

inline Outcome finish(Engine& engine, const Result<Handle>& handle) {
  if (!handle.ok()) {
    Outcome outcome;
    outcome.status = handle.status();
    return outcome;
  }
  EXPECT_TRUE(engine.wait(*handle, kTestTimeout));
  return engine.take(*handle);
}

inline Submission allreduce_of(std::vector<float>& values, std::string name = "",
                               GroupId group = kWorld) {
  Submission submission;
  submission.operation = Operation::kAllreduce;
  submission.name = std::move(name);
  submission.group = group;
  submission.dtype = DType::kFloat32;
  submission.shape = {static_cast<std::int64_t>(values.size())};
  submission.input = values.data();
  submission.output = values.data();
  return submission;
}

inline Status allreduce(Engine& engine, std::vector<float>& values, std::string name = "",
                        GroupId group = kWorld) {
  const auto call = allreduce_of(values, std::move(name), group);
  return finish(engine, engine.submit(call, kTestTimeout)).status;
}

inline Status barrier(Engine& engine) {
  return finish(engine, engine.submit(Submission{}, kTestTimeout)).status;
}

}  // namespace farandole
