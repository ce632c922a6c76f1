#include "base/knobs.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/format.h"

namespace farandole {
namespace {

constexpr std::int64_t kRanksMax = std::int64_t{1} << 20;
constexpr std::int64_t kDescriptorMax = std::numeric_limits<std::int32_t>::max();

constexpr std::string_view kYes = "1|true|on|yes";

constexpr std::array<KnobRow, kKnobCount> kRows = {{
    {.knob = Knob::kRank,
     .name = "FARANDOLE_RANK",
     .old_name = "HOROVOD_RANK",
     .type = KnobType::kInteger,
     .default_value = "0",
     .min = 0,
     .max = kRanksMax - 1,
     .help = "The number of this worker in the job. Set by the launcher."},
    {.knob = Knob::kSize,
     .name = "FARANDOLE_SIZE",
     .old_name = "HOROVOD_SIZE",
     .type = KnobType::kInteger,
     .default_value = "1",
     .min = 1,
     .max = kRanksMax,
     .help = "How many workers the job has. Set by the launcher."},
    {.knob = Knob::kLocalRank,
     .name = "FARANDOLE_LOCAL_RANK",
     .old_name = "HOROVOD_LOCAL_RANK",
     .type = KnobType::kInteger,
     .default_value = "0",
     .min = 0,
     .max = kRanksMax - 1,
     .help = "The number of this worker among those on its host. Set by the launcher."},
    {.knob = Knob::kLocalSize,
     .name = "FARANDOLE_LOCAL_SIZE",
     .old_name = "HOROVOD_LOCAL_SIZE",
     .type = KnobType::kInteger,
     .default_value = "1",
     .min = 1,
     .max = kRanksMax,
     .help = "How many workers are on this host. Set by the launcher."},
    {.knob = Knob::kCrossRank,
     .name = "FARANDOLE_CROSS_RANK",
     .old_name = "HOROVOD_CROSS_RANK",
     .type = KnobType::kInteger,
     .default_value = "0",
     .min = 0,
     .max = kRanksMax - 1,
     .help = "The number of this worker among those with its local rank, over all hosts. Set by "
             "the launcher."},
    {.knob = Knob::kCrossSize,
     .name = "FARANDOLE_CROSS_SIZE",
     .old_name = "HOROVOD_CROSS_SIZE",
     .type = KnobType::kInteger,
     .default_value = "1",
     .min = 1,
     .max = kRanksMax,
     .help = "How many workers have this local rank, over all hosts. Set by the launcher."},
    {.knob = Knob::kRendezvousDescriptor,
     .name = "FARANDOLE_RENDEZVOUS_DESCRIPTOR",
     .type = KnobType::kInteger,
     .default_value = "-1",
     .min = -1,
     .max = kDescriptorMax,
     .help = "The inherited descriptor of the socket to the launcher; -1 when there is none. Set "
             "by the launcher."},
    {.knob = Knob::kFlightRecordDescriptor,
     .name = "FARANDOLE_FLIGHT_RECORD_DESCRIPTOR",
     .type = KnobType::kInteger,
     .default_value = "-1",
     .min = -1,
     .max = kDescriptorMax,
     .help = "The inherited descriptor of the memory in which this worker tells the launcher what "
             "it does; -1 when there is none. Set by the launcher."},
    {.knob = Knob::kChannelDescriptor,
     .name = "FARANDOLE_CHANNEL_DESCRIPTOR",
     .type = KnobType::kInteger,
     .default_value = "-1",
     .min = -1,
     .max = kDescriptorMax,
     .help = "The inherited descriptor of the socket to the program that started the job; -1 when "
             "there is none. Set by the launcher."},
    {.knob = Knob::kStartTimeout,
     .name = "FARANDOLE_START_TIMEOUT",
     .old_name = "HOROVOD_START_TIMEOUT",
     .type = KnobType::kInteger,
     .default_value = "120",
     .min = 1,
     .max = 7 * 24 * 3600,
     .flag = "--start-timeout",
     .help = "Seconds that the workers wait for each other at the start."},
    {.knob = Knob::kStallWarning,
     .name = "FARANDOLE_STALL_WARNING",
     .old_name = "HOROVOD_STALL_CHECK_TIME_SECONDS",
     .old_off_switch = "HOROVOD_STALL_CHECK_DISABLE",
     .type = KnobType::kInteger,
     .default_value = "10",
     .min = 0,
     .max = 7 * 24 * 3600,
     .flag = "--stall-warning",
     .help = "Seconds that a call may wait for other ranks before the launcher says which ones "
             "it waits for; 0 means never."},
    {.knob = Knob::kStallLimit,
     .name = "FARANDOLE_STALL_LIMIT",
     .old_name = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
     .old_off_switch = "HOROVOD_STALL_CHECK_DISABLE",
     .type = KnobType::kInteger,
     .default_value = "0",
     .min = 0,
     .max = 7 * 24 * 3600,
     .flag = "--stall-limit",
     .help = "Seconds that a call may be in flight before its rank leaves the job with an error; 0 "
             "means no limit."},
    {.knob = Knob::kBucketBytes,
     .name = "FARANDOLE_BUCKET_BYTES",
     .old_name = "HOROVOD_FUSION_THRESHOLD",
     .type = KnobType::kInteger,
     .default_value = "16777216",
     .min = 0,
     .max = std::int64_t{1} << 40,
     .flag = "--bucket-bytes",
     .help = "The largest size of a bucket of gradients that are averaged together, and of a "
             "transfer that several other calls share. With 0, each tensor has its own transfer."},
    {.knob = Knob::kCheckParameters,
     .name = "FARANDOLE_CHECK_PARAMETERS",
     .type = KnobType::kInteger,
     .default_value = "5000",
     .min = 0,
     .max = std::int64_t{1} << 40,
     .flag = "--check-parameters",
     .is_of_frontends = true,
     .help = "An optimizer checks that its parameters are the same on all ranks: all of them after "
             "its first step, then up to 16 MiB of them, in turn, each time this many steps have "
             "passed. A difference is an error that names the parameter. 0 means never."},
    {.knob = Knob::kHeapBytes,
     .name = "FARANDOLE_HEAP_BYTES",
     .type = KnobType::kInteger,
     .default_value = "0",
     .min = 0,
     .max = std::int64_t{1} << 46,
     .flag = "--heap-bytes",
     .help = "The size of each worker's memory that the other workers can see, so that tensors in "
             "it need not be copied. Only the used part costs memory. 0 means as much as the "
             "machine has, or less if `ulimit -v` or `ulimit -f` is set."},
    {.knob = Knob::kTimeline,
     .name = "FARANDOLE_TIMELINE",
     .old_name = "HOROVOD_TIMELINE",
     .type = KnobType::kText,
     .default_value = "",
     .flag = "--timeline",
     .help = "The file to which all workers write a trace of their calls, for Perfetto. An "
             "existing file is replaced. Empty means no trace. DYNAMIC means the same, because "
             "start_timeline() always works."},
    {.knob = Knob::kTimelineBytes,
     .name = "FARANDOLE_TIMELINE_BYTES",
     .type = KnobType::kInteger,
     .default_value = "268435456",
     .min = 65536,
     .max = std::int64_t{1} << 40,
     .flag = "--timeline-bytes",
     .help = "Approximate size limit of a timeline's file. Calls that do not fit are left out, "
             "and the file says so."},
    {.knob = Knob::kTimelineMarkCycles,
     .name = "FARANDOLE_TIMELINE_MARK_CYCLES",
     .old_name = "HOROVOD_TIMELINE_MARK_CYCLES",
     .type = KnobType::kSwitch,
     .default_value = "0",
     .flag = "--timeline-mark-cycles",
     .help = "Marks the calls in the timeline that are made while no other call is in flight. A "
             "program that calls start_timeline() sets this by an argument."},
    {.knob = Knob::kLogLevel,
     .name = "FARANDOLE_LOG_LEVEL",
     .old_name = "HOROVOD_LOG_LEVEL",
     .type = KnobType::kChoice,
     .default_value = "warning",
     .choices = "trace|debug|info|warning|error|fatal",
     .flag = "--log-level",
     .help = "Log lines that are less severe than this are not shown."},
    {.knob = Knob::kLogHideTime,
     .name = "FARANDOLE_LOG_HIDE_TIME",
     .old_name = "HOROVOD_LOG_HIDE_TIME",
     .type = KnobType::kSwitch,
     .default_value = "0",
     .flag = "--log-hide-time",
     .help = "Write log lines without the time."},
}};

constexpr bool rows_are_in_order() {
  for (std::size_t index = 0; index < kRows.size(); ++index)
    if (kRows[index].knob != static_cast<Knob>(index)) return false;
  return true;
}
static_assert(rows_are_in_order(), "the table is indexed by Knob");

std::string in_lower_case(std::string_view text) {
  std::string small(text);
  std::ranges::transform(small, small.begin(), [](unsigned char letter) {
    return static_cast<char>(std::tolower(letter));
  });
  return small;
}

bool is_one_of(std::string_view word, std::string_view choices) {
  while (!choices.empty()) {
    const auto end = std::min(choices.find('|'), choices.size());
    if (choices.substr(0, end) == word) return true;
    choices.remove_prefix(std::min(end + 1, choices.size()));
  }
  return false;
}

bool is_text(const KnobRow& row) {
  return row.type == KnobType::kChoice || row.type == KnobType::kText;
}

std::string allowed_values(const KnobRow& row) {
  switch (row.type) {
    case KnobType::kInteger:
      return format_text("a whole number from {} to {}", row.min, row.max);
    case KnobType::kSwitch:
      return "0 or 1";
    case KnobType::kChoice:
      return format_text("one of {}", row.choices);
    case KnobType::kText:
      return "text";
  }
  CHECK(false, "every type of knob says what it allows");
  return {};
}

}  // namespace

std::span<const KnobRow> knob_rows() { return kRows; }

const KnobRow& row_of(Knob knob) { return kRows[static_cast<std::size_t>(knob)]; }

Result<Knobs::Value> Knobs::parse(const KnobRow& row, std::string_view variable,
                                  std::string_view text) {
  Value value;
  bool fits = false;
  if (row.type == KnobType::kText) {
    value.text = text;
    fits = true;
  } else if (row.type == KnobType::kInteger) {
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value.integer);
    fits =
        error == std::errc() && rest == end && value.integer >= row.min && value.integer <= row.max;
  } else {
    value.text = in_lower_case(text);
    fits = is_one_of(value.text, row.choices);
  }
  if (row.type == KnobType::kSwitch) {
    value.integer = is_one_of(value.text, kYes) ? 1 : 0;
    fits = value.integer == 1 || is_one_of(value.text, "0|false|off|no");
  }
  if (fits) return value;
  return Status::fix_call(
      format_text("{} is \"{}\"; it must be {}", variable, text, allowed_values(row)));
}

Knobs::Source Knobs::source_of(const KnobRow& row, const Environment& environment) {
  const auto value = [&](std::string_view name) -> std::string_view {
    const char* found = name.empty() ? nullptr : environment(std::string(name).c_str());
    return found == nullptr ? std::string_view() : found;
  };
  if (const auto text = value(row.name); !text.empty()) return {row.name, text, true};
  if (is_one_of(in_lower_case(value(row.old_off_switch)), kYes))
    return {row.old_off_switch, "0", true};
  if (const auto text = value(row.old_name); !text.empty()) return {row.old_name, text, true};
  return {row.name, row.default_value};
}

Result<Knobs> Knobs::read(const std::function<const char*(const char*)>& environment) {
  Knobs knobs;
  for (const KnobRow& row : kRows) {
    const Source source = source_of(row, environment);
    auto value = parse(row, source.variable, source.text);
    if (!value.ok())
      return Status::fix_call(value.status().message() + ". Correct it or unset it.");
    value->is_set = source.is_set;
    knobs.values_[static_cast<std::size_t>(row.knob)] = *std::move(value);
  }
  return knobs;
}

Status Knobs::check(const KnobRow& row, std::string_view called, std::string_view text) {
  return parse(row, called, text).status();
}

std::int64_t Knobs::integer(Knob knob) const {
  CHECK(!is_text(row_of(knob)), "this knob is a word");
  return value_of(knob).integer;
}

const std::string& Knobs::text(Knob knob) const {
  CHECK(is_text(row_of(knob)), "this knob is a number");
  return value_of(knob).text;
}

bool Knobs::is_set(Knob knob) const { return value_of(knob).is_set; }

}  // namespace farandole
