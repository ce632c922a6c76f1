#include "submission/submission_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"

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
  Status refusal;
  try {
    if (record.submission.name.empty()) choose_name(calls, record);
    record.known = calls.names.take(record.submission);
    if (record.known == nullptr)
      refusal = Status::fix_call(
          fmt::format("`{}` is already in flight: wait for its handle first, or give each of the "
                      "concurrent calls its own name",
                      record.submission.name));
  } catch (const std::bad_alloc&) {
    take_back();
    throw;
  }
  if (record.known != nullptr) {
    ++calls.in_flight;
    ++in_flight_;
    calls.joined = submission.operation == Operation::kJoin;
    return &record;
  }
  take_back();
  return refusal;
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
  record->automatic_index.reset();
  record->finished = record->dropped = record->seen = false;
  place = std::move(record);
  return *place;
}

// The lowest index that is not in use.
void SubmissionTable::choose_name(Calls& calls, Record& record) {
  Submission& submission = record.submission;
  auto& [next, in_use, given_back] = calls.automatic_indices[submission.operation];
  if (given_back.empty()) {
    record.automatic_index = *in_use.insert(next).first;
    ++next;
  } else {
    record.automatic_index = *in_use.insert(given_back.extract(given_back.begin())).position;
  }
  submission.name =
      fmt::format("{}.noname.{}", row_of(submission.operation).name, *record.automatic_index);
}

void SubmissionTable::give_index_back(const Record& record) {
  const auto calls = groups_.find(record.submission.group);
  if (!record.automatic_index || calls == groups_.end()) return;
  auto& indices = calls->second.automatic_indices[record.submission.operation];
  indices.given_back.insert(indices.in_use.extract(*record.automatic_index));
}

void SubmissionTable::erase(Record& record) {
  free_name(record);
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

void SubmissionTable::withdraw(Record& record) {
  finish(record);
  (void)remove(record.handle);
}

Record* SubmissionTable::find(Handle handle) {
  Record* const recent = recent_[handle % kRecent].get();
  if (recent != nullptr && recent->handle == handle) return recent;
  const auto older = older_.find(handle);
  return older == older_.end() ? nullptr : older->second.get();
}

void SubmissionTable::finish(Record& record) {
  Calls& calls = groups_.at(record.submission.group);
  --calls.in_flight;
  --in_flight_;
  if (record.submission.operation == Operation::kJoin) calls.joined = false;
  record.finished = true;
  if (record.dropped) erase(record);
}

void SubmissionTable::free_name(Record& record) {
  if (record.known != nullptr) KnownSignatures::give_back(*record.known);
  record.known = nullptr;
}

std::size_t SubmissionTable::in_flight(GroupId group) const {
  const auto found = groups_.find(group);
  return found == groups_.end() ? 0 : found->second.in_flight;
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

Outcome SubmissionTable::remove(Handle handle) {
  Record* const record = find(handle);
  CHECK(record != nullptr && record->finished, "only finished records are removed");
  give_index_back(*record);
  Outcome outcome = std::move(record->outcome);
  erase(*record);
  return outcome;
}

void SubmissionTable::drop(Handle handle) {
  Record* const record = find(handle);
  if (record == nullptr) return;
  record->dropped = true;
  if (record->finished) erase(*record);
}

void SubmissionTable::forget_names(GroupId group) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return;
  CHECK(found->second.in_flight == 0, "a group in use is not removed");
  found->second.names.forget_unused();
  if (found->second.names.size() == 0) groups_.erase(found);
}

}  // namespace farandole
