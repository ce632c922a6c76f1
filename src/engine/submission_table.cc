#include "engine/submission_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace farandole {
namespace {

int lowest_free(const std::set<int>& taken) {
  int index = 0;
  while (taken.contains(index)) ++index;
  return index;
}

}  // namespace

Result<Record*> SubmissionTable::add(const Submission& submission) {
  const GroupId group = submission.group;
  if (joined_.contains(group))
    return Status::fix_call(
        fmt::format("{} was called after join() in group {}: wait until join() has returned, which "
                    "is when all ranks have joined",
                    row_of(submission.operation).name, group));
  auto record = std::make_unique<Record>();
  record->submission = submission;
  auto& name = record->submission.name;
  if (name.empty()) {
    record->automatic_index = lowest_free(automatic_indices_[{group, submission.operation}]);
    name =
        fmt::format("{}.unnamed.{}", row_of(submission.operation).name, *record->automatic_index);
  }
  if (!names_in_flight_.emplace(group, name).second)
    return Status::fix_call(
        fmt::format("`{}` is already in flight: wait for its handle first, or give each of the "
                    "concurrent calls "
                    "its own name",
                    name));
  if (record->automatic_index)
    automatic_indices_[{group, submission.operation}].insert(*record->automatic_index);
  if (submission.operation == Operation::kJoin) joined_.insert(group);
  record->handle = ++last_handle_;
  Record* const borrowed = record.get();
  records_.emplace(borrowed->handle, std::move(record));
  return borrowed;
}

void SubmissionTable::withdraw(Record& record) {
  finish(record);
  (void)remove(record.handle);
}

Record* SubmissionTable::find(Handle handle) {
  const auto found = records_.find(handle);
  return found == records_.end() ? nullptr : found->second.get();
}

void SubmissionTable::finish(Record& record) {
  names_in_flight_.erase({record.submission.group, record.submission.name});
  if (record.submission.operation == Operation::kJoin) joined_.erase(record.submission.group);
  record.finished = true;
  if (record.dropped) records_.erase(record.handle);
}

std::size_t SubmissionTable::in_flight(GroupId group) const {
  return static_cast<std::size_t>(
      std::ranges::count(names_in_flight_, group, [](const auto& entry) { return entry.first; }));
}

Record* SubmissionTable::oldest() {
  Record* oldest = nullptr;
  for (const auto& [handle, record] : records_) {
    if (record->finished || record->submission.operation == Operation::kJoin) continue;
    if (oldest == nullptr || handle < oldest->handle) oldest = record.get();
  }
  return oldest;
}

Outcome SubmissionTable::remove(Handle handle) {
  const auto found = records_.find(handle);
  CHECK(found != records_.end() && found->second->finished, "only finished records are removed");
  const auto record = std::move(found->second);
  records_.erase(found);
  if (record->automatic_index)
    automatic_indices_[{record->submission.group, record->submission.operation}].erase(
        *record->automatic_index);
  return std::move(record->outcome);
}

void SubmissionTable::drop(Handle handle) {
  const auto found = records_.find(handle);
  if (found == records_.end()) return;
  found->second->dropped = true;
  if (found->second->finished) records_.erase(found);
}

}  // namespace farandole
