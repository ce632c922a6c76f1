#include "submission/submission_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <new>
#include <utility>

#include "base/check.h"
#include "submission/submission_check.h"

namespace farandole {
namespace {

// How many calls are found without a search, and how many are kept for later ones.
constexpr std::size_t kRecent = 4096;
constexpr std::size_t kSparesMax = 4096;
constexpr std::size_t kSpareNameBytesMax = 256;

}  // namespace

SubmissionTable::SubmissionTable() : recent_(kRecent) { spares_.reserve(kSparesMax); }

Result<Record*> SubmissionTable::add(const Submission& submission) {
  Calls& calls = groups_[submission.group];
  if (calls.joined)
    return Status::fix_call(
        fmt::format("{} was called after join() in group {}: wait until join() has returned, which "
                    "is when all ranks have joined",
                    row_of(submission.operation).name, submission.group));
  Record& record = make(submission);
  const auto take_back = [&] {
    give_index_back(record);
    erase(record);
  };
  Status rejection;
  try {
    if (record.submission.name.empty()) choose_name(calls, record);
    record.interned = calls.names.take(record.submission);
    if (record.interned == nullptr)
      rejection = Status::fix_call(
          fmt::format("`{}` is in use by an earlier call whose result was not waited for: keep "
                      "the handle of that call and wait for it first, or give this call another "
                      "name (the name of a call whose handle was dropped stays in use)",
                      record.submission.name));
  } catch (const std::bad_alloc&) {
    take_back();
    throw;
  }
  if (record.interned != nullptr) {
    ++calls.not_taken;
    ++in_flight_;
    with_completion_ += submission.completion.function == nullptr ? 0 : 1;
    calls.joined = submission.operation == Operation::kJoin;
    return &record;
  }
  take_back();
  return rejection;
}

Record& SubmissionTable::make(const Submission& submission) {
  std::unique_ptr<Record> record;
  if (spares_.empty()) {
    record = std::make_unique<Record>();
  } else {
    record = std::move(spares_.back());
    spares_.pop_back();
  }
  record->submission = submission;
  const Handle handle = last_handle_ + 1;
  std::unique_ptr<Record>& place = recent_[handle % kRecent];
  if (place != nullptr) {
    std::unique_ptr<Record>& older = older_[place->handle];
    older = std::move(place);
  }
  record->handle = last_handle_ = handle;
  record->interned = nullptr;
  record->automatic_index.reset();
  record->finished = record->dropped = record->observed = false;
  place = std::move(record);
  return *place;
}

std::int64_t SubmissionTable::Indices::take() {
  if (free_.empty()) {
    if (free_.capacity() <= live_) free_.reserve(2 * live_ + 1);
    ++live_;
    return next_++;
  }
  std::ranges::pop_heap(free_, std::greater());
  const std::int64_t index = free_.back();
  free_.pop_back();
  return index;
}

void SubmissionTable::Indices::give_back(std::int64_t index) noexcept {
  free_.push_back(index);  // there is room
  std::ranges::push_heap(free_, std::greater());
}

void SubmissionTable::choose_name(Calls& calls, Record& record) {
  Submission& submission = record.submission;
  record.automatic_index = calls.automatic_indices[submission.operation].take();
  submission.name = fmt::format("{}{}{}", row_of(submission.operation).name, kAutomaticNames,
                                *record.automatic_index);
}

void SubmissionTable::give_index_back(const Record& record) {
  if (!record.automatic_index) return;
  auto& indices = groups_.at(record.submission.group).automatic_indices;
  indices.at(record.submission.operation).give_back(*record.automatic_index);
}

void SubmissionTable::erase(Record& record) {
  std::unique_ptr<Record>& place = recent_[record.handle % kRecent];
  std::unique_ptr<Record> gone;
  if (place.get() == &record)
    gone = std::move(place);
  else
    gone = std::move(older_.extract(record.handle).mapped());
  if (spares_.size() == kSparesMax || gone->submission.name.size() > kSpareNameBytesMax) return;
  gone->outcome = {};
  spares_.push_back(std::move(gone));
}

void SubmissionTable::roll_back(Record& record) {
  finish(record);
  (void)take(record.handle);
}

Record* SubmissionTable::find(Handle handle) {
  Record* const recent = recent_[handle % kRecent].get();
  if (recent != nullptr && recent->handle == handle) return recent;
  const auto older = older_.find(handle);
  return older == older_.end() ? nullptr : older->second.get();
}

void SubmissionTable::finish(Record& record) {
  --in_flight_;
  with_completion_ -= record.submission.completion.function == nullptr ? 0 : 1;
  record.finished = true;
  if (record.dropped) lose(record);
}

std::size_t SubmissionTable::not_taken(GroupId group) const {
  const auto found = groups_.find(group);
  return found == groups_.end() ? 0 : found->second.not_taken;
}

Record* SubmissionTable::oldest() {
  Record* oldest = nullptr;
  const auto look = [&](Record* record) {
    if (record == nullptr || record->finished) return;
    if (record->submission.operation == Operation::kJoin) return;
    if (oldest == nullptr || record->handle < oldest->handle) oldest = record;
  };
  for (const auto& record : recent_) look(record.get());
  for (const auto& [handle, record] : older_) look(record.get());
  return oldest;
}

Outcome SubmissionTable::take(Handle handle) {
  Record* const record = find(handle);
  CHECK(record != nullptr && record->finished, "only finished records are taken");
  Calls& calls = groups_.at(record->submission.group);
  --calls.not_taken;
  if (record->submission.operation == Operation::kJoin) calls.joined = false;
  InternedSignatures::give_back(*record->interned);
  give_index_back(*record);
  Outcome outcome = std::move(record->outcome);
  erase(*record);
  return outcome;
}

void SubmissionTable::drop(Handle handle) {
  Record* const record = find(handle);
  if (record == nullptr) return;
  record->dropped = true;
  if (record->finished) lose(*record);
}

// Erases a dropped record that has finished. The agreement no longer borrows its signature, so its
// name can be forgotten, too.
void SubmissionTable::lose(Record& record) {
  Calls& calls = groups_.at(record.submission.group);
  if (record.automatic_index) {
    calls.automatic_indices.at(record.submission.operation).lose();
    calls.names.forget(*record.interned);
  } else {
    calls.names.give_up(*record.interned);
  }
  erase(record);
}

void SubmissionTable::forget_group(GroupId group) {
  CHECK(not_taken(group) == 0, "a group in use is not removed");
  groups_.erase(group);
}

}  // namespace farandole
