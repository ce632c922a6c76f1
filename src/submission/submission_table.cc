#include "submission/submission_table.h"

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "submission/submission_check.h"

namespace farandole {
namespace {

// The newest records are in an array of this size, where they are found without a search.
constexpr std::size_t kRecentSlots = 4096;
constexpr std::size_t kSpareRecordsMax = 4096;  // unused records that are kept for later calls
constexpr std::size_t kSpareNameBytesMax = 256;

}  // namespace

SubmissionTable::SubmissionTable() : recent_records_(kRecentSlots) {
  spare_records_.reserve(kSpareRecordsMax);
}

Result<Record*> SubmissionTable::add(const Submission& submission) {
  GroupCalls& calls = groups_[submission.group];
  if (calls.joined && !row_of(submission.operation).is_message)
    return Status::fix_call(
        format_text("{} was called after join() in group {}: wait until join() has returned, which "
                    "is when all ranks have joined",
                    row_of(submission.operation).name, submission.group));
  Record& record = make_record(submission);
  const auto undo = [&] {
    take_back_name(record);
    erase(record);
  };
  Status rejection;
  try {
    if (record.submission.name.empty()) choose_name(calls, record);
    record.interned = acquire_name(calls, record.submission);
    if (record.interned == nullptr)
      rejection = Status::fix_call(
          format_text("`{}` is in use by an earlier call whose result was not waited for: keep "
                      "the handle of that call and wait for it first, or give this call another "
                      "name (the name of a call whose handle was dropped stays in use)",
                      submission.name));
  } catch (const std::bad_alloc&) {
    undo();
    throw;
  }
  if (record.interned != nullptr) {
    ++calls.untaken_results;
    ++in_flight_;
    calls_with_completion_ += submission.completion.function == nullptr ? 0 : 1;
    if (submission.operation == Operation::kJoin) calls.joined = true;
    return &record;
  }
  undo();
  return rejection;
}

// A program may use one name for two operations at a time. The later call then gets a name of its
// own. That name depends only on the order of the program's calls, so it is the same on all ranks.
InternedSignatures::Entry* SubmissionTable::acquire_name(GroupCalls& calls,
                                                         Submission& submission) {
  InternedSignatures& names = calls.names_for(submission.operation);
  InternedSignatures::Entry* const entry = names.acquire(submission);
  if (entry != nullptr || names.operation_using(submission.name) == submission.operation)
    return entry;
  std::string name = format_text("{} ({})", submission.name, row_of(submission.operation).name);
  if (name.size() > kNameBytesMax) return nullptr;
  submission.name = std::move(name);
  return names.acquire(submission);
}

Record& SubmissionTable::make_record(const Submission& submission) {
  std::unique_ptr<Record> record;
  if (spare_records_.empty()) {
    record = std::make_unique<Record>();
  } else {
    record = std::move(spare_records_.back());
    spare_records_.pop_back();
  }
  record->submission = submission;
  const Handle handle = last_handle_ + 1;
  std::unique_ptr<Record>& slot = recent_records_[handle % kRecentSlots];
  if (slot != nullptr) {
    std::unique_ptr<Record>& older = older_records_[slot->handle];
    older = std::move(slot);
  }
  record->handle = last_handle_ = handle;
  record->interned = nullptr;
  record->unnamed_number = 0;
  record->finished = record->dropped = record->observed = false;
  slot = std::move(record);
  return *slot;
}

// The names of unnamed calls repeat, so that the agreement can predict these calls. They repeat
// only after all earlier results were taken. Until then, the names in use may differ between ranks,
// because a program may take results in the order in which they come.
void SubmissionTable::choose_name(GroupCalls& calls, Record& record) {
  Submission& submission = record.submission;
  UnnamedCalls& unnamed = calls.unnamed_calls[submission.operation];
  if (unnamed.untaken_results == 0) unnamed.next_index = 0;
  submission.name = format_text("{}{}{}", row_of(submission.operation).name, kAutomaticNameInfix,
                                unnamed.next_index);
  ++unnamed.next_index;
  ++unnamed.untaken_results;
  if (++unnamed.count == 0) ++unnamed.count;  // the number 0 means that a call has a name
  record.unnamed_number = unnamed.count;
}

// Undoes choose_name(). The record must be the newest one of its group and operation.
void SubmissionTable::take_back_name(Record& record) {
  if (record.unnamed_number == 0) return;
  UnnamedCalls& unnamed = unnamed_calls_of(record);
  --unnamed.next_index;
  --unnamed.untaken_results;
  --unnamed.count;
  record.unnamed_number = 0;
}

SubmissionTable::UnnamedCalls& SubmissionTable::unnamed_calls_of(const Record& record) {
  return groups_.at(record.submission.group).unnamed_calls.at(record.submission.operation);
}

void SubmissionTable::erase(Record& record) {
  std::unique_ptr<Record>& slot = recent_records_[record.handle % kRecentSlots];
  std::unique_ptr<Record> erased;
  if (slot.get() == &record)
    erased = std::move(slot);
  else
    erased = std::move(older_records_.extract(record.handle).mapped());
  if (spare_records_.size() == kSpareRecordsMax ||
      erased->submission.name.size() > kSpareNameBytesMax)
    return;
  erased->outcome = {};
  spare_records_.push_back(std::move(erased));
}

void SubmissionTable::roll_back(Record& record) {
  take_back_name(record);
  finish(record);
  (void)take(record.handle);
}

Record* SubmissionTable::find(Handle handle) {
  Record* const recent = recent_records_[handle % kRecentSlots].get();
  if (recent != nullptr && recent->handle == handle) return recent;
  const auto older = older_records_.find(handle);
  return older == older_records_.end() ? nullptr : older->second.get();
}

void SubmissionTable::finish(Record& record) {
  --in_flight_;
  calls_with_completion_ -= record.submission.completion.function == nullptr ? 0 : 1;
  record.finished = true;
  if (record.dropped) retire(record);
}

std::size_t SubmissionTable::untaken_results(GroupId group) const {
  const auto calls = groups_.find(group);
  return calls == groups_.end() ? 0 : calls->second.untaken_results;
}

Record* SubmissionTable::oldest_call() {
  Record* oldest = nullptr;
  const auto keep_if_older = [&](Record* record) {
    if (record == nullptr || record->finished) return;
    if (record->submission.operation == Operation::kJoin) return;
    if (oldest == nullptr || record->handle < oldest->handle) oldest = record;
  };
  for (const auto& record : recent_records_) keep_if_older(record.get());
  for (const auto& [handle, record] : older_records_) keep_if_older(record.get());
  return oldest;
}

Outcome SubmissionTable::take(Handle handle) {
  Record* const record = find(handle);
  CHECK(record != nullptr && record->finished, "only the result of a finished call is taken");
  GroupCalls& calls = groups_.at(record->submission.group);
  --calls.untaken_results;
  if (record->interned != nullptr) InternedSignatures::release(*record->interned);
  if (record->unnamed_number != 0) --unnamed_calls_of(*record).untaken_results;
  end_join(*record);
  Outcome outcome = std::move(record->outcome);
  erase(*record);
  return outcome;
}

// If the record is that of a join, this rank may make calls again.
void SubmissionTable::end_join(const Record& record) {
  if (record.submission.operation != Operation::kJoin) return;
  groups_.at(record.submission.group).joined = false;
  const bool all_have_joined = record.outcome.last_joined >= 0;
  if (all_have_joined) release_all_names(record.submission.group);
}

// At this point, no collective call of the group is in flight: all earlier calls were decided
// before the join, and this rank has made no call after it. Messages may be in flight, but they no
// longer need their names.
void SubmissionTable::release_all_names(GroupId group) {
  const auto release = [group](Record* record) {
    if (record == nullptr || record->submission.group != group) return;
    CHECK(record->finished || row_of(record->submission.operation).is_message,
          "a join is the last collective call of its group to finish");
    record->interned = nullptr;
    record->unnamed_number = 0;
  };
  for (const auto& record : recent_records_) release(record.get());
  for (const auto& [handle, record] : older_records_) release(record.get());
  GroupCalls& calls = groups_.at(group);
  calls.names.release_all();
  calls.message_names.release_all();
  calls.unnamed_calls.clear();
}

void SubmissionTable::drop(Handle handle) {
  Record* const record = find(handle);
  if (record == nullptr) return;
  record->dropped = true;
  if (record->finished) retire(*record);
}

// Erases a dropped record that has finished, and the entry of its name, because the agreement no
// longer borrows the signature in that entry.
void SubmissionTable::retire(Record& record) {
  GroupCalls& calls = groups_.at(record.submission.group);
  end_join(record);
  InternedSignatures& names = calls.names_for(record.submission.operation);
  if (record.unnamed_number != 0) {
    names.erase(*record.interned);
  } else if (record.interned != nullptr) {
    // Message names may repeat, see names_for().
    if (row_of(record.submission.operation).is_message)
      names.erase(*record.interned);
    else
      names.retire(*record.interned);
  }
  erase(record);
}

void SubmissionTable::forget_group(GroupId group) {
  CHECK(untaken_results(group) == 0, "a group in use is not removed");
  groups_.erase(group);
}

}  // namespace farandole
