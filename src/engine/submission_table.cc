#include "engine/submission_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <new>
#include <string>
#include <string_view>

#include "base/check.h"

namespace farandole {
namespace {

constexpr std::size_t kSparesMax = 4096;
constexpr std::size_t kSpareNameBytesMax = 256;

}  // namespace

SubmissionTable::SubmissionTable() { spares_.reserve(kSparesMax); }

std::size_t SubmissionTable::Hash::operator()(const Record* record) const {
  const Submission& submission = record->submission;
  return std::hash<std::string_view>()(submission.name) ^ submission.group;
}

bool SubmissionTable::SameName::operator()(const Record* one, const Record* other) const {
  return one->submission.group == other->submission.group &&
         one->submission.name == other->submission.name;
}

Result<Record*> SubmissionTable::add(const Submission& submission) {
  const GroupId group = submission.group;
  if (joined_.contains(group))
    return Status::fix_call(
        fmt::format("{} was called after join() in group {}: wait until join() has returned, which "
                    "is when all ranks have joined",
                    row_of(submission.operation).name, group));
  Record& record = make(submission);
  bool added = false;
  try {
    added = fill(record);
  } catch (const std::bad_alloc&) {
    forget(record);
    throw;
  }
  if (added) return &record;
  const std::string name = record.submission.name;
  forget(record);
  return Status::fix_call(fmt::format(
      "`{}` is already in flight: wait for its handle first, or give each of the concurrent calls "
      "its own name",
      name));
}

Record& SubmissionTable::make(const Submission& submission) {
  const Handle handle = last_handle_ + 1;
  auto place = records_.end();
  if (spares_.empty()) {
    place = records_.try_emplace(handle).first;
  } else {
    spares_.back().key() = handle;
    place = records_.insert(std::move(spares_.back())).position;
    spares_.pop_back();
  }
  try {
    place->second.submission = submission;
  } catch (const std::bad_alloc&) {
    records_.erase(place);
    throw;
  }
  last_handle_ = place->second.handle = handle;
  return place->second;
}

void SubmissionTable::erase(Records::iterator found) {
  auto node = records_.extract(found);
  if (spares_.size() == kSparesMax || node.mapped().submission.name.size() > kSpareNameBytesMax)
    return;
  Submission submission = std::move(node.mapped().submission);
  node.mapped() = {};
  node.mapped().submission = std::move(submission);
  spares_.push_back(std::move(node));
}

// False when the name is in flight.
bool SubmissionTable::fill(Record& record) {
  Submission& submission = record.submission;
  if (submission.name.empty()) {
    record.automatic_index = take_index(submission);
    submission.name =
        fmt::format("{}.unnamed.{}", row_of(submission.operation).name, *record.automatic_index);
  }
  if (submission.operation == Operation::kJoin) joined_.insert(submission.group);
  return in_flight_.insert(&record).second;
}

// What fill() may have done, but for the name, which it adds last.
void SubmissionTable::forget(const Record& record) {
  const Submission& submission = record.submission;
  give_index_back(record);
  if (submission.operation == Operation::kJoin) joined_.erase(submission.group);
  erase(records_.find(record.handle));
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
  return found == records_.end() ? nullptr : &found->second;
}

void SubmissionTable::finish(Record& record) {
  in_flight_.erase(&record);
  if (record.submission.operation == Operation::kJoin) joined_.erase(record.submission.group);
  record.finished = true;
  if (record.dropped) erase(records_.find(record.handle));
}

std::size_t SubmissionTable::in_flight(GroupId group) const {
  return static_cast<std::size_t>(std::ranges::count(
      in_flight_, group, [](const Record* record) { return record->submission.group; }));
}

Record* SubmissionTable::oldest() {
  Record* oldest = nullptr;
  for (auto& [handle, record] : records_) {
    if (record.finished || record.submission.operation == Operation::kJoin) continue;
    if (oldest == nullptr || handle < oldest->handle) oldest = &record;
  }
  return oldest;
}

Outcome SubmissionTable::remove(Handle handle) {
  const auto found = records_.find(handle);
  CHECK(found != records_.end() && found->second.finished, "only finished records are removed");
  give_index_back(found->second);
  Outcome outcome = std::move(found->second.outcome);
  erase(found);
  return outcome;
}

void SubmissionTable::drop(Handle handle) {
  const auto found = records_.find(handle);
  if (found == records_.end()) return;
  found->second.dropped = true;
  if (found->second.finished) erase(found);
}

}  // namespace farandole
