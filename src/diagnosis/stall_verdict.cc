#include "diagnosis/stall_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <tuple>
#include <utility>

#include "base/process_end.h"
#include "base/rank_names.h"
#include "base/visible_text.h"
#include "diagnosis/call_text.h"

namespace farandole {
namespace {

constexpr std::size_t kRanksToldMax = 8;  // one line each

// A call of one rank that is in flight.
struct Waiting {
  int rank = 0;
  const FlightCall* call = nullptr;
};

class Teller {
 public:
  Teller(const Scene& scene, const StallLimits& limits) : scene_(scene), limits_(limits) {}

  std::optional<StallVerdict> init_verdict() const;
  std::optional<StallVerdict> call_verdict() const;

 private:
  TimePoint since(TimePoint began) const { return std::max(began, limits_.counts_from); }
  Duration waited(TimePoint began) const { return scene_.now() - since(began); }
  bool too_long(TimePoint began) const { return waited(began) >= limits_.limit; }
  std::string name(int rank) const {
    const WatchedWorker& who = scene_.worker(rank);
    return fmt::format("rank {} ({}, pid {})", rank, make_visible(who.host), who.pid);
  }

  std::vector<int> stopped(const std::vector<int>& ranks) const;
  std::vector<Waiting> long_waits() const;
  bool is_a_stall(const FlightCall& call) const;

  std::string how_long(const std::vector<std::pair<int, TimePoint>>& waits) const;
  std::string what_it_does(int rank, const FlightCall* call, bool& unexplained) const;
  std::string where_it_is(int rank) const;
  std::string after_calls(int rank) const;
  void tell(const std::vector<int>& ranks, const FlightCall* call, const std::string& missing_what,
            StallVerdict& verdict) const;
  void tell_call(const FlightCall& call, StallVerdict& verdict) const;
  void tell_circle(const std::vector<int>& circle, StallVerdict& verdict) const;

  const Scene& scene_;
  const StallLimits& limits_;
};

std::vector<int> Teller::stopped(const std::vector<int>& ranks) const {
  std::vector<int> found;
  for (const int rank : ranks)
    if (scene_.lives(rank) && scene_.worker(rank).stopped_by != 0) found.push_back(rank);
  return found;
}

// The longest first; joins last, since they wait until all others' calls are done.
std::vector<Waiting> Teller::long_waits() const {
  std::vector<Waiting> waits;
  for (int rank = 0; rank < scene_.count(); ++rank) {
    if (!scene_.lives(rank) || scene_.worker(rank).report.life != FlightLife::kMember) continue;
    for (const FlightCall& call : scene_.worker(rank).report.calls)
      if (call.in_flight() && too_long(call.submitted)) waits.push_back({rank, &call});
  }
  std::ranges::sort(waits, {}, [](const Waiting& wait) {
    return std::tuple(wait.call->operation == Operation::kJoin, wait.call->submitted, wait.rank,
                      wait.call->handle);
  });
  return waits;
}

bool Teller::is_a_stall(const FlightCall& call) const {
  // All are there and data moves: that takes as long as it takes, unless one is stopped.
  if (call.state == CallState::kRunning || scene_.missing(call).empty())
    return !stopped(scene_.callers(call)).empty();
  if (call.operation != Operation::kJoin) return true;
  // Who has joined waits for the others' data to end; only when they stand still, too, it is news.
  return std::ranges::all_of(scene_.missing(call), [this](int rank) {
    return std::ranges::all_of(scene_.worker(rank).report.calls,
                               [this](const FlightCall& own) { return too_long(own.changed); });
  });
}

// Who is stopped does not wait.
std::string Teller::how_long(const std::vector<std::pair<int, TimePoint>>& waits) const {
  std::vector<int> ranks;
  Duration least = Duration::max();
  Duration most{};
  for (const auto& [rank, began] : waits) {
    if (scene_.worker(rank).stopped_by != 0) continue;
    ranks.push_back(rank);
    least = std::min(least, waited(began));
    most = std::max(most, waited(began));
  }
  if (ranks.empty()) return "  nobody else is in it";
  std::string time = describe(least);
  if (const std::string longest = describe(most); longest != time) time += " to " + longest;
  return fmt::format("  {} {} been waiting in it for {}", name_ranks(ranks),
                     ranks.size() == 1 ? "has" : "have", time);
}

// What it has done last.
std::string Teller::where_it_is(int rank) const {
  const FlightReport& report = scene_.worker(rank).report;
  const FlightCall* last = nullptr;
  for (const FlightCall& call : report.calls)
    if (!call.in_flight() && (last == nullptr || call.changed >= last->changed)) last = &call;
  if (last == nullptr)
    return "nor any other since init(), " + describe(scene_.now() - report.since) + " ago";
  return fmt::format("its last call, {}, {} {} ago", title_of(*last),
                     last->state == CallState::kDone ? "finished" : "failed",
                     describe(scene_.now() - last->changed));
}

std::string Teller::after_calls(int rank) const {
  return " after " + count_of_calls(scene_.worker(rank).report.counts.calls);
}

// Empty if it runs and only has not come here yet; `unexplained`: its stack would tell more.
// `call`: what the others wait in; null for init().
std::string Teller::what_it_does(int rank, const FlightCall* call, bool& unexplained) const {
  const WatchedWorker& who = scene_.worker(rank);
  const FlightLife life = who.report.life;
  if (!who.end.empty()) return "has ended (" + who.end + ")" + after_calls(rank);
  if (who.stopped_by != 0)
    return fmt::format("is stopped ({}); `kill -CONT {}` lets it go on",
                       signal_name(who.stopped_by), who.pid);
  if (life == FlightLife::kLeft)
    return "has left the job (" + make_visible(who.report.reason) + ")" + after_calls(rank);
  if (life == FlightLife::kForming) return "waits in init()";
  if (call != nullptr && scene_.has_joined(rank, call->group))
    return "has finished its data (join)" + after_calls(rank);
  const FlightCall* const own = scene_.blocking_call(rank);
  const auto awaited = own != nullptr ? scene_.missing(*own) : std::vector<int>();
  if (!awaited.empty())
    return fmt::format("waits in {} for {}", describe(*own), name_ranks(awaited));
  unexplained = true;
  return life == FlightLife::kOutside ? "has not called init()" : "";
}

// A line for each of these ranks, which the others wait for.
void Teller::tell(const std::vector<int>& ranks, const FlightCall* call,
                  const std::string& missing_what, StallVerdict& verdict) const {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i == kRanksToldMax) {
      verdict.lines.push_back(fmt::format("  … and {} more ranks", ranks.size() - i));
      return;
    }
    bool unexplained = false;
    std::string text = what_it_does(ranks[i], call, unexplained);
    if (text.empty()) text = missing_what + where_it_is(ranks[i]);
    verdict.lines.push_back(fmt::format("  {} {}", name(ranks[i]), text));
    if (unexplained) verdict.unexplained.push_back(ranks[i]);
  }
}

void Teller::tell_call(const FlightCall& call, StallVerdict& verdict) const {
  const auto calling = scene_.callers(call);
  std::vector<int> others = scene_.missing(call);
  for (const int rank : stopped(calling)) others.push_back(rank);
  std::ranges::sort(others);
  verdict.lines.push_back("stalled: " + describe(call) + " waits for " + name_ranks(others));
  std::vector<std::pair<int, TimePoint>> waits;
  for (const int rank : calling) waits.emplace_back(rank, scene_.same_call(rank, call)->submitted);
  verdict.lines.push_back(how_long(waits));
  tell(others, &call, "has not called it; ", verdict);
}

// Here the stacks are worth a look, too: they say which lines of the program do not fit together.
void Teller::tell_circle(const std::vector<int>& circle, StallVerdict& verdict) const {
  std::vector<int> sorted = circle;
  std::ranges::sort(sorted);
  verdict.lines.push_back("stalled: " + name_ranks(sorted) + " wait for each other:");
  for (std::size_t i = 0; i < circle.size() && i < kRanksToldMax; ++i) {
    const FlightCall& call = *scene_.blocking_call(circle[i]);
    verdict.lines.push_back(fmt::format("  {} has been waiting for {} in {} for {}",
                                        name(circle[i]), describe(waited(call.submitted)),
                                        describe(call), name_ranks(scene_.missing(call))));
    verdict.unexplained.push_back(circle[i]);
  }
  if (circle.size() > kRanksToldMax)
    verdict.lines.push_back(fmt::format("  … and {} more ranks", circle.size() - kRanksToldMax));
  verdict.lines.push_back(
      "  all ranks of a group must make the same blocking calls, in the same order");
}

std::optional<StallVerdict> Teller::init_verdict() const {
  std::vector<std::pair<int, TimePoint>> waits;
  std::vector<int> others;
  for (int rank = 0; rank < scene_.count(); ++rank) {
    const bool waiting =
        scene_.lives(rank) && scene_.worker(rank).report.life == FlightLife::kForming;
    if (waiting) waits.emplace_back(rank, scene_.worker(rank).report.since);
    if (!waiting || scene_.worker(rank).stopped_by != 0) others.push_back(rank);
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
  tell(others, nullptr, "is in the job and has not called init() again; ", verdict);
  return verdict;
}

std::optional<StallVerdict> Teller::call_verdict() const {
  // The ranks of one call would all give the same answer, unless it runs on some only.
  std::set<std::tuple<GroupId, std::uint64_t, CallState>> looked_at;
  for (const Waiting& wait : long_waits()) {
    const FlightCall& call = *wait.call;
    if (!looked_at.emplace(call.group, call.name_hash, call.state).second || !is_a_stall(call))
      continue;
    StallVerdict verdict{.rank = wait.rank,
                         .handle = call.handle,
                         .state = call.state,
                         .title = title_of(call),
                         .since = since(call.submitted),
                         .lines = {},
                         .unexplained = {}};
    const auto circle = scene_.circle(wait.rank);
    if (circle.empty())
      tell_call(call, verdict);
    else
      tell_circle(circle, verdict);
    return verdict;
  }
  return std::nullopt;
}

}  // namespace

std::optional<StallVerdict> stall_verdict(const Scene& scene, const StallLimits& limits) {
  const Teller teller(scene, limits);
  if (auto verdict = teller.init_verdict()) return verdict;
  return teller.call_verdict();
}

}  // namespace farandole
