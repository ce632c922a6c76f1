#include "coordination/replan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/format.h"

namespace farandole {

Replan::Replan(std::vector<int> ranks, Raise raise)
    : ranks_(std::move(ranks)), raise_(std::move(raise)) {}

// A step completes only after all members have entered it. So a member can be at most one completed
// step ahead of another. The other member has then entered that step.
Status Replan::add(const MemberSet& from, const Report& report) {
  constexpr auto kOneBehind = std::numeric_limits<std::uint32_t>::max();
  for (const auto& [members, other] : reports_) {
    const auto ahead = report.completed - other.completed;
    const bool is_possible = ahead == 0 || (ahead == 1 && other.entered == 1) ||
                             (ahead == kOneBehind && report.entered == 1);
    if (is_possible) continue;
    return Status::stop(format_text(
        "it reports {} completed and {} entered decisions, but rank {} reported {} and {}",
        report.completed, report.entered, ranks_[static_cast<std::size_t>(members.first())],
        other.completed, other.entered));
  }
  const auto equal_report =
      std::ranges::find(reports_, report, &std::pair<MemberSet, Report>::second);
  if (equal_report == reports_.end())
    reports_.emplace_back(from, report);
  else
    equal_report->first.insert(from);
  reporters_.insert(from);
  return {};
}

bool Replan::is_complete() const {
  return static_cast<std::size_t>(reporters_.count()) == ranks_.size();
}

// If one member has completed a step, all members have entered it. So the step belongs to the
// prefix even if other members only report that they have entered it.
std::uint32_t Replan::common_prefix() const {
  const auto& first = reports_.front().second;
  bool all_equal = true;
  std::uint32_t completed = first.completed;
  for (const auto& [members, report] : reports_) {
    all_equal &= report.completed == first.completed && report.entered == 1 &&
                 report.identity == first.identity;
    if (report.completed == completed + 1) ++completed;
  }
  return all_equal ? completed + 1 : completed;
}

std::vector<std::uint32_t> Replan::quiescent_points() const {
  std::vector<std::uint32_t> counts(ranks_.size());
  for (const auto& [members, report] : reports_)
    members.for_each(
        [&](int member) { counts[static_cast<std::size_t>(member)] = report.quiescent_points; });
  return counts;
}

bool Replan::rolls_back() const {
  return std::ranges::any_of(reports_, [common_prefix = common_prefix()](const auto& reported) {
    return reported.second.completed + reported.second.entered == common_prefix + 1;
  });
}

std::uint32_t Replan::fragments_run() const {
  const auto member_0_report = std::ranges::find_if(
      reports_, [](const auto& reported) { return reported.first.contains(0); });
  return member_0_report->second.fragments_run;
}

}  // namespace farandole
