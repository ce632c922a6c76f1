#include "engine/submission_table.h"

#include <fmt/format.h>

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
  auto record = std::make_unique<Record>();
  record->submission = submission;
  auto& name = record->submission.name;
  if (name.empty()) {
    auto& taken = automatic_indices_[{submission.group, submission.operation}];
    record->automatic_index = lowest_free(taken);
    name =
        fmt::format("{}.unnamed.{}", row_of(submission.operation).name, *record->automatic_index);
  }
  if (!names_in_flight_.emplace(submission.group, name).second)
    return Status::fix_call(fmt::format(
        "`{}` is already in flight on this rank: wait for its handle first, or give each of the "
        "concurrent calls its own name",
        name));
  if (record->automatic_index)
    automatic_indices_[{submission.group, submission.operation}].insert(*record->automatic_index);
  record->handle = ++last_handle_;
  Record* const borrowed = record.get();
  records_.emplace(borrowed->handle, std::move(record));
  return borrowed;
}

Record* SubmissionTable::find(Handle handle) {
  const auto found = records_.find(handle);
  return found == records_.end() ? nullptr : found->second.get();
}

void SubmissionTable::finish(Record& record) {
  names_in_flight_.erase({record.submission.group, record.submission.name});
  record.finished = true;
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

}  // namespace farandole
