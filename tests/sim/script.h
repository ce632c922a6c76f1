// Script: a random but correct job. Who is in which group, which calls the job makes, and what each
// worker's program does in which order. If the engine is right, every script comes to its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "coordination/signature.h"
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
  bool is_refused() const {
    return is_mismatch() || (!joined.empty() && !row_of(common.operation).runs_joined);
  }
  // What a worker puts into the sum.
  static std::int64_t value(int call, int worker) { return call * 1000003LL + worker * 7919LL + 1; }
};

// What a program does; calls by their number.
struct Submit {
  int call;
  bool twice;  // and at once again, which must be refused
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
using Action = std::variant<Submit, SubmitByPoll, Wait, Pause>;

struct Death {
  int worker;
  Time time;
};

struct Script {
  int workers = 0;
  std::vector<std::vector<int>> groups;  // ascending
  std::vector<std::size_t> names_max;    // by group
  std::vector<Call> calls;
  std::vector<std::vector<Action>> programs;  // by worker
  std::vector<Death> deaths;
  Time delay_max = 0;  // of a message or a wake-up

  // Our index in a group; nothing for those outside.
  std::optional<int> member_of(int group, int worker) const;
};

Script random_script(std::uint64_t seed);

}  // namespace farandole::sim
