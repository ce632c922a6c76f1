#include "diagnosis/stall_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/knobs.h"
#include "diagnosis/call_text.h"

namespace farandole {

void StallWatch::set_limit(std::int64_t seconds) {
  const std::int64_t largest = knob_named("FARANDOLE_STALL_WARNING").max;
  const Duration limit = std::chrono::seconds(std::clamp<std::int64_t>(seconds, 0, largest));
  if (limit == limit_) return;
  limit_ = limit;
  reported_.reset();
}

StallWatch::Fate StallWatch::fate_of(const StallVerdict& verdict, const WatchedWorker& worker) {
  if (!worker.end.empty()) return Fate::kGone;
  const FlightReport& report = worker.report;
  if (verdict.handle == 0) {
    if (report.member_state == MemberState::kForming) return Fate::kWaits;
    return report.member_state == MemberState::kMember ? Fate::kWentOn : Fate::kGone;
  }
  if (report.member_state != MemberState::kMember) return Fate::kGone;
  const auto call = std::ranges::find(report.calls, verdict.handle, &FlightCall::handle);
  if (call == report.calls.end()) return Fate::kWentOn;  // a later call has overwritten its line
  if (call->state == CallState::kFailed) return Fate::kGone;
  return call->state == verdict.state ? Fate::kWaits : Fate::kWentOn;
}

StallWatch::Report StallWatch::tick(const std::vector<WatchedWorker>& workers, TimePoint now) {
  Report report;
  if (reported_) {
    const StallVerdict& last = reported_->verdict;
    const Fate fate = fate_of(last, workers.at(static_cast<std::size_t>(last.rank)));
    if (fate == Fate::kWentOn)
      report.lines.push_back(last.title + " went on after " + describe(now - last.since));
    if (fate != Fate::kWaits) reported_.reset();
  }
  auto verdict = stall_verdict(JobSnapshot(workers, now), {limit_, counts_from_});
  if (!verdict) return report;
  const bool known = reported_ && reported_->verdict.rank == verdict->rank &&
                     reported_->verdict.handle == verdict->handle;
  const int times = known ? reported_->times * 2 : 1;
  if (now - verdict->since < limit_ * times) return report;
  report.lines.insert(report.lines.end(), verdict->lines.begin(), verdict->lines.end());
  report.unexplained = verdict->unexplained;
  reported_ = Reported{*std::move(verdict), times};
  return report;
}

}  // namespace farandole
