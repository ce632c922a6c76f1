#include "diagnosis/job_snapshot.h"

#include <algorithm>
#include <chrono>

namespace farandole {
namespace {

// Python programs interrupt their waits regularly to handle signals. An interruption of at most
// this length still counts as waiting.
constexpr auto kWaitPauseMax = std::chrono::milliseconds(250);

bool is_from_any_rank(const RecordedCall& call) {
  return row_of(call.operation).is_message && call.peer == kAnyRank;
}

}  // namespace

JobSnapshot::JobSnapshot(const std::vector<WatchedWorker>& workers, TimePoint now)
    : workers_(workers), now_(now), calls_(workers.size()) {
  for (std::size_t rank = 0; rank < workers.size(); ++rank) {
    for (const RecordedCall& call : workers[rank].report.calls) {
      if (!call.in_flight()) continue;
      calls_[rank].by_key.emplace(key_of(call), &call);
      if (call.operation == Operation::kJoin) calls_[rank].joined.insert(call.group);
    }
  }
}

const RecordedCall* JobSnapshot::blocking_call(int rank) const {
  const FlightReport& report = worker(rank).report;
  const FlightWait& wait = report.wait;
  if (!is_alive(rank) || report.member_state != MemberState::kMember || wait.handle == 0)
    return nullptr;
  if (wait.until && now_ - *wait.until > kWaitPauseMax) return nullptr;
  const RecordedCall* oldest = nullptr;
  for (const RecordedCall& call : report.calls) {
    if (!call.in_flight()) continue;
    if (call.handle == wait.handle) return &call;
    if (oldest == nullptr) oldest = &call;
  }
  // The record has no call in flight with the handle of the wait, but the program may still wait:
  // in another thread, for another call of a batch, or in a call that is no longer in the record.
  // So this function returns the oldest call in flight.
  return wait.until ? nullptr : oldest;
}

bool JobSnapshot::has_joined(int rank, GroupId group) const {
  return calls(rank).joined.contains(group);
}

const RecordedCall* JobSnapshot::matching_call(int rank, const RecordedCall& call) const {
  const auto found = calls(rank).by_key.find(key_of(call));
  if (found == calls(rank).by_key.end()) return nullptr;
  const RecordedCall* const own_call = found->second;
  // Two sends of the same name, or two receives, are different messages.
  const bool is_other_message = row_of(call.operation).is_message && own_call != &call &&
                                own_call->operation == call.operation;
  return is_other_message ? nullptr : own_call;
}

bool JobSnapshot::is_missing(int rank, const RecordedCall& call) const {
  const auto& groups = worker(rank).report.groups;
  const bool is_member =
      call.group == kWorld || std::ranges::find(groups, call.group) != groups.end();
  if (!is_member || (is_alive(rank) && matching_call(rank, call) != nullptr)) return false;
  // When the sender and the receiver have made their calls, the receiver takes the message, and
  // both calls count as running. So only a call that still waits has a missing rank.
  if (row_of(call.operation).is_message)
    return call.state == CallState::kWaiting && (call.peer == rank || call.peer == kAnyRank);
  // In some operations, a rank that has called join() takes part without data. So such a rank is
  // not missing in these operations.
  return !(row_of(call.operation).allowed_while_joined && is_alive(rank) &&
           has_joined(rank, call.group));
}

std::vector<int> JobSnapshot::callers(const RecordedCall& call) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < count(); ++rank)
    if (is_alive(rank) && matching_call(rank, call) != nullptr) ranks.push_back(rank);
  return ranks;
}

std::vector<int> JobSnapshot::missing_ranks(const RecordedCall& call) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < count(); ++rank)
    if (is_missing(rank, call)) ranks.push_back(rank);
  return ranks;
}

// The ranks that this rank waits for. A join is not counted as a wait: it ends when the other ranks
// have no more data, so it cannot be part of a deadlock. A receive that accepts a message from any
// rank is not counted either, because a send of any one rank can end this receive.
std::vector<int> JobSnapshot::ranks_awaited_by(int rank) const {
  const RecordedCall* const call = blocking_call(rank);
  if (call == nullptr || call->operation == Operation::kJoin || is_from_any_rank(*call)) return {};
  return missing_ranks(*call);
}

// A depth-first search that visits every rank at most once.
std::vector<int> JobSnapshot::find_cycle(int rank) const {
  struct Visit {
    int rank;
    std::vector<int> awaited;
    std::size_t next = 0;
  };
  std::vector<Visit> path;
  std::set<int> visited;
  const auto enter = [&](int visited_rank) {
    visited.insert(visited_rank);
    path.push_back({.rank = visited_rank, .awaited = ranks_awaited_by(visited_rank)});
  };
  enter(rank);
  while (!path.empty()) {
    Visit& current = path.back();
    if (current.next == current.awaited.size()) {
      path.pop_back();
      continue;
    }
    const int next = current.awaited[current.next++];
    const auto found = std::ranges::find(path, next, &Visit::rank);
    if (found != path.end()) {
      std::vector<int> cycle;
      for (auto visit = found; visit != path.end(); ++visit) cycle.push_back(visit->rank);
      std::ranges::rotate(cycle, std::ranges::min_element(cycle));
      return cycle;
    }
    if (!visited.contains(next)) enter(next);
  }
  return {};
}

}  // namespace farandole
