#include "engine/submission_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>

#include "base/check.h"
#include "engine/submission_check.h"

namespace farandole {
namespace {

constexpr std::size_t kPlacesMin = 64;

}  // namespace

KnownName::KnownName(Signature signature) : name(signature.name), known(std::move(signature)) {}

Result<Record*> SubmissionTable::add(const Submission& submission) {
  const GroupId group = submission.group;
  if (!joined_.empty() && joined_.contains(group))
    return Status::fix_call(
        fmt::format("{} was called after join() in group {}: wait until join() has returned, which "
                    "is when all ranks have joined",
                    row_of(submission.operation).name, group));
  const Handle handle = last_handle_ + 1;
  make_room(handle);
  RecordPointer record = blank_record();
  record->handle = handle;
  record->submission = submission;
  if (submission.name.empty()) record->automatic_index = take_index(submission);
  try {
    const Status status = fill(*record);
    if (!status.ok()) {
      give_index_back(*record);
      return status;
    }
  } catch (const std::bad_alloc&) {
    give_index_back(*record);
    throw;
  }
  record->name->in_flight = true;
  ++in_flight_;
  ++kept_;
  last_handle_ = handle;
  RecordPointer& place = place_of(handle);
  place = std::move(record);
  return place.get();
}

// Name and signature, and that we have joined: the last that can fail.
Status SubmissionTable::fill(Record& record) {
  Submission& submission = record.submission;
  if (record.automatic_index)
    fmt::format_to(std::back_inserter(submission.name), "{}.unnamed.{}",
                   row_of(submission.operation).name, *record.automatic_index);
  KnownName& name = known_name(record);
  if (name.in_flight)
    return Status::fix_call(fmt::format(
        "`{}` is already in flight: wait for its handle first, or give each of the concurrent "
        "calls its own name",
        submission.name));
  if (!(name.known.signature == asked_)) name.known = KnownSignature(asked_);
  if (submission.operation == Operation::kJoin) joined_.insert(submission.group);
  record.name = &name;
  return {};
}

KnownName& SubmissionTable::known_name(const Record& record) {
  const Submission& submission = record.submission;
  write_signature(submission, asked_);
  const auto found = names_.find({submission.group, submission.name});
  if (found != names_.end()) return *found->second;
  if (names_.size() >= kIdleNamesMax + 2 * in_flight_) forget_idle_names();
  auto made = std::make_unique<KnownName>(asked_);
  const NameKey key{submission.group, made->name};
  return *names_.emplace(key, std::move(made)).first->second;
}

// A program that has so many names does not repeat them, or is served well enough.
void SubmissionTable::forget_idle_names() {
  std::erase_if(names_, [](const auto& entry) { return !entry.second->in_flight; });
}

// A place for the handle, without anybody in it.
void SubmissionTable::make_room(Handle handle) {
  if (recent_.empty()) recent_.resize(kPlacesMin);
  if (place_of(handle) && kept_ >= recent_.size() / 2) double_places();
  RecordPointer& place = place_of(handle);
  if (!place) return;
  RecordPointer& moved = old_[place->handle];
  moved = std::move(place);
}

void SubmissionTable::double_places() {
  std::vector<RecordPointer> before(recent_.size() * 2);
  before.swap(recent_);
  for (RecordPointer& record : before) {
    if (!record) continue;
    RecordPointer& place = place_of(record->handle);
    place = std::move(record);
  }
}

SubmissionTable::RecordPointer SubmissionTable::blank_record() {
  if (blank_.empty()) {
    if (blank_.capacity() <= kept_ && blank_.capacity() < kIdleRecordsMax)
      blank_.reserve(std::min(kIdleRecordsMax, 2 * kept_ + kPlacesMin));
    return std::make_unique<Record>();
  }
  RecordPointer record = std::move(blank_.back());
  blank_.pop_back();
  return record;
}

// The lowest one that is not in use.
int SubmissionTable::take_index(const Submission& submission) {
  auto& [next, given_back] = automatic_indices_[{submission.group, submission.operation}];
  if (given_back.empty()) {
    const auto used = static_cast<std::size_t>(next) + 1;
    if (given_back.capacity() < used) given_back.reserve(2 * used);
    return next++;
  }
  std::ranges::pop_heap(given_back, std::greater());
  const int index = given_back.back();
  given_back.pop_back();
  return index;
}

void SubmissionTable::give_index_back(const Record& record) {
  if (!record.automatic_index) return;
  const Submission& submission = record.submission;
  auto& given_back = automatic_indices_.at({submission.group, submission.operation}).given_back;
  given_back.push_back(*record.automatic_index);
  std::ranges::push_heap(given_back, std::greater());
}

void SubmissionTable::withdraw(Record& record) {
  finish(record);
  (void)remove(record.handle);
}

Record* SubmissionTable::find(Handle handle) {
  if (recent_.empty()) return nullptr;
  Record* const record = place_of(handle).get();
  if (record != nullptr && record->handle == handle) return record;
  if (old_.empty()) return nullptr;
  const auto found = old_.find(handle);
  return found == old_.end() ? nullptr : found->second.get();
}

void SubmissionTable::finish(Record& record) {
  std::exchange(record.name, nullptr)->in_flight = false;
  --in_flight_;
  if (record.submission.operation == Operation::kJoin) joined_.erase(record.submission.group);
  record.finished = true;
  if (record.dropped) forget(record.handle);
}

template <class Visit>
void SubmissionTable::for_each(Visit visit) const {
  for (const RecordPointer& record : recent_)
    if (record) visit(*record);
  for (const auto& [handle, record] : old_) visit(*record);
}

std::size_t SubmissionTable::in_flight(GroupId group) const {
  std::size_t count = 0;
  for_each([&](const Record& record) {
    count += !record.finished && record.submission.group == group ? 1 : 0;
  });
  return count;
}

Record* SubmissionTable::oldest() {
  Record* oldest = nullptr;
  for_each([&](Record& record) {
    if (record.finished || record.submission.operation == Operation::kJoin) return;
    if (oldest == nullptr || record.handle < oldest->handle) oldest = &record;
  });
  return oldest;
}

Outcome SubmissionTable::remove(Handle handle) {
  Record* const record = find(handle);
  CHECK(record != nullptr && record->finished, "only finished records are removed");
  give_index_back(*record);
  Outcome outcome = std::move(record->outcome);
  forget(handle);
  return outcome;
}

void SubmissionTable::drop(Handle handle) {
  Record* const record = find(handle);
  if (record == nullptr) return;
  record->dropped = true;
  if (record->finished) forget(handle);
}

// Keeps the record for another submission.
void SubmissionTable::forget(Handle handle) {
  RecordPointer& place = place_of(handle);
  RecordPointer record;
  if (place && place->handle == handle)
    record = std::move(place);
  else
    record = std::move(old_.extract(handle).mapped());
  --kept_;
  if (blank_.size() == blank_.capacity()) return;
  record->automatic_index.reset();
  record->outcome = {};
  record->finished = record->dropped = false;
  blank_.push_back(std::move(record));
}

}  // namespace farandole
