#include "options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

namespace farandole::bench {
namespace {

void add_options(CLI::App& app, BenchOptions& options, std::vector<std::uint64_t>& sizes,
                 std::string& memory) {
  std::map<std::string, DType> dtypes;
  for (const DTypeRow& row : kDTypes) dtypes.emplace(row.name, row.dtype);
  app.add_option("operation", options.operation)
      ->check(CLI::IsMember(
          {"allreduce", "reducescatter", "allgather", "broadcast", "alltoall", "memcpy"}));
  app.add_option("-n,--ranks", options.ranks, "Processes")->check(CLI::Range(1, 64));
  app.add_option("--sizes", sizes, "Bytes, such as 8,1K,64M")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--dtype", options.dtype)->transform(CLI::CheckedTransformer(dtypes));
  app.add_option("--memory", memory)->check(CLI::IsMember({"ordinary", "heap"}));
  app.add_flag_callback(
      "--adasum", [&options] { options.reduce_op = ReduceOp::kAdasum; },
      "Allreduce by Adasum instead of a sum; all ranks have the same input");
  app.add_flag("--consume", options.consume, "Read the result inside the timed region");
  app.add_flag("--tight", options.tight, "Time many calls in a row, with no barrier between them");
  app.add_flag("--in-place", options.in_place, "One buffer for input and output");
  app.add_flag("--pin,!--no-pin", options.pin, "Pin rank i to core i, modulo the number of cores");
  app.add_flag("--json", options.json, "Print a JSON list");
  app.add_option("--seconds", options.seconds, "Approximate time for each size");
  if (options.pieces == 0) return;
  app.add_option("--pieces", options.pieces,
                 "Split the tensor into this many calls at the same time")
      ->check(CLI::Range(1, 100'000));
  app.add_flag("--grouped", options.grouped, "Submit the pieces as one batch")
      ->excludes(app.add_flag("--completions", options.completions,
                              "Use a completion for each piece, instead of waiting for it"));
}

[[noreturn]] void exit_with_usage_error(const char* why) {
  std::fprintf(stderr, "%s\n", why);
  std::exit(2);
}

}  // namespace

BenchOptions parse_options(int count, char** words, BenchOptions defaults) {
  BenchOptions options = std::move(defaults);
  std::vector<std::uint64_t> sizes = {8, 1024, 65536, 1 << 20};
  std::string memory = "ordinary";
  CLI::App app("Measures " + options.library);
  add_options(app, options, sizes, memory);
  try {
    app.parse(count, words);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  options.heap = memory == "heap";
  const bool has_no_in_place_form =
      options.operation != "allreduce" && options.operation != "broadcast";
  if (options.in_place && has_no_in_place_form)
    exit_with_usage_error("--in-place: allreduce and broadcast only");
  if (options.reduce_op == ReduceOp::kAdasum && options.operation != "allreduce")
    exit_with_usage_error("--adasum: allreduce only");
  if (options.tight && (options.in_place || options.consume))
    exit_with_usage_error(
        "--tight: not with --in-place or --consume, which prepare and check every call");
  for (const std::uint64_t bytes : sizes) options.sizes.push_back(static_cast<std::size_t>(bytes));
  return options;
}

}  // namespace farandole::bench
