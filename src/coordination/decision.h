// What a group decides: the next step, that a submission cannot run, or that all have joined.
// Decisions have one order and one row of numbers on all members, and every one is entered by all,
// also one that moves no data: who has come to the end of it knows that all have heard it, and may
// leave without taking it from them.
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

// "All members run this next." Sequence numbers start at 1, have no gaps among the decisions of a
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
  std::uint32_t generation;
  std::uint32_t sequence;
  std::string name;
  Status status;

  friend bool operator==(const Refusal&, const Refusal&) = default;
};

// "All members have joined": the same on every member; the joins end with it.
struct Release {
  std::uint32_t generation;
  std::uint32_t sequence;
  std::string name;  // under which this member has submitted its join
  int last_rank;     // of the world: the one that joined last

  friend bool operator==(const Release&, const Release&) = default;
};

// "A submission of others cannot run": they are refused, this member has joined and only enters.
struct Pass {
  std::uint32_t generation;
  std::uint32_t sequence;
  std::string name;

  friend bool operator==(const Pass&, const Pass&) = default;
};

using Decision = std::variant<Step, Refusal, Release, Pass>;

}  // namespace farandole
