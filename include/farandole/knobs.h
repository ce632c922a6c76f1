// Knobs: every setting of Farandole has a field in Knobs and a row in kKnobs. The environment
// variables, the flags of the command and docs/knobs.md are made from the rows; src/base/knobs.h
// reads them.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <variant>

namespace farandole {

// The position of this process in the job. `farandole run` sets it through FARANDOLE_* variables.
// The variables of other launchers are understood, too (docs/howto/launchers.md). The ranks find
// out themselves which ranks are on the same host, so the local and cross numbers need not be given
// (−1). If given numbers are wrong, the job does not start.
struct RankTopology {
  int rank = 0;         // 0 … size − 1
  int size = 1;         // workers in the job
  int local_rank = -1;  // rank among the workers of this host
  int local_size = -1;
  int cross_rank = -1;  // rank among the workers with this local_rank on all hosts
  int cross_size = -1;
  bool is_homogeneous = true;  // set by the ranks: whether all hosts have equally many workers
};

// The values of all knobs. Each field has its default, and the help in its row says what it means.
struct Knobs {
  RankTopology topology;
  // Borrowed: the descriptor must stay open while the engine lives.
  int rendezvous_descriptor = -1;
  int flight_record_descriptor = -1;  // borrowed: create() maps the memory
  int channel_descriptor = -1;
  int launcher_descriptor = -1;  // borrowed: the process watches a duplicate
  int elastic_worker = -1;
  std::string job_store;
  int secret_descriptor = -1;  // borrowed; a process reads the secret from it only once
  std::string secret_file;
  std::string network_interfaces;
  std::string ports;
  bool unsealed_data = false;
  std::chrono::milliseconds start_timeout{120'000};
  std::chrono::seconds stall_warning{10};
  std::chrono::seconds stall_limit{0};  // this limit does not apply to joins
  std::size_t bucket_bytes = std::size_t{16} << 20;
  bool hierarchical_adasum = false;
  std::int64_t check_parameters = 5000;
  // If the process context already has a heap of at most this size, the engine uses that heap. A
  // larger heap is replaced.
  std::size_t heap_bytes = 0;
  // If the file cannot be written, the log says so and the job continues.
  std::string timeline_path;
  std::size_t timeline_bytes = std::size_t{256} << 20;
  bool timeline_mark_cycles = false;
  std::string log_level = "warning";
  bool log_hide_time = false;
  std::string failpoint;

  // The values that must be the same on all ranks, by environment variable.
  std::map<std::string, std::string> same_on_all_ranks() const;
};

// A pointer to a field of Knobs. In the environment, times are in seconds, and a bool is 0 or 1, or
// true, false, on, off, yes or no.
using KnobField = std::variant<int*, std::int64_t*, std::size_t*, std::chrono::seconds*,
                               std::chrono::milliseconds*, bool*, std::string*>;

template <auto kMember>
KnobField knob_field(Knobs& knobs) {
  if constexpr (requires { knobs.*kMember; })
    return &(knobs.*kMember);
  else
    return &(knobs.topology.*kMember);
}

struct KnobRow {
  KnobField (*field)(Knobs& knobs) = nullptr;
  std::string_view name{};  // the environment variable
  // Horovod's name for the same setting; empty if Horovod has no such setting
  std::string_view horovod_name{};
  // the name of Horovod's switch that turns this knob off; if the switch is on, the value of the
  // knob is 0, even if horovod_name is set
  std::string_view horovod_off_switch{};
  std::int64_t min = 0;  // the limits of a number or a time
  std::int64_t max = 0;
  std::string_view choices{};  // words separated by '|'; empty if any text is allowed
  // the flag of `farandole run`; empty if the launcher sets the knob itself
  std::string_view flag{};
  bool same_on_all_ranks = false;  // true: different values on the ranks are an error
  std::string_view help{};
};

inline constexpr std::int64_t kKnobRanksMax = std::int64_t{1} << 20;
inline constexpr std::int64_t kKnobDescriptorMax = std::numeric_limits<std::int32_t>::max();

inline constexpr auto kKnobs = std::to_array<KnobRow>({
    {.field = knob_field<&RankTopology::rank>,
     .name = "FARANDOLE_RANK",
     .horovod_name = "HOROVOD_RANK",
     .min = 0,
     .max = kKnobRanksMax - 1,
     .help = "The number of this worker in the job. Set by the launcher."},
    {.field = knob_field<&RankTopology::size>,
     .name = "FARANDOLE_SIZE",
     .horovod_name = "HOROVOD_SIZE",
     .min = 1,
     .max = kKnobRanksMax,
     .help = "How many workers the job has. Set by the launcher."},
    {.field = knob_field<&RankTopology::local_rank>,
     .name = "FARANDOLE_LOCAL_RANK",
     .horovod_name = "HOROVOD_LOCAL_RANK",
     .min = -1,
     .max = kKnobRanksMax - 1,
     .help = "The number of this worker among those on its host; -1: not given, so that it is "
             "found. Set "
             "by the launcher."},
    {.field = knob_field<&RankTopology::local_size>,
     .name = "FARANDOLE_LOCAL_SIZE",
     .horovod_name = "HOROVOD_LOCAL_SIZE",
     .min = -1,
     .max = kKnobRanksMax,
     .help = "How many workers are on this host; -1: not given, so that it is found. Set by the "
             "launcher."},
    {.field = knob_field<&RankTopology::cross_rank>,
     .name = "FARANDOLE_CROSS_RANK",
     .horovod_name = "HOROVOD_CROSS_RANK",
     .min = -1,
     .max = kKnobRanksMax - 1,
     .help = "The number of this worker among those with its local rank, over all hosts; -1: not "
             "given, so that it is found. Set by the launcher."},
    {.field = knob_field<&RankTopology::cross_size>,
     .name = "FARANDOLE_CROSS_SIZE",
     .horovod_name = "HOROVOD_CROSS_SIZE",
     .min = -1,
     .max = kKnobRanksMax,
     .help = "How many workers have this local rank, over all hosts; -1: not given, so that it is "
             "found. Set by the launcher."},
    {.field = knob_field<&Knobs::rendezvous_descriptor>,
     .name = "FARANDOLE_RENDEZVOUS_DESCRIPTOR",
     .min = -1,
     .max = kKnobDescriptorMax,
     .help = "The inherited descriptor of the socket to the launcher; -1 when there is none. Set "
             "by the launcher."},
    {.field = knob_field<&Knobs::flight_record_descriptor>,
     .name = "FARANDOLE_FLIGHT_RECORD_DESCRIPTOR",
     .min = -1,
     .max = kKnobDescriptorMax,
     .help = "The inherited descriptor of the memory in which this worker tells the launcher what "
             "it does; -1 when there is none. Set by the launcher."},
    {.field = knob_field<&Knobs::channel_descriptor>,
     .name = "FARANDOLE_CHANNEL_DESCRIPTOR",
     .min = -1,
     .max = kKnobDescriptorMax,
     .help = "The inherited descriptor of the socket to the program that started the job; -1 when "
             "there is none. Set by the launcher."},
    {.field = knob_field<&Knobs::launcher_descriptor>,
     .name = "FARANDOLE_LAUNCHER_DESCRIPTOR",
     .min = -1,
     .max = kKnobDescriptorMax,
     .help = "The inherited descriptor of the socket by which a worker of an elastic job notices "
             "that its launcher is lost; -1 when there is none. Set by the launcher."},
    {.field = knob_field<&Knobs::elastic_worker>,
     .name = "FARANDOLE_ELASTIC_WORKER",
     .min = -1,
     .max = std::numeric_limits<std::int32_t>::max(),
     .help = "The number of this process in an elastic job, whose launcher gives it a rank each "
             "time that the group is formed; -1: the job is not elastic. Set by the launcher."},
    {.field = knob_field<&Knobs::job_store>,
     .name = "FARANDOLE_JOB_STORE",
     .help = "Where the ranks of a job over several hosts find each other: host:port, or several, "
             "separated by commas, of which any may work. The launcher of `farandole run` sets it. "
             "Under other launchers, it is a free port on the host of rank 0. Empty in a job on "
             "one host."},
    {.field = knob_field<&Knobs::secret_descriptor>,
     .name = "FARANDOLE_SECRET_DESCRIPTOR",
     .min = -1,
     .max = kKnobDescriptorMax,
     .help = "The inherited descriptor from which this worker reads the 32 bytes of the job's "
             "secret, which it needs with FARANDOLE_JOB_STORE; -1 when there is none. Set by the "
             "launcher."},
    {.field = knob_field<&Knobs::secret_file>,
     .name = "FARANDOLE_SECRET",
     .help = "The file with the job's secret, if another launcher than `farandole run` starts the "
             "ranks on several hosts. `farandole secret` makes such a file; all ranks need the "
             "same one."},
    {.field = knob_field<&Knobs::network_interfaces>,
     .name = "FARANDOLE_NETWORK_INTERFACES",
     .flag = "--network-interfaces",
     .help =
         "At which addresses workers on other hosts reach this one: names of interfaces (eth0), "
         "beginnings of names (ib*), addresses or ranges of addresses (10.0.0.0/8), separated by "
         "commas, the best one first. An entry after ! is avoided (!docker0). Empty means all "
         "ordinary interfaces."},
    {.field = knob_field<&Knobs::ports>,
     .name = "FARANDOLE_PORTS",
     .flag = "--ports",
     .help =
         "The ports at which workers on other hosts may reach this one: one port (20000), or a "
         "range with a port for each worker of a host (20000-20099). With -H, the launcher of node "
         "0 needs one more: on the first host, or in an elastic job on the host of the command. "
         "Groups that have an engine of their own need further ports. "
         "Empty means any free port."},
    {.field = knob_field<&Knobs::unsealed_data>,
     .name = "FARANDOLE_UNSEALED_DATA",
     .flag = "--unsealed-data",
     .same_on_all_ranks = true,
     .help =
         "Send the tensors of collective calls to other hosts in clear. Everybody on the network "
         "can then read and change them. Only for networks that nobody else can use."},
    {.field = knob_field<&Knobs::start_timeout>,
     .name = "FARANDOLE_START_TIMEOUT",
     .horovod_name = "HOROVOD_START_TIMEOUT",
     .min = 1,
     .max = 7 * 24 * 3600,
     .flag = "--start-timeout",
     .help = "Seconds that the workers wait for each other at the start."},
    {.field = knob_field<&Knobs::stall_warning>,
     .name = "FARANDOLE_STALL_WARNING",
     .horovod_name = "HOROVOD_STALL_CHECK_TIME_SECONDS",
     .horovod_off_switch = "HOROVOD_STALL_CHECK_DISABLE",
     .min = 0,
     .max = 7 * 24 * 3600,
     .flag = "--stall-warning",
     .help = "Seconds that a call may wait for other ranks before a warning says which ones it "
             "waits for; 0 means never."},
    {.field = knob_field<&Knobs::stall_limit>,
     .name = "FARANDOLE_STALL_LIMIT",
     .horovod_name = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
     .horovod_off_switch = "HOROVOD_STALL_CHECK_DISABLE",
     .min = 0,
     .max = 7 * 24 * 3600,
     .flag = "--stall-limit",
     .help = "Seconds that a call other than join may be in flight. Then its rank leaves the job, "
             "and calls on all ranks raise an error; 0 means no limit."},
    {.field = knob_field<&Knobs::bucket_bytes>,
     .name = "FARANDOLE_BUCKET_BYTES",
     .horovod_name = "HOROVOD_FUSION_THRESHOLD",
     .min = 0,
     .max = std::int64_t{1} << 40,
     .flag = "--bucket-bytes",
     .same_on_all_ranks = true,
     .help = "The largest size of a bucket of gradients that are averaged together, and of a "
             "transfer that several other calls share. With 0, each tensor has its own transfer."},
    {.field = knob_field<&Knobs::hierarchical_adasum>,
     .name = "FARANDOLE_HIERARCHICAL_ADASUM",
     .flag = "--hierarchical-adasum",
     .same_on_all_ranks = true,
     .help = "In an Adasum of ranks on several hosts, first average the tensors of each host, then "
             "combine these averages. Much less data is sent between hosts. An Adasum of ranks on "
             "one host stays as it is."},
    {.field = knob_field<&Knobs::check_parameters>,
     .name = "FARANDOLE_CHECK_PARAMETERS",
     .min = 0,
     .max = std::int64_t{1} << 40,
     .flag = "--check-parameters",
     .same_on_all_ranks = true,
     .help = "The number of steps between two checks of an optimizer's parameters. Each check "
             "compares up to 16 MiB of them, in turn, on all ranks; the check after the first "
             "step compares all of them. If a parameter differs between ranks, an error names it. "
             "0 means no checks."},
    {.field = knob_field<&Knobs::heap_bytes>,
     .name = "FARANDOLE_HEAP_BYTES",
     .min = 0,
     .max = std::int64_t{1} << 46,
     .flag = "--heap-bytes",
     .help = "The size of each worker's memory that the other workers can see, so that tensors in "
             "it need not be copied. Only the used part costs memory. 0 means as much as the "
             "machine has, or less if `ulimit -v` or `ulimit -f` is set."},
    {.field = knob_field<&Knobs::timeline_path>,
     .name = "FARANDOLE_TIMELINE",
     .horovod_name = "HOROVOD_TIMELINE",
     .flag = "--timeline",
     .help = "The file to which all workers write a trace of their calls, for Perfetto. An "
             "existing file is replaced. Empty means no trace. DYNAMIC means the same, because "
             "start_timeline() always works."},
    {.field = knob_field<&Knobs::timeline_bytes>,
     .name = "FARANDOLE_TIMELINE_BYTES",
     .min = 65536,
     .max = std::int64_t{1} << 40,
     .flag = "--timeline-bytes",
     .help = "Approximate size limit of a timeline's file. Calls that do not fit are left out, "
             "and the file says so."},
    {.field = knob_field<&Knobs::timeline_mark_cycles>,
     .name = "FARANDOLE_TIMELINE_MARK_CYCLES",
     .horovod_name = "HOROVOD_TIMELINE_MARK_CYCLES",
     .flag = "--timeline-mark-cycles",
     .help = "Marks the calls in the timeline that are made while no other call is in flight. A "
             "program that calls start_timeline() sets this by an argument."},
    {.field = knob_field<&Knobs::log_level>,
     .name = "FARANDOLE_LOG_LEVEL",
     .horovod_name = "HOROVOD_LOG_LEVEL",
     .choices = "trace|debug|info|warning|error|fatal",
     .flag = "--log-level",
     .help = "Log lines that are less severe than this are not shown."},
    {.field = knob_field<&Knobs::log_hide_time>,
     .name = "FARANDOLE_LOG_HIDE_TIME",
     .horovod_name = "HOROVOD_LOG_HIDE_TIME",
     .flag = "--log-hide-time",
     .help = "Write log lines without the time."},
    {.field = knob_field<&Knobs::failpoint>,
     .name = "FARANDOLE_FAILPOINT",
     .help = "For tests: PLACE:ACTION:NUMBER, such as formation.attached:kill:2, where this worker "
             "dies, stops or pauses on its way into a group or out of it. A wrong value gets an "
             "error that lists the places and the actions."},
});

}  // namespace farandole
