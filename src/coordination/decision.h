// What a group does next: a step, the end of a submission that cannot run, or the release of those
// that have joined. Every one is entered by all members, also one that moves no data: who has come
// to the end of it knows that all have heard it, and may leave without taking it from them.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "base/signature.h"
#include "farandole/status.h"

namespace farandole {

// By which the owner of an Agreement knows its submissions.
using Ticket = std::uint64_t;

// Which entry this is. Sequence numbers start at 1, have no gaps among what a group completes, and
// go on with 0 after 2^32 − 1; generations start at 1, and each replan begins the next one.
struct Turn {
  std::uint32_t generation = 1;
  std::uint32_t sequence = 1;

  friend bool operator==(const Turn&, const Turn&) = default;
};

// "All members run this next", or, as long as not all have entered it alike, "we think so".
struct Step {
  Turn turn;
  // What it does, all of it: members that enter a turn with the same identity enter the same step.
  std::uint64_t identity = 0;
  // Ours, in the order in which they lie in the step; more than one are fused into one transfer.
  std::vector<Ticket> tickets;
  // Set when this member has joined and so has not submitted it: it takes part without data.
  std::optional<Signature> joined = std::nullopt;

  friend bool operator==(const Step&, const Step&) = default;
};

// "This submission cannot run": kFixCall, the same text on every member that has submitted it.
struct Refusal {
  Turn turn;
  Ticket ticket = 0;
  Status status;

  friend bool operator==(const Refusal&, const Refusal&) = default;
};

// "All members have joined": the same on every member; the joins end with it.
struct Release {
  Turn turn;
  Ticket ticket = 0;  // of this member's join
  int last_rank = 0;  // of the world: the one that joined last

  friend bool operator==(const Release&, const Release&) = default;
};

// "A submission of others cannot run": they are refused, this member has joined and only enters.
struct Pass {
  Turn turn;

  friend bool operator==(const Pass&, const Pass&) = default;
};

using Decision = std::variant<Step, Refusal, Release, Pass>;

}  // namespace farandole
