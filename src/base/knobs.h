// Knobs: every setting of Farandole is one row of one table. Reading the environment, the flags of
// the command, and the reference page all follow the row.
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
inline constexpr std::size_t kKnobs = 20;

enum class KnobType : std::uint8_t {
  kInteger,
  kSwitch,  // 0 or 1; also false/true, off/on, no/yes
  kChoice,  // one of a list of words, in any case
  kText,    // anything
};

struct KnobRow {
  Knob knob{};
  std::string_view name{};      // the environment variable
  std::string_view old_name{};  // Horovod's name for it; empty if it had none
  std::string_view old_off{};   // Horovod's switch whose yes means 0 here, whatever old_name says
  KnobType type{};
  std::string_view default_value{};  // as one would write it
  std::int64_t min = 0;              // kInteger
  std::int64_t max = 0;
  std::string_view choices{};  // kChoice: words separated by '|'
  std::string_view flag{};     // of `farandole run`; empty if the launcher sets the knob itself
  std::string_view help{};
};

// Indexed by Knob.
std::span<const KnobRow> knob_rows();
const KnobRow& row_of(Knob knob);

// The values of one process. Immutable after read(): any thread.
class Knobs {
 public:
  // `environment` answers like getenv; an empty value counts as not set. The new name wins over
  // the old ones. Errors: kFixCall naming the variable, its value and what is allowed.
  static Result<Knobs> read(const std::function<const char*(const char*)>& environment);

  // Whether a text is a value of this knob. `called`: how the user gave it, such as
  // "--log-level". Errors: kFixCall.
  static Status check(const KnobRow& row, std::string_view called, std::string_view text);

  // kInteger and kSwitch (0 or 1).
  std::int64_t integer(Knob knob) const;
  // kChoice: the word in small letters. kText: as it was given.
  const std::string& text(Knob knob) const;
  // False when the default is used.
  bool is_set(Knob knob) const;

 private:
  struct Value {
    std::int64_t integer = 0;
    std::string text;
    bool is_set = false;
  };
  // Where the value of a row comes from.
  struct Source {
    std::string_view variable;
    std::string_view text;
    bool is_set = false;
  };
  using Environment = std::function<const char*(const char*)>;
  static Source source_of(const KnobRow& row, const Environment& environment);
  static Result<Value> parse(const KnobRow& row, std::string_view variable, std::string_view text);

  const Value& value_of(Knob knob) const { return values_[static_cast<std::size_t>(knob)]; }

  std::array<Value, kKnobs> values_;
};

}  // namespace farandole
