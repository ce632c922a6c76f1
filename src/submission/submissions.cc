#include "submission/submissions.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/format.h"
#include "base/try.h"

namespace farandole {
namespace {

// The error of peek() and take() if the handle is unknown or the call is not finished; otherwise
// ok.
Status outcome_error(Handle handle, const Record* record) {
  if (record == nullptr)
    return Status::fix_call(
        format_text("the handle {} is unknown: its result was taken already, or this engine did "
                    "not return it; take each result once",
                    handle));
  if (record->finished) return {};
  return Status::retry(format_text("`{}` is not done yet", record->submission.name));
}

}  // namespace

Status Submissions::close_group(GroupId group) {
  if (const auto calls = table_.untaken_results(group); calls > 0)
    return Status::fix_call(format_text(
        "group {} has calls that were not waited for ({}): keep the handle of each call "
        "and wait for it before the group is removed (a group cannot be removed after "
        "the handle of one of its calls was dropped)",
        group, calls));
  set_open(group, false);
  return {};
}

void Submissions::forget_group(GroupId group) {
  group_is_open_.erase(group);
  ended_groups_.erase(group);
  contexts_.remove_group(group);
  table_.forget_group(group);
}

void Submissions::set_open(GroupId group, bool is_open) {
  const auto group_entry = group_is_open_.find(group);
  if (group_entry != group_is_open_.end())
    group_entry->second = is_open;  // a group without this rank has no entry
}

Status Submissions::add(std::span<const Submission> batch, std::span<Handle> handles,
                        TimePoint now) {
  // If the capacity is too small, it doubles, because many small batches may come before the loop
  // takes the records.
  if (const std::size_t capacity_needed = arrived_records_.size() + batch.size();
      capacity_needed > arrived_records_.capacity())
    arrived_records_.reserve(std::max(capacity_needed, 2 * arrived_records_.capacity()));
  for (const Submission& submission : batch) contexts_.add_group(submission.group);
  FARANDOLE_TRY(add_all(batch, handles));
  const std::uint32_t batch_number = batch.size() > 1 ? contexts_.next_batch() : 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Record* const record = table_.find(handles[i]);
    record->submitted_at = now;
    // Ranks send and receive different messages, so messages must not influence predictions.
    const bool is_message = row_of(record->submission.operation).is_message;
    if (!is_message)
      record->context = contexts_.count_submitted(record->submission.group, batch_number);
    record->context.unnamed_number = record->unnamed_number;
    record->observed = is_message;
    arrived_records_.push_back(record);
  }
  return {};
}

Status Submissions::add_all(std::span<const Submission> batch, std::span<Handle> handles) {
  std::size_t added_count = 0;
  const auto undo = [&] {
    while (added_count > 0) table_.roll_back(*table_.find(handles[--added_count]));
  };
  try {
    for (; added_count < batch.size(); ++added_count) {
      const Status rejection = rejection_of(batch[added_count]);
      const auto record =
          rejection.ok() ? table_.add(batch[added_count]) : Result<Record*>(rejection);
      if (record.ok()) {
        handles[added_count] = (*record)->handle;
        continue;
      }
      undo();
      return record.status();
    }
  } catch (const std::bad_alloc&) {
    undo();
    throw;
  }
  return {};
}

// The error of a submission that its group does not accept; ok if the group accepts it.
Status Submissions::rejection_of(const Submission& submission) const {
  const GroupId group = submission.group;
  const auto ended_group = ended_groups_.find(group);
  if (ended_group != ended_groups_.end() && !row_of(submission.operation).is_message)
    return ended_group->second;
  if (const auto group_entry = group_is_open_.find(group);
      group_entry != group_is_open_.end() && group_entry->second)
    return {};
  return Status::fix_call(
      format_text("group {} is being removed; no more calls can be made in it", group));
}

bool Submissions::poll(Handle handle) {
  Record* const record = table_.find(handle);
  observe(record);
  return record == nullptr || record->finished;
}

void Submissions::observe(Record* record) {
  if (record == nullptr || !record->finished || std::exchange(record->observed, true)) return;
  contexts_.count_observed(record->submission.group);
}

Outcome Submissions::peek(Handle handle) {
  Record* const record = table_.find(handle);
  if (Status error = outcome_error(handle, record); !error.ok())
    return {.status = std::move(error)};
  observe(record);
  return record->outcome;
}

Outcome Submissions::take(Handle handle) {
  Record* const record = table_.find(handle);
  if (Status error = outcome_error(handle, record); !error.ok())
    return {.status = std::move(error)};
  observe(record);
  return table_.take(handle);
}

void Submissions::drop(Handle handle) {
  Record* const record = table_.find(handle);
  if (record != nullptr && !std::exchange(record->observed, true))
    contexts_.count_dropped(record->submission.group);
  table_.drop(handle);
}

std::size_t Submissions::count_unfinished(const HandleRange& range) {
  std::size_t unfinished = 0;
  for (Handle handle = range.first; range.contains(handle); ++handle) {
    const Record* const record = table_.find(handle);
    unfinished += record == nullptr || record->finished ? 0 : 1;
  }
  return unfinished;
}

}  // namespace farandole
