// Knobs: every setting of Farandole is one row of one table. The environment, the flags of the
// command and the reference page are all made from the rows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "farandole/status.h"

namespace farandole {

enum class Knob : std::uint8_t {
  kRank,
  kSize,
  kLocalRank,
  kLocalSize,
  kCrossRank,
  kCrossSize,
  kRendezvousDescriptor,
  kFlightRecordDescriptor,
  kChannelDescriptor,
  kStartTimeout,
  kStallWarning,
  kStallLimit,
  kBucketBytes,
  kCheckParameters,
  kHeapBytes,
  kTimeline,
  kTimelineBytes,
  kTimelineMarkCycles,
  kLogLevel,
  kLogHideTime,
};
inline constexpr std::size_t kKnobCount = 20;

enum class KnobType : std::uint8_t {
  kInteger,
  kSwitch,  // 0 or 1; also false/true, off/on, no/yes
  kChoice,  // one word of a list, in upper or lower case
  kText,    // any text
};

struct KnobRow {
  Knob knob{};
  std::string_view name{};      // the environment variable
  std::string_view old_name{};  // Horovod's name for it; empty if it had none
  // the name of Horovod's switch that turns this off: if the switch is on, the value of the knob is
  // 0, whatever old_name says
  std::string_view old_off_switch{};
  KnobType type{};
  std::string_view default_value{};  // as a user would write it
  std::int64_t min = 0;              // kInteger
  std::int64_t max = 0;
  std::string_view choices{};  // kChoice: words separated by '|'
  // the flag of `farandole run`; empty if the launcher sets the knob itself
  std::string_view flag{};
  // kInteger or kSwitch: only the frontends use it, and it must be the same on all ranks
  bool is_of_frontends = false;
  std::string_view help{};
};

// Indexed by Knob.
std::span<const KnobRow> knob_rows();
const KnobRow& row_of(Knob knob);

// The settings of one process. Cannot change after read(), so any thread may use them.
class Knobs {
 public:
  // Reads all knobs. `environment` answers like getenv; an empty value counts as not set.
  // Farandole's own variable wins over Horovod's. Errors: kFixCall with the variable, its value and
  // the allowed values.
  static Result<Knobs> read(const std::function<const char*(const char*)>& environment);

  // Checks that `text` is an allowed value of this knob. `called` is what the user wrote before it,
  // such as "--log-level". Errors: kFixCall.
  static Status check(const KnobRow& row, std::string_view called, std::string_view text);

  // kInteger and kSwitch (0 or 1).
  std::int64_t integer(Knob knob) const;
  // kChoice: the word in lower case. kText: as it was given.
  const std::string& text(Knob knob) const;
  // False if the default is used.
  bool is_set(Knob knob) const;

 private:
  struct Value {
    std::int64_t integer = 0;
    std::string text;
    bool is_set = false;
  };
  // Which variable gives the value of a row.
  struct Source {
    std::string_view variable;
    std::string_view text;
    bool is_set = false;
  };
  using Environment = std::function<const char*(const char*)>;
  static Source source_of(const KnobRow& row, const Environment& environment);
  static Result<Value> parse(const KnobRow& row, std::string_view variable, std::string_view text);

  const Value& value_of(Knob knob) const { return values_[static_cast<std::size_t>(knob)]; }

  std::array<Value, kKnobCount> values_;
};

}  // namespace farandole
