#include "script.h"

#include <algorithm>

namespace farandole::sim {

std::optional<int> Script::member_of(int group, int worker) const {
  const auto& all = members(group);
  const auto found = std::lower_bound(all.begin(), all.end(), worker);
  if (found == all.end() || *found != worker) return std::nullopt;
  return static_cast<int>(found - all.begin());
}

std::vector<int> Script::hosts_of(int group) const {
  std::vector<int> found;
  if (hosts.empty()) return found;
  for (const int worker : members(group)) found.push_back(hosts[static_cast<std::size_t>(worker)]);
  return found;
}

Submission Script::submission_of(int number, int worker) const {
  const Call& what = call(number);
  const Signature& signature = what.signature_of(worker);
  Submission submission;
  submission.operation = signature.operation;
  if (!what.unnamed) submission.name = signature.name;
  submission.group = static_cast<GroupId>(what.group);
  submission.dtype = signature.dtype;
  submission.reduce_op = signature.reduce_op;
  submission.prescale = signature.prescale;
  submission.postscale = signature.postscale;
  submission.root_rank = signature.root_rank;
  submission.call_error = signature.call_error;
  if (row_of(signature.operation).shape_rule == ShapeRule::kAllButFirst)
    submission.shape.push_back(what.declared_count(number, worker));
  submission.shape.insert(submission.shape.end(), signature.dimensions.begin(),
                          signature.dimensions.end());
  return submission;
}

}  // namespace farandole::sim
