// Script: a random but correct job. Who is in which group, which calls the job makes, and what each
// worker's program does in which order. If the agreement is right, every script comes to its end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "base/signature.h"
#include "coordination/agreement.h"
#include "story.h"

namespace farandole::sim {

// One collective call, as the members of its group make it; or one join of all of them.
struct Call {
  int group = 0;
  Signature common;
  // Workers that submit something else: the call will be refused. Of a join only the name differs,
  // and that matters to nobody.
  std::map<int, Signature> odd = {};
  std::vector<int> makers = {};  // ascending; there are some
  std::vector<int> joined = {};  // ascending; the other members: by this time they have joined …
  int join = -1;                 // … by this call

  const Signature& of(int worker) const {
    const auto found = odd.find(worker);
    return found == odd.end() ? common : found->second;
  }
  bool is_join() const { return common.operation == Operation::kJoin; }
  bool is_mismatch() const { return !is_join() && !odd.empty(); }
  bool has_fault() const {
    return std::ranges::any_of(makers, [&](int maker) { return of(maker).has_fault(); });
  }
  bool is_refused() const {
    return is_mismatch() || has_fault() ||
           (!joined.empty() && !row_of(common.operation).runs_joined);
  }
  // What a worker puts into the sum.
  static std::int64_t value(int call, int worker) { return call * 1000003LL + worker * 7919LL + 1; }
  // How many rows it brings to an all-gather or alltoall: each its own number, maybe none.
  std::int64_t extent(int call, int worker) const {
    const bool ragged = row_of(common.operation).shape_rule == ShapeRule::kAllButFirst;
    return ragged ? (call * 31LL + worker * 17LL) % 5 : 0;
  }
};

// What a program does; calls by their number.
struct Submit {
  int call;
  bool twice;  // and at once again, which must be refused
};
struct SubmitBatch {  // as a whole, in this order
  std::vector<int> calls;
};
struct SubmitByPoll {  // the order depends on whether `polled` is done by then
  int polled;
  int first;
  int second;
};
struct Wait {
  int call;
};
struct Pause {
  Time time;
  bool stopped;  // nothing of the worker runs, as if it were in SIGSTOP; else only the program
};
struct Begin {  // an iteration of a loop
  int iteration;
};
using Action = std::variant<Submit, SubmitBatch, SubmitByPoll, Wait, Pause, Begin>;

struct Death {
  int worker;
  Time time;
};

struct Script {
  int workers = 0;
  std::vector<std::vector<int>> groups;   // ascending
  std::vector<AgreementOptions> options;  // by group
  std::vector<Call> calls;
  std::vector<std::vector<Action>> programs;  // by worker
  std::vector<Death> deaths;
  Time delay_max = 0;  // of a message, a wake-up or a flag
  Time pauses = 0;     // of all programs together
  // From where all programs are in this iteration, nothing is new any more; and then, if this is
  // promised, no control message may be sent.
  std::optional<int> nothing_new_from = {};
  bool must_fall_silent = false;

  const std::vector<int>& members(int group) const {
    return groups[static_cast<std::size_t>(group)];
  }
  const Call& call(int number) const { return calls[static_cast<std::size_t>(number)]; }
  // Our index in a group; nothing for those outside.
  std::optional<int> member_of(int group, int worker) const;
};

}  // namespace farandole::sim
