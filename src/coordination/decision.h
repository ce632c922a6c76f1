// What a group decides: the next step, or that a submission cannot run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "coordination/signature.h"
#include "farandole/status.h"

namespace farandole {

// Of all steps, as long as no step is ever withdrawn.
inline constexpr std::uint32_t kGeneration = 1;

// "All members run this next." Sequence numbers start at 1, have no gaps within a
// group, and go on with 0 after 2^32 − 1.
struct Step {
  std::uint32_t generation;
  std::uint32_t sequence;
  std::uint32_t id;  // of the signature; what the members compare when they enter
  std::string name;
  // Set when this member has joined and so has not submitted it: it takes part without data.
  std::optional<Signature> joined = std::nullopt;

  friend bool operator==(const Step&, const Step&) = default;
};

// "This submission cannot run": kFixCall, the same text on every member that has submitted it.
struct Refusal {
  std::string name;
  Status status;

  friend bool operator==(const Refusal&, const Refusal&) = default;
};

// "All members have joined": the same on every member; the joins end with it.
struct Release {
  std::string name;  // under which this member has submitted its join
  int last_rank;     // of the world: the one that joined last

  friend bool operator==(const Release&, const Release&) = default;
};

using Decision = std::variant<Step, Refusal, Release>;

}  // namespace farandole
