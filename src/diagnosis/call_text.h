// Formats collective calls, times and counts for people.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "timeline/flight_record.h"

namespace farandole {

// "allreduce `grad/fc2`". Control characters are escaped, so it is safe on a terminal.
std::string title_of(const FlightCall& call);
// "allreduce `grad/fc2` (float32, 200,000 elements)". Names the group if it is not the world.
std::string describe(const FlightCall& call);
// "3 ms", "2.1 s", "4 min 10 s".
std::string describe(Duration time);
// "1,204".
std::string with_commas(std::uint64_t number);
// "no call", "1 call", "1,204 calls".
std::string count_of_calls(std::uint64_t number);

}  // namespace farandole
