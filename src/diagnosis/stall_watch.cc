#include "diagnosis/stall_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/knobs.h"
#include "diagnosis/call_text.h"

namespace farandole {

void StallWatch::set_warn_after(std::int64_t seconds) {
  const std::int64_t seconds_max = knob_named("FARANDOLE_STALL_WARNING").max;
  const Duration new_time = std::chrono::seconds(std::clamp<std::int64_t>(seconds, 0, seconds_max));
  if (new_time == warn_after_) return;
  warn_after_ = new_time;
  last_warning_.reset();
}

StallWatch::StallOutcome StallWatch::outcome_of(const StallVerdict& verdict,
                                                const WatchedWorker& worker) {
  if (!worker.end.empty()) return StallOutcome::kOver;
  const FlightReport& report = worker.report;
  if (verdict.handle == 0) {
    if (report.member_state == MemberState::kForming) return StallOutcome::kStillWaits;
    return report.member_state == MemberState::kMember ? StallOutcome::kWentOn
                                                       : StallOutcome::kOver;
  }
  if (report.member_state != MemberState::kMember) return StallOutcome::kOver;
  const auto call = std::ranges::find(report.calls, verdict.handle, &RecordedCall::handle);
  if (call == report.calls.end())
    return StallOutcome::kWentOn;  // a later call uses the line of this call in the flight record
  if (call->state == CallState::kFailed) return StallOutcome::kOver;
  return call->state == verdict.state ? StallOutcome::kStillWaits : StallOutcome::kWentOn;
}

StallWatch::Report StallWatch::tick(const std::vector<WatchedWorker>& workers, TimePoint now) {
  Report report;
  if (last_warning_) {
    const StallVerdict& last_verdict = last_warning_->verdict;
    const auto rank = static_cast<std::size_t>(last_verdict.rank);
    // The group of an elastic job may have become smaller since the last warning.
    const StallOutcome outcome =
        rank < workers.size() ? outcome_of(last_verdict, workers[rank]) : StallOutcome::kOver;
    if (outcome == StallOutcome::kWentOn)
      report.lines.push_back(last_verdict.title + " went on after " +
                             describe(now - last_verdict.since));
    if (outcome != StallOutcome::kStillWaits) last_warning_.reset();
  }
  auto verdict = stall_verdict(JobSnapshot(workers, now), {warn_after_, counts_from_});
  if (!verdict) return report;
  // If last_warning_ exists here, the rank that it names still waits. So this verdict is about the
  // same stall or a part of it. The verdict may name another waiting rank than before, because the
  // times of other hosts are not exact.
  const int multiple = last_warning_ ? last_warning_->multiple * 2 : 1;
  if (now - verdict->since < warn_after_ * multiple) return report;
  report.lines.insert(report.lines.end(), verdict->lines.begin(), verdict->lines.end());
  report.unexplained_ranks = verdict->unexplained_ranks;
  last_warning_ = LastWarning{*std::move(verdict), multiple};
  return report;
}

}  // namespace farandole
