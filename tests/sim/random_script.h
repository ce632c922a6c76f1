// Which script a seed stands for.
#pragma once

#include <cstdint>

#include "script.h"

namespace farandole::sim {

// What of a seed is fixed beforehand; the rest is chance.
enum class Kind : std::uint8_t {
  kAny,
  kFree,   // phases of all sorts, with conditionals, joins, mismatches and deaths
  kLoop,   // the same again and again: it must learn
  kLarge,  // hundreds of members, and little to do
};

Script random_script(std::uint64_t seed, Kind kind = Kind::kAny);

}  // namespace farandole::sim
