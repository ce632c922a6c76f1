#include "engine/submission_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>

#include "base/check.h"

namespace farandole {
Result<Record*> SubmissionTable::add(const Submission& submission) {
  const GroupId group = submission.group;
  if (joined_.contains(group))
    return Status::fix_call(
        fmt::format("{} was called after join() in group {}: wait until join() has returned, which "
                    "is when all ranks have joined",
                    row_of(submission.operation).name, group));
  auto made = std::make_unique<Record>();
  made->handle = last_handle_ + 1;
  made->submission = submission;
  Record& record = *records_.emplace(made->handle, std::move(made)).first->second;
  last_handle_ = record.handle;
  bool added = false;
  try {
    added = fill(record);
  } catch (const std::bad_alloc&) {
    forget(record);
    throw;
  }
  if (added) return &record;
  const std::string name = std::move(record.submission.name);
  forget(record);
  return Status::fix_call(fmt::format(
      "`{}` is already in flight: wait for its handle first, or give each of the concurrent calls "
      "its own name",
      name));
}

// False when the name is in flight.
bool SubmissionTable::fill(Record& record) {
  Submission& submission = record.submission;
  const GroupId group = submission.group;
  auto& name = submission.name;
  if (name.empty()) {
    record.automatic_index = take_index(submission);
    name = fmt::format("{}.unnamed.{}", row_of(submission.operation).name, *record.automatic_index);
  }
  if (submission.operation == Operation::kJoin) joined_.insert(group);
  return names_in_flight_.emplace(group, name).second;
}

// What fill() may have done, but for the name, which it adds last.
void SubmissionTable::forget(const Record& record) {
  const Submission& submission = record.submission;
  give_index_back(record);
  if (submission.operation == Operation::kJoin) joined_.erase(submission.group);
  records_.erase(record.handle);
}

// The lowest one that is not in use.
int SubmissionTable::take_index(const Submission& submission) {
  auto& [next, in_use, given_back] = automatic_indices_[{submission.group, submission.operation}];
  if (!given_back.empty()) return *in_use.insert(given_back.extract(given_back.begin())).position;
  const int index = *in_use.insert(next).first;
  ++next;
  return index;
}

void SubmissionTable::give_index_back(const Record& record) {
  if (!record.automatic_index) return;
  auto& indices = automatic_indices_[{record.submission.group, record.submission.operation}];
  indices.given_back.insert(indices.in_use.extract(*record.automatic_index));
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
  give_index_back(*record);
  return std::move(record->outcome);
}

void SubmissionTable::drop(Handle handle) {
  const auto found = records_.find(handle);
  if (found == records_.end()) return;
  found->second->dropped = true;
  if (found->second->finished) records_.erase(found);
}

}  // namespace farandole
