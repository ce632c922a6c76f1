#include "bench_worker.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <new>
#include <string_view>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/format.h"
#include "base/try.h"
#include "bench_pattern.h"
#include "farandole/engine.h"
#include "output/colors.h"

namespace farandole {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;
using Buffer = std::shared_ptr<std::byte>;

constexpr std::chrono::milliseconds kWaitInterval(100);
constexpr Seconds kProgressInterval(0.2);
constexpr std::size_t kRotatingBufferCount = 3;
constexpr std::size_t kAlignment = 128;
constexpr int kWarmUpRepetitions = 3;
// The timed operations of one size together may take about this time, in seconds.
constexpr double kOperationSeconds = 0.4;
// All repetitions of one size together may take about this time, in seconds. This includes writing
// the inputs and checking the results.
constexpr double kTotalSeconds = 3;
constexpr double kRepetitionsMin = 5;
constexpr double kRepetitionsMax = 5000;

std::size_t l2_bytes() {
  const long bytes = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? static_cast<std::size_t>(bytes) : std::size_t{2} << 20;
}

// Reads every word once. The sum keeps the compiler from removing the loop.
void read_all(const std::byte* memory, std::size_t bytes) {
  std::uint64_t sum = 0;
  for (std::size_t position = 0; position + sizeof(sum) <= bytes; position += sizeof(sum)) {
    std::uint64_t word = 0;
    std::memcpy(&word, memory + position, sizeof(word));
    sum += word;
  }
  for (std::size_t position = bytes / sizeof(sum) * sizeof(sum); position < bytes; ++position)
    sum += static_cast<std::uint64_t>(memory[position]);
  [[maybe_unused]] volatile const std::uint64_t sink = sum;
}

class BenchWorker {
 public:
  BenchWorker(Engine& engine, const BenchPlan& plan)
      : engine_(engine),
        plan_(plan),
        pattern_(plan.dtype, plan.ranks),
        is_rank_zero_(engine.topology().rank == 0),
        has_colors_(can_show_colors(STDOUT_FILENO)),
        shows_progress_(is_rank_zero_ && ::isatty(STDERR_FILENO) != 0) {}

  Result<std::vector<BenchRow>> run() {
    print_line(colored(bench_title(plan_), Color::kBold));
    print_line(colored(bench_heading(), Color::kDim));
    std::vector<BenchRow> rows;
    FARANDOLE_TRY(write_json(rows));
    for (const std::size_t size : plan_.sizes) {
      FARANDOLE_TRY_ASSIGN(BenchRow row, measure(plan_.bytes_for(size)));
      clear_progress();
      rows.push_back(row);
      // Write the file before printing the line, because the user may interrupt the job after
      // seeing it.
      FARANDOLE_TRY(write_json(rows));
      const std::string line = bench_line(plan_, row);
      print_line(row.is_verified ? line : colored(line, Color::kRed));
    }
    return rows;
  }

 private:
  struct Times {
    double operation = 0;
    double total = 0;  // includes writing the inputs and checking the results
  };

  Result<Buffer> allocate(std::size_t bytes) {
    if (plan_.uses_heap) {
      auto memory = engine_.allocate(bytes);
      if (!memory.ok() || engine_.is_shared(memory->get(), bytes)) return memory;
      return Status::fix_call(format_text(
          "the heap that the ranks share has no room for {}; choose smaller --sizes, raise "
          "FARANDOLE_HEAP_BYTES (or `ulimit -v`, from which the size of the heap follows), or "
          "measure --memory ordinary",
          size_text(bytes)));
    }
    auto* const memory = new (std::align_val_t{kAlignment}, std::nothrow) std::byte[bytes];
    if (memory == nullptr)
      return Status::stop(
          format_text("no memory for {}; choose smaller --sizes", size_text(bytes)));
    return Buffer(
        memory, [](std::byte* owned) { ::operator delete[](owned, std::align_val_t{kAlignment}); });
  }

  std::int64_t element_count(std::size_t bytes) const {
    return static_cast<std::int64_t>(bytes / row_of(plan_.dtype).bytes);
  }
  // The size of one rank's share, in bytes, if the tensor is divided among the ranks.
  std::size_t share_bytes(std::size_t bytes) const {
    return bytes / static_cast<std::size_t>(plan_.ranks);
  }
  std::size_t input_bytes(std::size_t bytes) const {
    return plan_.operation == Operation::kAllgather ? share_bytes(bytes) : bytes;
  }
  std::size_t output_bytes(std::size_t bytes) const {
    return plan_.operation == Operation::kReducescatter ? share_bytes(bytes) : bytes;
  }

  Result<Outcome> submit_and_wait(const Submission& submission) {
    FARANDOLE_TRY_ASSIGN(const Handle handle, engine_.submit(submission, kWaitInterval));
    while (!engine_.wait(handle, kWaitInterval)) continue;
    Outcome outcome = engine_.take(handle);
    FARANDOLE_TRY(outcome.status);
    return outcome;
  }

  // Replaces each value by its maximum over all ranks.
  Status maximize_over_ranks(std::vector<double>& values) {
    Submission submission;
    submission.operation = Operation::kAllreduce;
    submission.name = "bench.times";
    submission.dtype = DType::kFloat64;
    submission.shape = {static_cast<std::int64_t>(values.size())};
    submission.input = values.data();
    submission.output = values.data();
    submission.reduce_op = ReduceOp::kMax;
    return submit_and_wait(submission).status();
  }

  Submission submission_for(std::size_t bytes) const {
    Submission submission;
    submission.operation = plan_.operation;
    submission.name = "bench";
    submission.dtype = plan_.dtype;
    submission.shape = {element_count(input_bytes(bytes))};
    return submission;
  }

  Status prepare_buffers(std::size_t bytes) {
    inputs_.clear();
    output_.reset();
    const bool rotates = plan_.reads_results && bytes > l2_bytes();
    for (std::size_t i = 0; i < (rotates ? kRotatingBufferCount : 1); ++i) {
      FARANDOLE_TRY_ASSIGN(Buffer memory, allocate(input_bytes(bytes)));
      inputs_.push_back(std::move(memory));
    }
    if (plan_.operation != Operation::kReducescatter) return {};
    FARANDOLE_TRY_ASSIGN(output_, allocate(output_bytes(bytes)));
    return {};
  }

  // Runs one repetition: writes the input, waits in a barrier, times the operation, checks the
  // result.
  Result<Times> run_repetition(std::size_t bytes, BenchRow& row) {
    const auto total_start = Clock::now();
    const int rank = engine_.topology().rank;
    const std::size_t first_element = ++repetition_;
    std::byte* const input = inputs_[repetition_ % inputs_.size()].get();
    pattern_.write(input, input_bytes(bytes), rank, first_element);
    Submission submission = submission_for(bytes);
    submission.input = input;
    submission.output = output_ ? output_.get() : input;
    FARANDOLE_TRY(submit_and_wait(Submission{}).status());  // a barrier
    const auto start = Clock::now();
    FARANDOLE_TRY_ASSIGN(const Outcome outcome, submit_and_wait(submission));
    const std::byte* const result =
        outcome.received ? outcome.received.get() : static_cast<std::byte*>(submission.output);
    if (plan_.reads_results) read_all(result, output_bytes(bytes));
    const auto end = Clock::now();
    row.is_verified &= pattern_.is_result(plan_.operation, result, bytes, rank, first_element);
    return Times{Seconds(end - start).count(), Seconds(Clock::now() - total_start).count()};
  }

  Result<BenchRow> measure(std::size_t bytes) {
    BenchRow row{.bytes = bytes, .is_verified = true};
    FARANDOLE_TRY(prepare_buffers(bytes));
    Times warm_up_times;
    for (int i = 0; i < kWarmUpRepetitions; ++i) {
      show_progress(bytes, 0, 0);
      FARANDOLE_TRY_ASSIGN(warm_up_times, run_repetition(bytes, row));
    }
    std::vector<double> slowest_times = {warm_up_times.operation, warm_up_times.total};
    FARANDOLE_TRY(maximize_over_ranks(slowest_times));
    const double repetitions =
        std::min(kOperationSeconds / slowest_times[0], kTotalSeconds / slowest_times[1]);
    std::vector<double> times(
        static_cast<std::size_t>(std::clamp(repetitions, kRepetitionsMin, kRepetitionsMax)));
    for (std::size_t i = 0; i < times.size(); ++i) {
      show_progress(bytes, i, times.size());
      FARANDOLE_TRY_ASSIGN(const Times repetition_times, run_repetition(bytes, row));
      times[i] = repetition_times.operation;
    }
    FARANDOLE_TRY(maximize_over_ranks(times));
    std::vector<double> wrong_results = {row.is_verified ? 0.0 : 1.0};
    FARANDOLE_TRY(maximize_over_ranks(wrong_results));
    row.is_verified = wrong_results[0] == 0;
    std::ranges::sort(times);
    row.p50_us = times[times.size() / 2] * 1e6;
    row.p99_us = times[times.size() * 99 / 100] * 1e6;
    return row;
  }

  // Writes the whole list again, because a JSON list ends with a bracket. The text only becomes
  // longer, so one write replaces all of the old text. If the job is interrupted, only the last
  // size can be missing.
  Status write_json(const std::vector<BenchRow>& rows) const {
    if (!is_rank_zero_ || plan_.json_path.empty()) return {};
    const std::string text = bench_json(plan_, rows);
    const Descriptor file(::open(plan_.json_path.c_str(), O_WRONLY | O_CLOEXEC));
    if (file.valid() && ::write(file.get(), text.data(), text.size()) == std::ssize(text))
      return {};
    return Status::stop(
        format_text("cannot write {}; is there room on the disk?", plan_.json_path));
  }

  std::string colored(const std::string& text, Color color) const {
    return has_colors_ ? in_color(text, color) : text;
  }
  void print_line(const std::string& line) const {
    if (!is_rank_zero_) return;
    std::fprintf(stdout, "%s\n", line.c_str());
    std::fflush(stdout);
  }
  void show_progress(std::size_t bytes, std::size_t done, std::size_t count) {
    if (!shows_progress_ || Clock::now() - progress_shown_at_ < kProgressInterval) return;
    progress_shown_at_ = Clock::now();
    const std::string progress_text =
        count > 0 ? format_text("{} of {}", done, count) : "warming up";
    std::fprintf(stderr, "%10s  %-24s\r", size_text(bytes).c_str(), progress_text.c_str());
    std::fflush(stderr);
  }
  void clear_progress() const {
    if (shows_progress_) std::fprintf(stderr, "%36s\r", "");
  }

  Engine& engine_;
  const BenchPlan& plan_;
  BenchPattern pattern_;
  bool is_rank_zero_;
  bool has_colors_;
  bool shows_progress_;
  Clock::time_point progress_shown_at_{};
  std::size_t repetition_ = 0;
  std::vector<Buffer> inputs_;  // the repetitions rotate between the buffers
  Buffer output_;               // used only for reducescatter
};

Status measure_all(Engine& engine, const BenchPlan& plan) {
  BenchWorker worker(engine, plan);
  FARANDOLE_TRY_ASSIGN(const std::vector<BenchRow> rows, worker.run());
  if (std::ranges::all_of(rows, &BenchRow::is_verified)) return {};
  return Status::stop("a result was wrong; please report it with this machine's /proc/cpuinfo");
}

// Prints the error, but only on rank 0, because all ranks fail for the same reason.
int report_error(const Status& status) {
  const char* const rank = std::getenv("FARANDOLE_RANK");
  if (rank != nullptr && std::string_view(rank) != "0") return 1;
  const std::string text = "farandole bench: " + status.message();
  std::fprintf(stderr, "%s\n", red_on_terminal(STDERR_FILENO, text).c_str());
  return 1;
}

}  // namespace

int run_bench_worker(const BenchPlan& plan) {
  auto options = EngineOptions::from_environment();
  if (!options.ok()) return report_error(options.status());
  auto engine = Engine::create(*std::move(options));
  if (!engine.ok()) return report_error(engine.status());
  const Status status = measure_all(**engine, plan);
  (void)(*engine)->shutdown(status.ok() ? "its measurement is done" : status.message());
  return status.ok() ? 0 : report_error(status);
}

}  // namespace farandole
