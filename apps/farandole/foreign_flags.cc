#include "foreign_flags.h"

#include <algorithm>
#include <array>

namespace farandole {
namespace {

struct ForeignFlag {
  std::string_view names;  // separated by spaces
  std::string_view hint;
};

constexpr std::string_view kTransportHint =
    "leave it out: the workers always use the same transport, which needs neither MPI nor Gloo";
constexpr std::string_view kAlgorithmHint = "leave it out: the algorithm is chosen automatically";
constexpr std::string_view kTuningHint = "leave it out: settings are not tuned during a job";
constexpr std::string_view kLogTimeHint =
    "leave it out: log lines have the time unless --log-hide-time is given";

constexpr std::array kForeignFlags{
    ForeignFlag{"-np --num-proc", "use `-n N`"},
    ForeignFlag{"-hostfile", "use `--hostfile FILE`"},
    ForeignFlag{"-cb --check-build", "use `farandole doctor`"},
    ForeignFlag{"-v --version", "use `farandole --version`"},
    ForeignFlag{"--verbose", "use `--log-level debug`"},
    ForeignFlag{"--gloo --mpi --jsrun --mpi-args --tcp --mpi-threads-disable "
                "--no-mpi-threads-disable",
                kTransportHint},
    ForeignFlag{"--binding-args", "use `--bind-to core`, `--bind-to socket` or `--bind-to none`"},
    ForeignFlag{"--disable-cache", "leave it out: no information about hosts is cached"},
    ForeignFlag{"--cache-capacity", "leave it out: plans of repeated calls need no setting"},
    ForeignFlag{"--network-interface", "use `--network-interfaces NAMES`"},
    ForeignFlag{"--output-filename", "use `--output-dir DIR`"},
    ForeignFlag{"--config-file",
                "give the settings as flags or FARANDOLE_* variables; `farandole knobs` "
                "lists them"},
    ForeignFlag{"--fusion-threshold-mb", "use `--bucket-bytes N`, in bytes"},
    ForeignFlag{"--cycle-time-ms",
                "leave it out: there are no cycles; a call runs as soon as all ranks have made it"},
    ForeignFlag{"--hierarchical-allreduce --no-hierarchical-allreduce --hierarchical-allgather "
                "--no-hierarchical-allgather --torus-allreduce --no-torus-allreduce",
                kAlgorithmHint},
    ForeignFlag{"--autotune --no-autotune --autotune-log-file --autotune-warmup-samples "
                "--autotune-steps-per-sample --autotune-bayes-opt-max-samples "
                "--autotune-gaussian-process-noise",
                kTuningHint},
    ForeignFlag{"--min-np --min-num-proc", "use `--min-workers N`"},
    ForeignFlag{
        "--max-np --max-num-proc",
        "use `--max-workers N` together with `--host-discovery-script COMMAND`, or leave it out"},
    ForeignFlag{"--blacklist-cooldown-range", "use `--cooldown-range LOW,HIGH`"},
    ForeignFlag{"--timeline-filename", "use `--timeline FILE`"},
    ForeignFlag{"--no-timeline-mark-cycles",
                "leave it out: cycles are not marked unless asked for"},
    ForeignFlag{"--no-stall-check", "use `--stall-warning 0`"},
    ForeignFlag{"--stall-check", "leave it out: it is always on"},
    ForeignFlag{"--stall-check-warning-time-seconds", "use `--stall-warning S`"},
    ForeignFlag{"--stall-check-shutdown-time-seconds", "use `--stall-limit S`"},
    ForeignFlag{"--gloo-timeout-seconds",
                "leave it out: a lost worker is noticed at once; `--start-timeout S` limits the "
                "start"},
    ForeignFlag{"--num-nccl-streams", "leave it out: tensors on GPUs go through host memory"},
    ForeignFlag{"--thread-affinity",
                "leave it out; to bind workers to cores, use `--bind-to core`"},
    ForeignFlag{"--log-with-timestamp --no-log-hide-timestamp", kLogTimeHint},
    ForeignFlag{"--log-without-timestamp --log-hide-timestamp", "use `--log-hide-time`"},
    ForeignFlag{"-prefix-timestamp --prefix-timestamp --prefix-output-with-timestamp",
                "use `--prefix \"[{rank} {time}] \"`"},
};

bool contains_word(std::string_view names, std::string_view name) {
  while (!names.empty()) {
    const auto end = std::min(names.find(' '), names.size());
    if (names.substr(0, end) == name) return true;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return false;
}

}  // namespace

std::string_view hint_for_foreign_flag(std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  for (const ForeignFlag& flag : kForeignFlags)
    if (!name.empty() && contains_word(flag.names, name)) return flag.hint;
  return {};
}

}  // namespace farandole
