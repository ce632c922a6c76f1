#include "bench_options.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <sstream>
#include <string_view>
#include <system_error>

#include "base/descriptor.h"
#include "base/format.h"
#include "base/sibling_program.h"
#include "base/try.h"
#include "base/visible_text.h"
#include "base/whole_number.h"

namespace farandole {
namespace {

constexpr int kRanksMax = 1024;
constexpr std::size_t kSizeMax = std::size_t{1} << 40;
constexpr std::array<Operation, 5> kMeasuredOperations = {
    Operation::kAllreduce, Operation::kReducescatter, Operation::kAllgather, Operation::kBroadcast,
    Operation::kAlltoall};

constexpr const char* kBenchHelpFooter = R"(
Examples:
  farandole bench allreduce -n 2 --sizes 8,1K,1M,64M
  farandole bench allgather -n 4 --dtype bfloat16 --memory ordinary --consume --json result.json

OPERATION is allreduce, reducescatter, allgather, broadcast or alltoall. Sizes are in bytes; K, M
and G mean 1024, 1024^2 and 1024^3. As in nccl-tests, a size means the tensor for allreduce and
broadcast, a rank's whole input for reducescatter and alltoall, and the whole output for allgather.
It is rounded up to whole elements for every rank.

Before every repetition, each rank writes new input, and all ranks wait in a barrier. The time of a
repetition is that of its slowest rank. Allreduce and broadcast work in place. Every result is
checked, outside the timed region. With --consume, sizes above that of the L2 cache rotate between
three buffers, and the timed region includes reading the result. algbw is size / p50; busbw is algbw
x 2(n-1)/n for allreduce, x 1 for broadcast and x (n-1)/n for the others.

--json FILE writes a list of objects with operation, bytes, ranks, dtype, memory, consume, p50_us,
p99_us, algbw_gbps, busbw_gbps and verified. It is written after every size, so an interrupted job
leaves its results. The exit code is 1 if a result was wrong.
)";

Status unknown_word_error(std::string_view kind, const std::string& word,
                          const std::string& choices) {
  return Status::fix_call(format_text("{} \"{}\" is unknown; the choices are {}", kind,
                                      escape_controls(word), choices));
}

Result<Operation> parse_operation(const std::string& word) {
  std::vector<std::string_view> choices;
  for (const Operation operation : kMeasuredOperations) {
    if (row_of(operation).name == word) return operation;
    choices.push_back(row_of(operation).name);
  }
  if (word.empty())
    return Status::fix_call("which operation? For example `farandole bench allreduce -n 2`");
  return unknown_word_error("the operation", word, join_text(choices, ", "));
}

// Accepts all types except bool, which has no sum.
Result<DType> parse_dtype(const std::string& word) {
  std::vector<std::string_view> choices;
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == DType::kBool) continue;
    if (row.name == word) return row.dtype;
    choices.push_back(row.name);
  }
  return unknown_word_error("the --dtype", word, join_text(choices, ", "));
}

Result<std::size_t> parse_size(const std::string& word) {
  std::size_t size = 0;
  const char* const end = word.data() + word.size();
  const auto [number_end, error] = std::from_chars(word.data(), end, size);
  const std::string_view unit(number_end, static_cast<std::size_t>(end - number_end));
  const auto shift = unit.empty() ? 0 : 10 * (std::string_view("KMG").find(unit[0]) + 1);
  const bool is_unit = unit.empty() || (unit.size() == 1 && shift > 0);
  if (error == std::errc() && is_unit && size > 0 && size <= kSizeMax >> shift)
    return size << shift;
  return Status::fix_call(
      format_text("--sizes: \"{}\" is not a size; write bytes, from 1 to 1024G, with K, M or G for "
                  "1024, 1024^2 and 1024^3, such as --sizes 8,1K,64M",
                  escape_controls(word)));
}

Result<std::vector<std::size_t>> parse_sizes(const std::string& words) {
  std::vector<std::size_t> sizes;
  std::istringstream list(words + ",");
  for (std::string word; std::getline(list, word, ',');) {
    FARANDOLE_TRY_ASSIGN(const std::size_t size, parse_size(word));
    sizes.push_back(size);
  }
  return sizes;
}

}  // namespace

BenchOptions::BenchOptions(CLI::App& app)
    : command_(app.add_subcommand("bench", "Measure a collective operation on this host")) {
  command_->footer(kBenchHelpFooter);
  command_->allow_extras(false);
  command_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  command_->add_option("operation", operation_, "What to measure")->type_name("OPERATION");
  const auto add = [this](const char* flag, std::string& value, const char* help,
                          const char* type) {
    command_->add_option(flag, value, help)->type_name(type)->capture_default_str();
  };
  add("-n,--workers", workers_, "How many ranks", "N");
  add("--sizes", sizes_, "Which sizes, with commas between them", "LIST");
  add("--dtype", dtype_, "The type of the elements", "TYPE");
  add("--memory", memory_,
      "heap: memory of the engine, which the other ranks can map; ordinary: other memory", "KIND");
  command_->add_flag("--consume", consume_, "Reads every result inside the timed region");
  command_->add_option("--json", json_path_, "Writes the results to this file, too")
      ->type_name("FILE");
  command_->add_flag("--worker", is_worker_)->group("");  // for workers; the help hides it
}

Result<BenchPlan> BenchOptions::plan() const {
  BenchPlan plan;
  FARANDOLE_TRY_ASSIGN(plan.operation, parse_operation(operation_));
  FARANDOLE_TRY_ASSIGN(plan.ranks, parse_whole_number("-n", workers_, 1, kRanksMax));
  FARANDOLE_TRY_ASSIGN(plan.sizes, parse_sizes(sizes_));
  FARANDOLE_TRY_ASSIGN(plan.dtype, parse_dtype(dtype_));
  if (memory_ != "heap" && memory_ != "ordinary")
    return unknown_word_error("the --memory", memory_, "heap and ordinary");
  plan.uses_heap = memory_ == "heap";
  plan.reads_results = consume_;
  plan.json_path = json_path_;
  if (command_->count("--json") == 0 || is_worker_) return plan;
  // Open the file now, so that an error does not come after minutes of measuring. An existing file
  // is emptied.
  const Descriptor file(::open(json_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.valid()) return plan;
  return Status::fix_call(
      format_text("--json \"{}\": it cannot be written ({}); give a file in a folder that exists",
                  escape_controls(json_path_), std::strerror(errno)));
}

Result<JobOptions> BenchOptions::job(const BenchPlan& plan,
                                     const std::vector<std::string>& words) const {
  std::error_code error;
  const auto program = own_program_path(error);
  if (error)
    return Status::stop(format_text("cannot find the path of this program ({}); is /proc mounted?",
                                    error.message()));
  JobOptions job;
  job.workers = plan.ranks;
  job.command = {program.string()};
  job.command.insert(job.command.end(), words.begin(), words.end());
  job.command.push_back("--worker");
  job.variables = {{"OMP_NUM_THREADS", "1"}};
  FARANDOLE_TRY_ASSIGN(job.output.prefix, LinePrefix::parse(""));
  return job;
}

}  // namespace farandole
