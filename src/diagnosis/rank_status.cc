#include "diagnosis/rank_status.h"

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/process_end.h"
#include "base/rank_names.h"
#include "base/visible_text.h"
#include "diagnosis/call_text.h"

namespace farandole {
namespace {

// Sets the status of a rank that is in the job and runs.
void set_member_status(const JobSnapshot& snapshot, int rank, RankStatus& status) {
  const FlightReport& report = snapshot.worker(rank).report;
  const RecordedCall* const call = snapshot.blocking_call(rank);
  if (call == nullptr) {
    status.state = RankState::kComputes;
    status.since = report.wait.until.value_or(report.since);
    return;
  }
  status.call = *call;
  status.since = call->submitted;
  if (call->operation == Operation::kJoin) {
    status.state = RankState::kJoined;
    return;
  }
  status.waits_for = snapshot.missing_ranks(*call);
  status.state = status.waits_for.empty() ? RankState::kRuns : RankState::kWaits;
}

void set_status_by_member_state(const JobSnapshot& snapshot, int rank, RankStatus& status) {
  const FlightReport& report = snapshot.worker(rank).report;
  if (report.member_state != MemberState::kOutside) status.since = report.since;
  switch (report.member_state) {
    case MemberState::kOutside:
      status.state = RankState::kOutside;
      return;
    case MemberState::kForming:
      status.state = RankState::kForming;
      return;
    case MemberState::kLeft:
      status.state = RankState::kLeft;
      status.reason = escape_controls(report.reason);
      return;
    case MemberState::kMember:
      return set_member_status(snapshot, rank, status);
  }
}

}  // namespace

RankStatus rank_status(const JobSnapshot& snapshot, int rank) {
  const WatchedWorker& worker = snapshot.worker(rank);
  const FlightReport& report = worker.report;
  RankStatus status;
  status.host = worker.host;
  status.pid = worker.pid;
  status.cores = escape_controls(worker.cores);
  set_status_by_member_state(snapshot, rank, status);
  status.counts = report.counts;
  const bool is_member = worker.end.empty() && report.member_state == MemberState::kMember;
  if (is_member) status.time_in_job = std::max(snapshot.now() - report.since, Duration());
  if (is_member && report.wait.handle != 0 && !report.wait.until)
    status.counts.blocked += std::max(snapshot.now() - report.wait.since, Duration());
  if (worker.end.empty() && worker.stop_signal == 0) return status;
  status.state = worker.end.empty() ? RankState::kStopped : RankState::kEnded;
  status.reason = worker.end.empty() ? signal_name(worker.stop_signal) : worker.end;
  status.since = std::nullopt;
  return status;
}

std::string describe(const RankStatus& status, TimePoint now) {
  const std::string time = status.since ? describe(std::max(now - *status.since, Duration())) : "";
  switch (status.state) {
    case RankState::kOutside:
      return "has not called init()";
    case RankState::kForming:
      return "waits " + time + " in init()";
    case RankState::kComputes:
      return "computes for " + time;
    case RankState::kWaits:
      return "waits " + time + " for " + ranks_text(status.waits_for);
    case RankState::kRuns:
      return format_text("in {} for {}", row_of(status.call->operation).name, time);
    case RankState::kJoined:
      return "has joined " + time + " ago";
    case RankState::kStopped:
      return "is stopped (" + status.reason + ")";
    case RankState::kLeft:
      return "has left " + time + " ago (" + status.reason + ")";
    case RankState::kEnded:
      return status.reason;
  }
  return {};
}

}  // namespace farandole
