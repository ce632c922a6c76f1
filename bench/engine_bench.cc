// Measures whole engines through the public C++ interface, including the agreement between them.
// Each engine has a process of its own. A blocking call is submit() with a time limit, then take().
// With --pieces N, the tensor is split into N calls. The program submits all calls, then waits for
// all of them and takes their results. With --completions, each call has a completion that takes
// the result, and the program sleeps until the last completion has run.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/format.h"
#include "farandole/engine.h"
#include "job.h"
#include "measure.h"
#include "transport/shm/segment.h"

namespace farandole::bench {
namespace {

constexpr std::chrono::milliseconds kLimit = std::chrono::minutes(1);

// Makes one rank's calls. Each repetition makes the same calls, as in a training.
class Caller {
 public:
  Caller(Engine& engine, const BenchOptions& options) : engine_(engine), options_(options) {}

  void call(const Shape& shape, const std::byte* input, std::byte* output) {
    const auto& calls = calls_on(shape, input, output);
    if (options_.completions) return call_with_completions(calls);
    if (options_.grouped) {
      const auto handles = engine_.submit_batch(calls);
      CHECK(handles.ok(), "all ranks of a benchmark make the same calls");
      handles_ = *handles;
    } else if (calls.size() == 1) {
      handles_[0] = engine_.submit(calls.front(), kLimit).value();
    } else {
      for (std::size_t i = 0; i < calls.size(); ++i) handles_[i] = engine_.submit(calls[i]).value();
    }
    if (calls.size() > 1)
      for (const Handle handle : handles_)
        CHECK(engine_.wait(handle, kLimit), "a call of a benchmark ends soon");
    for (const Handle handle : handles_)
      CHECK(engine_.take(handle).status.ok(), "nobody leaves a benchmark early");
  }

 private:
  void call_with_completions(const std::vector<Submission>& calls) {
    calls_left_ = calls.size();
    for (const Submission& call : calls) CHECK(engine_.submit(call).ok(), "nobody leaves early");
    for (std::size_t left = calls_left_; left > 0; left = calls_left_) calls_left_.wait(left);
  }

  static void on_completion(void* context, Handle handle) noexcept {
    auto& caller = *static_cast<Caller*>(context);
    CHECK(caller.engine_.take(handle).status.ok(), "nobody leaves a benchmark early");
    if (--caller.calls_left_ == 0) caller.calls_left_.notify_one();
  }

  const std::vector<Submission>& calls_on(const Shape& shape, const std::byte* input,
                                          std::byte* output) {
    if (shape.bytes != bytes_) calls_.clear();
    bytes_ = shape.bytes;
    std::vector<Submission>& calls = calls_[input];
    if (!calls.empty()) return calls;
    const std::size_t elements = shape.bytes / shape.element_bytes;
    const std::size_t pieces = std::min(options_.pieces, elements);
    handles_.resize(pieces);
    for (std::size_t piece = 0; piece < pieces; ++piece) {
      const std::size_t begin = elements * piece / pieces;
      const std::size_t end = elements * (piece + 1) / pieces;
      Submission call;
      call.operation = Operation::kAllreduce;
      call.name = format_text("model.layers.{}.weight", piece);
      call.dtype = options_.dtype;
      call.shape = {static_cast<std::int64_t>(end - begin)};
      call.input = input + begin * shape.element_bytes;
      call.output = output + begin * shape.element_bytes;
      if (options_.completions)
        call.completion = {.function = &Caller::on_completion, .context = this};
      calls.push_back(std::move(call));
    }
    return calls;
  }

  Engine& engine_;
  const BenchOptions& options_;
  std::size_t bytes_ = 0;
  std::map<const std::byte*, std::vector<Submission>> calls_;  // by input buffer
  std::vector<Handle> handles_;
  std::atomic<std::size_t> calls_left_ = 0;  // how many completions have not run yet
};

bool run_rank(int rank, const BenchOptions& options, int rendezvous,
              SharedResults& shared_results) {
  EngineOptions engine_options;
  engine_options.topology = {
      .rank = rank, .size = options.ranks, .local_rank = rank, .local_size = options.ranks};
  engine_options.rendezvous_descriptor = rendezvous;
  engine_options.bucket_bytes = 0;
  const auto engine = Engine::create(std::move(engine_options));
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.status().message().c_str());
    return false;
  }
  Caller caller(**engine, options);
  const Call call = [&](const Shape& shape, const std::byte* input, std::byte* output) {
    caller.call(shape, input, output);
  };
  const Allocate from_heap = [&](std::size_t bytes) { return (*engine)->allocate(bytes).value(); };
  const BenchRank bench_rank = {rank, options.ranks, &shared_results};
  const bool good =
      measure(options, bench_rank, call, options.heap ? from_heap : Allocate(allocate_ordinary));
  shared_results.barrier(options.ranks, false);
  return good;
}

int run(int count, char** words) {
  const BenchOptions options =
      parse_options(count, words, {.pin = true, .pieces = 1, .library = "farandole/engine"});
  if (options.operation != "allreduce") {
    std::fprintf(stderr, "only allreduce is measured here\n");
    return 2;
  }
  const auto memory = Segment::create("bench-shared", sizeof(SharedResults)).value();
  auto& shared_results = *reinterpret_cast<SharedResults*>(memory->data());
  const bool good = run_in_job(options.ranks, [&](int rank, int rendezvous) {
    return run_rank(rank, options, rendezvous, shared_results);
  });
  return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace farandole::bench

int main(int count, char** words) { return farandole::bench::run(count, words); }
