// Script: a random but correct job. It says which workers are in which group, which calls the job
// makes, and what each worker's program does in which order. If the agreement is right, every
// script runs to its end.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/signature.h"
#include "coordination/agreement.h"
#include "farandole/engine.h"
#include "story.h"

namespace farandole::sim {

// One collective call of a group's members, or one join of all of them.
struct Call {
  int group = 0;
  Signature common;
  // The signatures of the workers that do not submit `common`, by worker. If the call is not a
  // join, these signatures make the group reject the call. If the call is a join, only the name
  // differs in these signatures, and this is not an error.
  std::map<int, Signature> odd_signatures = {};
  std::vector<int> makers = {};  // ascending, not empty
  std::vector<int> joined = {};  // ascending; the members that have joined before this call
  int join = -1;                 // the call number of their join; −1 if none has joined
  bool unnamed = false;  // the program gives no name; the engine must choose the name of `common`

  const Signature& signature_of(int worker) const {
    const auto found = odd_signatures.find(worker);
    return found == odd_signatures.end() ? common : found->second;
  }
  bool is_join() const { return common.operation == Operation::kJoin; }
  bool is_mismatch() const { return !is_join() && !odd_signatures.empty(); }
  bool has_call_error() const {
    return std::ranges::any_of(makers,
                               [&](int maker) { return signature_of(maker).has_call_error(); });
  }
  bool is_rejected() const {
    return is_mismatch() || has_call_error() ||
           (!joined.empty() && !row_of(common.operation).allowed_while_joined);
  }
  // The value that a worker adds to the sum.
  static std::int64_t value(int call, int worker) { return call * 1000003LL + worker * 7919LL + 1; }
  // How many rows a worker contributes to an all-gather or alltoall. Each worker may have another
  // number of rows, even 0.
  std::int64_t declared_count(int call, int worker) const {
    const bool ragged = row_of(common.operation).shape_rule == ShapeRule::kAllButFirst;
    return ragged ? (call * 31LL + worker * 17LL) % 5 : 0;
  }
};

// The actions of a program; calls are given by their numbers.
struct Submit {
  int call;
  bool twice;  // submit a second time without a wait; this must fail
};
struct SubmitBatch {  // submit all or none, in this order
  std::vector<int> calls;
};
struct SubmitInPolledOrder {  // `first`, then `second`; in reverse order if `polled` is not done
  int polled;
  int first;
  int second;
};
struct SubmitRejected {  // submit under a name that is in use; must be rejected
  int group;
  std::string name;
  Operation operation;
};
struct Poll {  // ask whether the call is done; the program ignores the answer
  int call;
};
struct Drop {  // drop the handle: the program never waits for the call
  int call;
};
struct Wait {
  int call;
};
struct Pause {
  Time time;
  bool stops_worker;  // true: the whole worker pauses, as in SIGSTOP; false: only its program
};
struct BeginIteration {  // begin an iteration of a loop
  int iteration;
};
struct Leave {  // leave the job without an error; always the last action
  // If true, the worker leaves although other workers may wait for it. If false, the worker leaves
  // when its calls have ended.
  bool is_early;
};
using Action = std::variant<Submit, SubmitBatch, SubmitInPolledOrder, SubmitRejected, Poll, Drop,
                            Wait, Pause, BeginIteration, Leave>;

struct Death {
  int worker;
  Time time;
};

// The kinds of traffic between two hosts. Each kind has its own channels. Ends of groups and
// notices of deaths have channels of their own, too, but they share the partitions and delays of
// the control messages.
enum class Traffic : std::uint8_t { kEntries, kMessages };

// A partition of the network in one direction. Traffic from `from` to `to` arrives after `end`, in
// order, if it is sent between `begin` and `end` or is on its way at this time.
struct Partition {
  int from;  // host
  int to;
  Time begin;
  Time end;
  std::optional<Traffic> traffic = {};  // the kind of traffic that the partition stops; empty: all
};

// All workers of a host are stopped, as in SIGSTOP.
struct HostPause {
  int host;
  Time begin;
  Time end;
};

struct Script {
  int workers = 0;
  std::vector<std::vector<int>> groups;   // the workers of each group, ascending
  std::vector<AgreementOptions> options;  // by group
  std::vector<int> hosts;                 // by worker; empty if all workers are on one host
  std::vector<Call> calls;
  std::vector<std::vector<Action>> programs;  // by worker
  std::vector<Death> deaths;
  std::vector<Partition> partitions;
  // The longest delay of each kind of traffic between hosts, as a multiple of delay_max.
  std::array<int, 2> delay_factors = {1, 1};
  std::vector<HostPause> host_pauses;
  Time delay_max = 0;  // the longest delay of a message, a wake-up or a flag
  Time pauses = 0;     // the sum of all pauses of programs and hosts, and of all partitions
  // In this and all later iterations, the programs only repeat what they have done before. If
  // must_fall_silent, no control message may be sent after all programs have begun this iteration.
  std::optional<int> repeats_from = {};
  bool must_fall_silent = false;

  const std::vector<int>& members(int group) const {
    return groups[static_cast<std::size_t>(group)];
  }
  int host_of(int worker) const { return hosts[static_cast<std::size_t>(worker)]; }
  // Returns the host of each member of a group. Empty if all workers are on one host.
  std::vector<int> hosts_of(int group) const;
  const Call& call(int number) const { return calls[static_cast<std::size_t>(number)]; }
  // The worker's index in a group; empty if it is not a member.
  std::optional<int> member_of(int group, int worker) const;
  // What the program of a worker submits for call `number`.
  Submission submission_of(int number, int worker) const;
};

}  // namespace farandole::sim
