// Reads and checks knobs. The table of knobs is in farandole/knobs.h.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "farandole/knobs.h"
#include "farandole/status.h"

namespace farandole {

enum class KnobType : std::uint8_t {
  kInteger,
  kSwitch,  // 0 or 1; also false/true, off/on, no/yes
  kChoice,  // one word of a list, in upper or lower case
  kText,    // any text
};

KnobType type_of(const KnobRow& row);
// Returns the row of this environment variable. The row must exist.
const KnobRow& knob_named(std::string_view name);
// Returns the value of a knob as a user would write it.
std::string value_text(const KnobRow& row, const Knobs& knobs);

// A function that returns the value of an environment variable, like getenv. An empty value counts
// as not set.
using Environment = std::function<const char*(const char*)>;
// The value of a variable; empty if the variable is not set, or if `name` is empty.
std::string_view variable_text(const Environment& environment, std::string_view name);

// Whether the environment has a value for this knob.
bool is_set(const KnobRow& row, const Environment& environment);
// Reads all knobs. Farandole's own variable overrides Horovod's, and both override the value in
// `knobs`. Errors: kFixCall with the variable, its value and the allowed values.
Status read_knobs(Knobs& knobs, const Environment& environment);
// Returns the time after which the launcher warns about a stall; 0 for never. If there is a stall
// limit, the warning must come before the ranks reach this limit, even if the user has switched
// warnings off.
std::chrono::seconds stall_warning_time(const Knobs& knobs);
// Returns the file of the timeline that starts with the job. Empty if no timeline starts with the
// job. With the path DYNAMIC, Horovod allows a later start_timeline(). In Farandole, a later
// start_timeline() is always allowed, so DYNAMIC counts as empty.
std::string timeline_path_of(const Knobs& knobs);
// Sets one knob. Errors show `shown_name`, the flag or variable that the user has set, such as
// "--log-level". Errors: kFixCall if the text is not an allowed value.
Status set_knob(Knobs& knobs, const KnobRow& row, std::string_view shown_name,
                std::string_view text);

}  // namespace farandole
