#include "diagnosis/stall_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "base/process_end.h"
#include "base/visible_text.h"
#include "diagnosis/call_text.h"
#include "diagnosis/rank_names.h"

namespace farandole {
namespace {

constexpr std::size_t kRanksToldMax = 8;  // one line each

// A call of one rank that is in flight.
struct Waiting {
  int rank = 0;
  const FlightCall* call = nullptr;
};

using CallKey = std::pair<GroupId, std::uint64_t>;  // of the same call on all ranks

CallKey key_of(const FlightCall& call) { return {call.group, call.name_hash}; }

// The calls of one rank that are in flight. Every rank's are compared with those of all others.
struct CallsInFlight {
  std::map<CallKey, const FlightCall*> by_key;
  std::set<GroupId> joined;

  void add(const FlightCall& call) {
    by_key.emplace(key_of(call), &call);
    if (call.operation == Operation::kJoin) joined.insert(call.group);
  }
};

class Scene {
 public:
  Scene(const std::vector<WatchedWorker>& workers, const StallLimits& limits, TimePoint now)
      : workers_(workers), limits_(limits), now_(now), calls_(workers.size()) {
    for (std::size_t rank = 0; rank < workers.size(); ++rank)
      for (const FlightCall& call : workers[rank].report.calls)
        if (call.in_flight()) calls_[rank].add(call);
  }

  std::optional<StallVerdict> init_verdict() const;
  std::optional<StallVerdict> call_verdict() const;

 private:
  int count() const { return static_cast<int>(workers_.size()); }
  const WatchedWorker& worker(int rank) const { return workers_[static_cast<std::size_t>(rank)]; }
  bool lives(int rank) const { return worker(rank).end.empty(); }
  TimePoint since(TimePoint began) const { return std::max(began, limits_.counts_from); }
  Duration waited(TimePoint began) const { return now_ - since(began); }
  bool too_long(TimePoint began) const { return waited(began) >= limits_.limit; }
  std::string name(int rank) const {
    return fmt::format("rank {} (pid {})", rank, worker(rank).pid);
  }

  // The call of this rank that belongs to that one, if it is in flight.
  const FlightCall* same_call(int rank, const FlightCall& call) const;
  const FlightCall* oldest_waiting(int rank) const;
  bool has_joined(int rank, GroupId group) const;
  bool is_missing(int rank, const FlightCall& call) const;
  std::vector<int> callers(const FlightCall& call) const;
  std::vector<int> missing(const FlightCall& call) const;
  std::vector<int> stopped(const std::vector<int>& ranks) const;
  std::vector<Waiting> long_waits() const;
  bool is_a_stall(const FlightCall& call) const;
  std::vector<int> circle(int rank) const;

  std::string how_long(const std::vector<std::pair<int, TimePoint>>& waits) const;
  std::string what_it_does(int rank, bool& unexplained) const;
  std::string where_it_is(int rank) const;
  void tell(const std::vector<int>& ranks, const std::string& missing_what,
            StallVerdict& verdict) const;
  void tell_circle(const std::vector<int>& circle, StallVerdict& verdict) const;

  const std::vector<WatchedWorker>& workers_;
  const StallLimits& limits_;
  TimePoint now_;
  std::vector<CallsInFlight> calls_;  // by rank
};

const FlightCall* Scene::same_call(int rank, const FlightCall& call) const {
  const auto& calls = calls_[static_cast<std::size_t>(rank)].by_key;
  const auto found = calls.find(key_of(call));
  return found != calls.end() ? found->second : nullptr;
}

const FlightCall* Scene::oldest_waiting(int rank) const {
  for (const FlightCall& call : worker(rank).report.calls)
    if (call.state == CallState::kWaiting) return &call;
  return nullptr;
}

bool Scene::has_joined(int rank, GroupId group) const {
  return calls_[static_cast<std::size_t>(rank)].joined.contains(group);
}

bool Scene::is_missing(int rank, const FlightCall& call) const {
  const auto& groups = worker(rank).report.groups;
  const bool member = call.group == kWorld || std::ranges::find(groups, call.group) != groups.end();
  if (!member || (lives(rank) && same_call(rank, call) != nullptr)) return false;
  // Without data a joined rank takes part in these.
  return !(row_of(call.operation).runs_joined && lives(rank) && has_joined(rank, call.group));
}

std::vector<int> Scene::callers(const FlightCall& call) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < count(); ++rank)
    if (lives(rank) && same_call(rank, call) != nullptr) ranks.push_back(rank);
  return ranks;
}

std::vector<int> Scene::missing(const FlightCall& call) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < count(); ++rank)
    if (is_missing(rank, call)) ranks.push_back(rank);
  return ranks;
}

std::vector<int> Scene::stopped(const std::vector<int>& ranks) const {
  std::vector<int> found;
  for (const int rank : ranks)
    if (lives(rank) && worker(rank).stopped_by != 0) found.push_back(rank);
  return found;
}

// The longest first; joins last, since they wait until all others' calls are done.
std::vector<Waiting> Scene::long_waits() const {
  std::vector<Waiting> waits;
  for (int rank = 0; rank < count(); ++rank) {
    if (!lives(rank) || worker(rank).report.life != FlightLife::kMember) continue;
    for (const FlightCall& call : worker(rank).report.calls)
      if (call.in_flight() && too_long(call.submitted)) waits.push_back({rank, &call});
  }
  std::ranges::sort(waits, {}, [](const Waiting& wait) {
    return std::tuple(wait.call->operation == Operation::kJoin, wait.call->submitted, wait.rank,
                      wait.call->handle);
  });
  return waits;
}

bool Scene::is_a_stall(const FlightCall& call) const {
  // All are there and data moves: that takes as long as it takes, unless one is stopped.
  if (call.state == CallState::kRunning || missing(call).empty())
    return !stopped(callers(call)).empty();
  if (call.operation != Operation::kJoin) return true;
  // Who has joined waits for the others' data to end; only when they stand still, too, it is news.
  return std::ranges::all_of(missing(call), [this](int rank) {
    return std::ranges::all_of(worker(rank).report.calls,
                               [this](const FlightCall& own) { return too_long(own.changed); });
  });
}

// The ranks that wait for each other, beginning with this one; empty if there is no such circle.
std::vector<int> Scene::circle(int rank) const {
  std::vector<int> way{rank};
  for (;;) {
    const int last = way.back();
    const FlightCall* call = lives(last) ? oldest_waiting(last) : nullptr;
    if (call == nullptr || call->operation == Operation::kJoin) return {};
    const auto awaited = missing(*call);
    if (awaited.empty()) return {};
    if (std::ranges::find(awaited, rank) != awaited.end()) return way;
    const int next = awaited.front();
    if (std::ranges::find(way, next) != way.end()) return {};
    way.push_back(next);
  }
}

std::string Scene::how_long(const std::vector<std::pair<int, TimePoint>>& waits) const {
  std::vector<int> ranks;
  Duration least = Duration::max();
  Duration most{};
  for (const auto& [rank, began] : waits) {
    ranks.push_back(rank);
    least = std::min(least, waited(began));
    most = std::max(most, waited(began));
  }
  std::string time = describe(least);
  if (const std::string longest = describe(most); longest != time) time += " to " + longest;
  return fmt::format("  {} {} for {}", name_ranks(ranks), ranks.size() == 1 ? "waits" : "wait",
                     time);
}

// What it has done last.
std::string Scene::where_it_is(int rank) const {
  const FlightReport& report = worker(rank).report;
  const FlightCall* last = nullptr;
  for (const FlightCall& call : report.calls)
    if (!call.in_flight() && (last == nullptr || call.changed >= last->changed)) last = &call;
  if (last == nullptr)
    return "nor any other since init(), " + describe(now_ - report.since) + " ago";
  return fmt::format("its last call, {}, {} {} ago", title_of(*last),
                     last->state == CallState::kDone ? "finished" : "failed",
                     describe(now_ - last->changed));
}

// Empty if it runs and only has not come here yet; `unexplained`: its stack would tell more.
std::string Scene::what_it_does(int rank, bool& unexplained) const {
  const WatchedWorker& who = worker(rank);
  if (!who.end.empty()) return "has ended (" + who.end + ")";
  if (who.stopped_by != 0)
    return fmt::format("is stopped ({}); `kill -CONT {}` lets it go on",
                       signal_name(who.stopped_by), who.pid);
  if (who.report.life == FlightLife::kLeft)
    return "has left the job (" + make_visible(who.report.reason) + ")";
  if (who.report.life == FlightLife::kForming) return "waits in init()";
  unexplained = true;
  if (who.report.life == FlightLife::kOutside) return "has not called init()";
  const FlightCall* call = oldest_waiting(rank);
  if (call == nullptr) return {};
  const auto awaited = missing(*call);
  if (awaited.empty()) return {};
  unexplained = false;
  if (call->operation == Operation::kJoin) return "has joined";
  return fmt::format("waits in {} for {}", title_of(*call), name_ranks(awaited));
}

// A line for each of these ranks, which the others wait for.
void Scene::tell(const std::vector<int>& ranks, const std::string& missing_what,
                 StallVerdict& verdict) const {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == kRanksToldMax) {
      verdict.lines.push_back(fmt::format("  … and {} more ranks", ranks.size() - i));
      return;
    }
    bool unexplained = false;
    std::string text = what_it_does(ranks[i], unexplained);
    if (text.empty()) text = missing_what + where_it_is(ranks[i]);
    verdict.lines.push_back(fmt::format("  {} {}", name(ranks[i]), text));
    if (unexplained) verdict.unexplained.push_back(ranks[i]);
  }
}

void Scene::tell_circle(const std::vector<int>& circle, StallVerdict& verdict) const {
  std::vector<int> sorted = circle;
  std::ranges::sort(sorted);
  verdict.lines.push_back("  " + name_ranks(sorted) + " wait for each other:");
  for (const int rank : circle) {
    const FlightCall& call = *oldest_waiting(rank);
    verdict.lines.push_back(fmt::format("  {} waits in {} for {}", name(rank), title_of(call),
                                        name_ranks(missing(call))));
  }
}

std::optional<StallVerdict> Scene::init_verdict() const {
  std::vector<std::pair<int, TimePoint>> waits;
  std::vector<int> others;
  for (int rank = 0; rank < count(); ++rank) {
    const bool waiting = lives(rank) && worker(rank).report.life == FlightLife::kForming;
    if (waiting) waits.emplace_back(rank, worker(rank).report.since);
    if (!waiting || worker(rank).stopped_by != 0) others.push_back(rank);
  }
  if (waits.empty() || others.empty()) return std::nullopt;
  const auto first = std::ranges::min_element(
      waits, {}, [](const std::pair<int, TimePoint>& wait) { return wait.second; });
  if (!too_long(first->second)) return std::nullopt;
  StallVerdict verdict{.rank = first->first,
                       .title = "init()",
                       .since = since(first->second),
                       .lines = {},
                       .unexplained = {}};
  verdict.lines.push_back("stalled: init() waits for " + name_ranks(others));
  verdict.lines.push_back(how_long(waits));
  tell(others, "is in the job and has not called init() again; ", verdict);
  return verdict;
}

std::optional<StallVerdict> Scene::call_verdict() const {
  // The ranks of one call would all give the same answer, unless it runs on some only.
  std::set<std::pair<CallKey, CallState>> looked_at;
  for (const Waiting& wait : long_waits()) {
    const FlightCall& call = *wait.call;
    if (!looked_at.emplace(key_of(call), call.state).second || !is_a_stall(call)) continue;
    StallVerdict verdict{.rank = wait.rank,
                         .handle = call.handle,
                         .state = call.state,
                         .title = title_of(call),
                         .since = since(call.submitted),
                         .lines = {},
                         .unexplained = {}};
    const auto calling = callers(call);
    std::vector<int> others = missing(call);
    for (const int rank : stopped(calling)) others.push_back(rank);
    std::ranges::sort(others);
    verdict.lines.push_back("stalled: " + describe(call) + " waits for " + name_ranks(others));
    std::vector<std::pair<int, TimePoint>> waits;
    for (const int rank : calling) waits.emplace_back(rank, same_call(rank, call)->submitted);
    verdict.lines.push_back(how_long(waits));
    const auto round = circle(wait.rank);
    if (round.empty())
      tell(others, "has not called it; ", verdict);
    else
      tell_circle(round, verdict);
    return verdict;
  }
  return std::nullopt;
}

}  // namespace

std::optional<StallVerdict> stall_verdict(const std::vector<WatchedWorker>& workers,
                                          const StallLimits& limits, TimePoint now) {
  const Scene scene(workers, limits, now);
  if (auto verdict = scene.init_verdict()) return verdict;
  return scene.call_verdict();
}

}  // namespace farandole
