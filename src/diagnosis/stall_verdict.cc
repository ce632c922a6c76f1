#include "diagnosis/stall_verdict.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/format.h"
#include "base/process_end.h"
#include "base/rank_names.h"
#include "base/visible_text.h"
#include "diagnosis/call_text.h"

namespace farandole {
namespace {

constexpr std::size_t kRanksShownMax = 8;  // each rank uses one line

// Returns "gradients.2." for the name of a call that an optimizer makes, such as `gradients.2.0
// (fc1.weight)`, and otherwise nothing.
std::string_view optimizer_of(std::string_view call) {
  constexpr std::string_view kPrefix = "gradients.";
  if (!call.starts_with(kPrefix)) return {};
  const auto end = call.find('.', kPrefix.size());
  return end == std::string_view::npos ? std::string_view() : call.substr(0, end + 1);
}

// Returns why the ranks that wait in these calls wait for each other. Empty if the names of the
// calls do not show it.
std::string cause_of(std::span<const std::string_view> calls) {
  std::set<std::string_view> optimizers;
  for (const auto call : calls) optimizers.insert(optimizer_of(call));
  if (optimizers.contains({}))
    return "all ranks of a group must make the same blocking calls, in the same order";
  if (optimizers.size() > 1)
    return "the ranks use their optimizers in different orders: all ranks must make and use them "
           "in "
           "the same order";
  return "the ranks are at different places of a step: all ranks must make the same number of "
         "backward passes before step(), and make or skip the same steps. If they use different "
         "layers in "
         "a step, run backward() within `with optimizer.no_sync():`; step() then combines all "
         "gradients";
}

// A call that has waited longer than the limit, and the rank that made it.
struct LongWait {
  int rank = 0;
  const RecordedCall* call = nullptr;
};

class Reporter {
 public:
  Reporter(const JobSnapshot& snapshot, const StallLimits& limits)
      : snapshot_(snapshot), limits_(limits) {}

  std::optional<StallVerdict> init_verdict() const;
  std::optional<StallVerdict> call_verdict() const;

 private:
  TimePoint wait_begin(TimePoint began) const { return std::max(began, limits_.counts_from); }
  Duration waited_time(TimePoint began) const { return snapshot_.now() - wait_begin(began); }
  bool exceeds_limit(TimePoint began) const { return waited_time(began) >= limits_.limit; }
  std::string rank_text(int rank) const {
    const WatchedWorker& worker = snapshot_.worker(rank);
    return format_text("rank {} ({}, pid {})", rank, escape_controls(worker.host), worker.pid);
  }

  std::vector<int> stopped_ranks_of(const std::vector<int>& ranks) const;
  std::vector<LongWait> long_waits() const;
  bool is_a_stall(const RecordedCall& call) const;

  std::string waiting_times_text(const std::vector<std::pair<int, TimePoint>>& waits) const;
  std::string activity_of(int rank, const RecordedCall* call, bool& unexplained) const;
  std::string last_call_of(int rank) const;
  std::string after_calls_text(int rank) const;
  void add_ranks(const std::vector<int>& ranks, const RecordedCall* call,
                 const std::string& missing_text, StallVerdict& verdict) const;
  void add_call(const RecordedCall& call, StallVerdict& verdict) const;
  void add_cycle(const std::vector<int>& cycle, StallVerdict& verdict) const;

  const JobSnapshot& snapshot_;
  const StallLimits& limits_;
};

std::vector<int> Reporter::stopped_ranks_of(const std::vector<int>& ranks) const {
  std::vector<int> stopped_ranks;
  for (const int rank : ranks)
    if (snapshot_.is_alive(rank) && snapshot_.worker(rank).stop_signal != 0)
      stopped_ranks.push_back(rank);
  return stopped_ranks;
}

// Returns the calls that have waited longer than the limit, the longest wait first. Joins come
// last, because a join normally waits until all calls of the other ranks are done.
std::vector<LongWait> Reporter::long_waits() const {
  std::vector<LongWait> waits;
  for (int rank = 0; rank < snapshot_.count(); ++rank) {
    if (!snapshot_.is_alive(rank) ||
        snapshot_.worker(rank).report.member_state != MemberState::kMember)
      continue;
    for (const RecordedCall& call : snapshot_.worker(rank).report.calls)
      if (call.in_flight() && exceeds_limit(call.submitted)) waits.push_back({rank, &call});
  }
  std::ranges::sort(waits, {}, [](const LongWait& wait) {
    return std::tuple(wait.call->operation == Operation::kJoin, wait.call->submitted, wait.rank,
                      wait.call->handle);
  });
  return waits;
}

bool Reporter::is_a_stall(const RecordedCall& call) const {
  // If all ranks have made the call, data moves. A long transfer is not a stall, unless a rank is
  // stopped.
  if (call.state == CallState::kRunning || snapshot_.missing_ranks(call).empty())
    return !stopped_ranks_of(snapshot_.callers(call)).empty();
  if (call.operation != Operation::kJoin) return true;
  // A join normally waits until the other ranks have no more data. It is a stall only if these
  // ranks make no progress either.
  return std::ranges::all_of(snapshot_.missing_ranks(call), [this](int rank) {
    return std::ranges::all_of(
        snapshot_.worker(rank).report.calls,
        [this](const RecordedCall& own_call) { return exceeds_limit(own_call.changed); });
  });
}

// Returns a line that says how long the ranks have been waiting. It omits stopped ranks, because
// they do not wait.
std::string Reporter::waiting_times_text(
    const std::vector<std::pair<int, TimePoint>>& waits) const {
  std::vector<int> ranks;
  Duration shortest_wait = Duration::max();
  Duration longest_wait{};
  for (const auto& [rank, began] : waits) {
    if (snapshot_.worker(rank).stop_signal != 0) continue;
    ranks.push_back(rank);
    shortest_wait = std::min(shortest_wait, waited_time(began));
    longest_wait = std::max(longest_wait, waited_time(began));
  }
  if (ranks.empty()) return "  no other rank is in it";
  std::string time = describe(shortest_wait);
  if (const std::string longest_text = describe(longest_wait); longest_text != time)
    time += " to " + longest_text;
  return format_text("  {} {} been waiting in it for {}", ranks_text(ranks),
                     ranks.size() == 1 ? "has" : "have", time);
}

// Returns a text about the rank's last finished call.
std::string Reporter::last_call_of(int rank) const {
  const FlightReport& report = snapshot_.worker(rank).report;
  const RecordedCall* last_call = nullptr;
  for (const RecordedCall& call : report.calls)
    if (!call.in_flight() && (last_call == nullptr || call.changed >= last_call->changed))
      last_call = &call;
  if (last_call == nullptr)
    return "it has made no call since init(), " + describe(snapshot_.now() - report.since) + " ago";
  return format_text("its last call, {}, {} {} ago", title_of(*last_call),
                     last_call->state == CallState::kDone ? "finished" : "failed",
                     describe(snapshot_.now() - last_call->changed));
}

std::string Reporter::after_calls_text(int rank) const {
  return " after " + count_of_calls(snapshot_.worker(rank).report.counts.calls);
}

// Returns what a rank does instead of making `call`. The other ranks wait in `call`. `call` is null
// for init(). Empty if the rank is running and simply has not reached the call yet. Sets
// `unexplained` if the rank's stack could tell more.
std::string Reporter::activity_of(int rank, const RecordedCall* call, bool& unexplained) const {
  const WatchedWorker& worker = snapshot_.worker(rank);
  const MemberState member_state = worker.report.member_state;
  if (!worker.end.empty()) return "has ended (" + worker.end + ")" + after_calls_text(rank);
  if (worker.stop_signal != 0)
    return format_text("is stopped ({}); `kill -CONT {}` lets it go on",
                       signal_name(worker.stop_signal), worker.pid);
  if (member_state == MemberState::kLeft)
    return "has left the job (" + escape_controls(worker.report.reason) + ")" +
           after_calls_text(rank);
  if (member_state == MemberState::kForming) return "waits in init()";
  if (call != nullptr && snapshot_.has_joined(rank, call->group))
    return "has no more data (join)" + after_calls_text(rank);
  const RecordedCall* const own_call = snapshot_.blocking_call(rank);
  const auto awaited =
      own_call != nullptr ? snapshot_.missing_ranks(*own_call) : std::vector<int>();
  if (!awaited.empty())
    return format_text("waits in {} for {}", describe(*own_call), ranks_text(awaited));
  unexplained = true;
  return member_state == MemberState::kOutside ? "has not called init()" : "";
}

// Adds a line for each of `ranks`. These are the ranks for which the other ranks wait.
void Reporter::add_ranks(const std::vector<int>& ranks, const RecordedCall* call,
                         const std::string& missing_text, StallVerdict& verdict) const {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == kRanksShownMax) {
      verdict.lines.push_back(format_text("  … and {} more ranks", ranks.size() - i));
      return;
    }
    bool unexplained = false;
    std::string text = activity_of(ranks[i], call, unexplained);
    if (text.empty()) text = missing_text + last_call_of(ranks[i]);
    verdict.lines.push_back(format_text("  {} {}", rank_text(ranks[i]), text));
    if (unexplained) verdict.unexplained_ranks.push_back(ranks[i]);
  }
}

void Reporter::add_call(const RecordedCall& call, StallVerdict& verdict) const {
  const auto callers = snapshot_.callers(call);
  std::vector<int> awaited_ranks = snapshot_.missing_ranks(call);
  for (const int rank : stopped_ranks_of(callers)) awaited_ranks.push_back(rank);
  std::ranges::sort(awaited_ranks);
  verdict.lines.push_back("stalled: " + describe(call) + " waits for " + ranks_text(awaited_ranks));
  std::vector<std::pair<int, TimePoint>> waits;
  for (const int rank : callers)
    waits.emplace_back(rank, snapshot_.matching_call(rank, call)->submitted);
  verdict.lines.push_back(waiting_times_text(waits));
  add_ranks(awaited_ranks, &call, "has not called it; ", verdict);
}

// Adds the lines of a cycle. All ranks of the cycle count as unexplained, because their stacks show
// which lines of the program do not match.
void Reporter::add_cycle(const std::vector<int>& cycle, StallVerdict& verdict) const {
  std::vector<int> sorted_ranks = cycle;
  std::ranges::sort(sorted_ranks);
  verdict.lines.push_back("stalled: " + ranks_text(sorted_ranks) + " wait for each other:");
  for (std::size_t i = 0; i < cycle.size() && i < kRanksShownMax; ++i) {
    const RecordedCall& call = *snapshot_.blocking_call(cycle[i]);
    verdict.lines.push_back(format_text("  {} has been waiting for {} in {} for {}",
                                        rank_text(cycle[i]), describe(waited_time(call.submitted)),
                                        describe(call), ranks_text(snapshot_.missing_ranks(call))));
    verdict.unexplained_ranks.push_back(cycle[i]);
  }
  if (cycle.size() > kRanksShownMax)
    verdict.lines.push_back(format_text("  … and {} more ranks", cycle.size() - kRanksShownMax));
  std::vector<std::string_view> calls;
  for (const int rank : cycle) calls.push_back(snapshot_.blocking_call(rank)->name);
  verdict.lines.push_back("  " + cause_of(calls));
}

std::optional<StallVerdict> Reporter::init_verdict() const {
  std::vector<std::pair<int, TimePoint>> waits;
  std::vector<int> awaited_ranks;
  for (int rank = 0; rank < snapshot_.count(); ++rank) {
    const bool is_waiting = snapshot_.is_alive(rank) &&
                            snapshot_.worker(rank).report.member_state == MemberState::kForming;
    if (is_waiting) waits.emplace_back(rank, snapshot_.worker(rank).report.since);
    if (!is_waiting || snapshot_.worker(rank).stop_signal != 0) awaited_ranks.push_back(rank);
  }
  if (waits.empty() || awaited_ranks.empty()) return std::nullopt;
  const auto longest_wait = std::ranges::min_element(
      waits, {}, [](const std::pair<int, TimePoint>& wait) { return wait.second; });
  if (!exceeds_limit(longest_wait->second)) return std::nullopt;
  StallVerdict verdict{.rank = longest_wait->first,
                       .title = "init()",
                       .since = wait_begin(longest_wait->second),
                       .lines = {},
                       .unexplained_ranks = {}};
  verdict.lines.push_back("stalled: init() waits for " + ranks_text(awaited_ranks));
  verdict.lines.push_back(waiting_times_text(waits));
  add_ranks(awaited_ranks, nullptr, "is in the job and has not called init() again; ", verdict);
  return verdict;
}

std::optional<StallVerdict> Reporter::call_verdict() const {
  // Several ranks may have the same call in the same state, and the verdict is then the same for
  // all of them. So each call is examined once per state.
  std::set<std::tuple<GroupId, std::uint64_t, CallState>> examined;
  for (const LongWait& wait : long_waits()) {
    const RecordedCall& call = *wait.call;
    if (!examined.emplace(call.group, call.name_hash, call.state).second || !is_a_stall(call))
      continue;
    StallVerdict verdict{.rank = wait.rank,
                         .handle = call.handle,
                         .state = call.state,
                         .title = title_of(call),
                         .since = wait_begin(call.submitted),
                         .lines = {},
                         .unexplained_ranks = {}};
    const auto cycle = snapshot_.find_cycle(wait.rank);
    if (cycle.empty())
      add_call(call, verdict);
    else
      add_cycle(cycle, verdict);
    return verdict;
  }
  return std::nullopt;
}

}  // namespace

std::optional<StallVerdict> stall_verdict(const JobSnapshot& snapshot, const StallLimits& limits) {
  const Reporter reporter(snapshot, limits);
  if (auto verdict = reporter.init_verdict()) return verdict;
  return reporter.call_verdict();
}

}  // namespace farandole
