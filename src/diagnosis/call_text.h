// Formats collective calls, times and counts as text for people.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "timeline/flight_record.h"

namespace farandole {

// Returns the operation and the name: "allreduce `grad/fc2`". Control characters are escaped, so
// the text is safe on a terminal.
std::string title_of(const RecordedCall& call);
// Returns the title with details: "allreduce `grad/fc2` (float32, 200,000 elements)". Includes the
// group if it is not the world.
std::string describe(const RecordedCall& call);
// Returns "3 ms", "2.1 s" or "4 min 10 s".
std::string describe(Duration time);
// Returns "1,204" for 1204.
std::string with_commas(std::uint64_t number);
// Returns "0 calls", "1 call" or "1,204 calls".
std::string count_of_calls(std::uint64_t number);

}  // namespace farandole
