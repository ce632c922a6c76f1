#include "coordination/replan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/format.h"

namespace farandole {

Replan::Replan(std::vector<int> ranks, Raise raise)
    : ranks_(std::move(ranks)),
      raise_(std::move(raise)),
      reports_(ranks_.size()),
      missing_(ranks_.size()) {}

// A member is ahead of another by at most one completion, and only if the other has entered the
// step that the first one has completed: a step completes only after all members have entered it.
Status Replan::add(int member, const Report& report) {
  constexpr auto kOneBehind = std::numeric_limits<std::uint32_t>::max();
  for (std::size_t index = 0; index < reports_.size(); ++index) {
    const auto& other = reports_[index];
    if (!other) continue;
    const auto ahead = report.completed - other->completed;
    const bool possible = ahead == 0 || (ahead == 1 && other->entered == 1) ||
                          (ahead == kOneBehind && report.entered == 1);
    if (possible) continue;
    return Status::stop(format_text(
        "it reports {} completed and {} entered, rank {} reported {} and {}", report.completed,
        report.entered, ranks_[index], other->completed, other->entered));
  }
  reports_[static_cast<std::size_t>(member)] = report;
  --missing_;
  return {};
}

// If one member has completed a sequence that another has only entered, then all have entered it.
std::uint32_t Replan::common_prefix() const {
  const auto& first = *reports_.front();
  bool alike = true;
  std::uint32_t completed = first.completed;
  for (const auto& report : reports_) {
    alike &= report->completed == first.completed && report->entered == 1 &&
             report->identity == first.identity;
    if (report->completed == completed + 1) ++completed;
  }
  return alike ? completed + 1 : completed;
}

std::vector<std::uint32_t> Replan::quiescent_points() const {
  std::vector<std::uint32_t> all;
  for (const auto& report : reports_) all.push_back(report->quiescent_points);
  return all;
}

bool Replan::rolls_back() const {
  return std::ranges::any_of(reports_, [common_prefix = common_prefix()](const auto& report) {
    return report->completed + report->entered == common_prefix + 1;
  });
}

}  // namespace farandole
