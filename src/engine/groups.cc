#include "engine/groups.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/allocation.h"
#include "base/check.h"
#include "base/format.h"
#include "base/rank_names.h"
#include "base/try.h"
#include "collective/group_memory.h"
#include "formation/group_list.h"
#include "formation/shared_segment.h"
#include "rendezvous/keys.h"

namespace farandole {
namespace {

constexpr std::chrono::milliseconds kWaitSlice(100);
// The longest wait for the key of a new group. Usually it is short: another rank has set the key.
constexpr std::chrono::seconds kStoreTimeout(60);
constexpr const char* kExchangeName = "farandole.groups";
constexpr const char* kUnknownMessage = "sent an unknown message (a bug in Farandole)";

Bytes encode_status(const Status& status) {
  ByteWriter writer;
  writer.put(status.code());
  writer.put_text(status.message());
  return writer.take();
}

// Decodes the status of another rank. Any error but kFixCall becomes kStop.
Status decode_status(const Bytes& bytes, int rank) {
  ByteReader reader(bytes);
  const auto code = reader.get<StatusCode>();
  const std::string text = format_text("rank {}: {}", rank, reader.get_text());
  if (!reader.ok() || !reader.at_end())
    return Status::stop(format_text("rank {} {}", rank, kUnknownMessage));
  if (code == StatusCode::kOk) return {};
  if (code != StatusCode::kFixCall) return Status::stop(text);
  return Status::fix_call(text);
}

}  // namespace

Result<std::unique_ptr<GroupMember>> make_group_member(const FormedGroup& group,
                                                       const Formation& formation,
                                                       FlightRecorder& recorder, const Clock& clock,
                                                       Channels* channels) {
  auto member = std::make_unique<GroupMember>(group, formation, recorder, clock, channels);
  // Only the world gets huge pages from the start, because there may be many other groups.
  if (group.id == kWorld) member->allocate_huge_pages();
  return member;
}

Groups::Groups(Dependencies dependencies)
    : dependencies_(std::move(dependencies)),
      next_id_(static_cast<GroupId>(dependencies_.formation.ranks_of.size())) {
  auto table = table_.lock();
  for (GroupId id = 0; id < next_id_; ++id) {
    const std::vector<int>& ranks = dependencies_.formation.ranks_of[id];
    if (!ranks.empty()) table->emplace(id, std::make_shared<const std::vector<int>>(ranks));
  }
}

// The world never changes. So calls in it, which are most calls, need no lock here.
std::shared_ptr<const std::vector<int>> Groups::find(GroupId group) {
  if (group == kWorld) return {std::shared_ptr<void>(), &dependencies_.formation.ranks_of[kWorld]};
  auto table = table_.lock();
  const auto found = table->find(group);
  return found == table->end() ? nullptr : found->second;
}

bool Groups::lacks_ranks(GroupId group) const {
  const auto& ranks_of = dependencies_.formation.ranks_of;
  return group < ranks_of.size() && ranks_of[group].empty();
}

Status Groups::not_found(GroupId group) const {
  const Formation& formation = dependencies_.formation;
  if (!lacks_ranks(group))
    return Status::fix_call(format_text(
        "there is no group {}; groups are given to init() on all ranks, or added later", group));
  const std::vector<int>& ranks = formation.given_groups[group - 1];
  const std::vector<int> missing(std::ranges::lower_bound(ranks, size()), ranks.end());
  return Status::fix_call(format_text(
      "the group {} cannot be used now: it lacks {}, because the job has {} rank{} now; it can be "
      "used again when the job has {} (--min-workers {} lets the job wait for them)",
      group_text(ranks), name_ranks(missing), size(), size() == 1 ? "" : "s", ranks.back() + 1,
      ranks.back() + 1));
}

Result<GroupId> Groups::add(const std::vector<int>& ranks) {
  return run_exclusively([&] { return add_now(ranks); });
}

Status Groups::remove(GroupId group) {
  return run_exclusively([&] { return remove_now(group); });
}

template <class Change>
auto Groups::run_exclusively(Change change) -> decltype(change()) {
  FARANDOLE_TRY(begin_change());
  auto result = [&]() -> decltype(change()) {
    try {
      return change();
    } catch (const std::bad_alloc&) {
      return leave_out_of_memory();
    }
  }();
  end_change();
  return result;
}

// The other ranks wait for this rank in the next exchange of this change. If this rank only
// returned an error, they would wait forever. So this rank leaves the job, and the other ranks get
// an error.
Status Groups::leave_out_of_memory() {
  try {
    const Status status = Status::stop(
        format_text("rank {} has no memory left to change the groups (malloc failed); it has left "
                    "the job. Look at `ulimit -v` and the memory limit of the container",
                    rank()));
    dependencies_.progress.give_up(
        {status, "it had no memory left while the groups were being changed"});
    return status;
  } catch (const std::bad_alloc&) {
    dependencies_.progress.abort_out_of_memory();
  }
}

void Groups::end_change() {
  *changing_.lock() = false;
  changing_.notify_one();
}

// Waits until no other thread makes a change. Waits in short slices, to notice interruptions.
Status Groups::begin_change() {
  for (bool ours = false; !ours;) {
    {
      auto changing = changing_.lock();
      ours = changing.wait_until(dependencies_.clock.now() + kWaitSlice,
                                 [](bool busy) { return !busy; });
      if (ours) *changing = true;
    }
    if (!ours && is_interrupted())
      return Status::retry("interrupted while another thread changes the groups");
  }
  if (!abandoned_input_) return {};
  end_change();
  return Status::rebuild_group(
      format_text("a change of groups was interrupted on rank {}, and the others still wait for "
                  "it: shut down, and start the job again",
                  rank()));
}

Result<GroupId> Groups::add_now(const std::vector<int>& ranks) {
  FARANDOLE_TRY(check_same_request("adds the group " + group_text(ranks)));
  FARANDOLE_TRY(check_new(ranks));
  // The id is used up even if the change fails, so that no later group finds the old key.
  const GroupId id = next_id_++;
  const std::string key = keys::group(dependencies_.formation.epoch, id);
  const auto local = dependencies_.formation.on_this_host(ranks);
  const bool shares_memory = !local.empty() && local.front() == rank();
  auto member = form(id, ranks, shares_memory ? key : "");
  // After an interruption the key stays, because other ranks may still read it.
  if (shares_memory && member.status().code() != StatusCode::kRetry)
    (void)dependencies_.store.remove(key);
  FARANDOLE_TRY(member.status());
  if (*member) dependencies_.progress.add_member(std::move(*member));
  table_.lock()->emplace(id, std::make_shared<const std::vector<int>>(ranks));
  return id;
}

Result<std::unique_ptr<GroupMember>> Groups::form(GroupId id, const std::vector<int>& ranks,
                                                  const std::string& share_as) {
  const auto members = static_cast<int>(dependencies_.formation.on_this_host(ranks).size());
  const auto what_failed = [this] { return format_text("rank {} cannot add a group", rank()); };
  FARANDOLE_TRY(first_error_of_all(catch_bad_alloc(what_failed, [&] {
    return share_as.empty()
               ? Status()
               : share_group(dependencies_.store, share_as, members, dependencies_.formation.costs);
  })));
  std::unique_ptr<GroupMember> member;
  Status attached;
  if (std::ranges::binary_search(ranks, rank())) {
    auto made = catch_bad_alloc(what_failed, [&] { return make_member(id, ranks); });
    attached = made.status();
    if (made.ok()) member = std::move(*made);
  }
  FARANDOLE_TRY(first_error_of_all(attached));
  return member;
}

Status Groups::remove_now(GroupId group) {
  FARANDOLE_TRY(check_same_request(format_text("removes group {}", group)));
  if (group == kWorld) return Status::fix_call("group 0 is the world and cannot be removed");
  const auto ranks = find(group);
  if (!ranks && lacks_ranks(group)) return not_found(group);
  if (!ranks)
    return Status::fix_call(format_text(
        "there is no group {} to remove: it was never added, or removed before", group));
  const Status closed = dependencies_.progress.close_group(group);
  const Status status = first_error_of_all(closed);
  if (!status.ok()) {
    if (closed.ok()) dependencies_.progress.reopen_group(group);
    return status;
  }
  // The group stays closed, because other threads may already have looked it up.
  table_.lock()->erase(group);
  dependencies_.progress.remove_member(group);
  return {};
}

// All ranks have requested the same group, so they all get the same result here.
Status Groups::check_new(const std::vector<int>& ranks) {
  FARANDOLE_TRY(check_group(ranks, size()));
  auto table = table_.lock();
  const GroupId first = dependencies_.formation.job_size == JobSize::kFixed ? kWorld : kWorld + 1;
  for (auto known = table->lower_bound(first); known != table->end(); ++known)
    if (*known->second == ranks)
      return Status::fix_call(format_text("the group {} exists already, as number {}",
                                          group_text(ranks), known->first));
  if (table->size() < kGroupsMax) return {};
  return Status::fix_call(format_text(
      "there are {} groups already, which is the most that is possible; remove one first",
      table->size()));
}

Result<std::unique_ptr<GroupMember>> Groups::make_member(GroupId id,
                                                         const std::vector<int>& ranks) {
  // If a rank has died, the first member may have ended the change and removed the key.
  const std::function<bool()> interrupted = [this] {
    return is_interrupted() || dependencies_.progress.is_over(kWorld);
  };
  const WaitLimit limit{dependencies_.clock.now() + kStoreTimeout, interrupted};
  const Formation& formation = dependencies_.formation;
  const auto bytes =
      GroupMemory::bytes_needed(static_cast<int>(formation.on_this_host(ranks).size()));
  FARANDOLE_TRY_ASSIGN(
      auto segment,
      receive_segment(dependencies_.store, keys::group(formation.epoch, id), bytes, limit));
  return make_group_member({id, ranks, formation.hosts_of(ranks), std::move(segment)}, formation,
                           dependencies_.recorder, dependencies_.clock, dependencies_.channels);
}

Status Groups::check_same_request(const std::string& request) {
  ByteWriter writer;
  writer.put_text(request);
  FARANDOLE_TRY_ASSIGN(const auto requests, exchange(writer.take()));
  const auto text_of = [&](int rank) {
    ByteReader reader(requests[static_cast<std::size_t>(rank)]);
    const std::string text = reader.get_text();
    return reader.ok() ? text : std::string(kUnknownMessage);
  };
  for (int other = 1; other < size(); ++other)
    if (text_of(other) != text_of(0))
      return Status::fix_call(
          format_text("rank 0 {}, rank {} {}; all ranks must add and remove the same groups in the "
                      "same order",
                      text_of(0), other, text_of(other)));
  return {};
}

Status Groups::first_error_of_all(const Status& own) {
  FARANDOLE_TRY_ASSIGN(const auto answers, exchange(encode_status(own)));
  for (int other = 0; other < size(); ++other)
    FARANDOLE_TRY(decode_status(answers[static_cast<std::size_t>(other)], other));
  return {};
}

Result<std::vector<Bytes>> Groups::exchange(const Bytes& own) {
  auto input = std::make_unique<Bytes>(own);
  Submission submission;
  submission.operation = Operation::kAllgather;
  submission.name = kExchangeName;
  submission.shape = {static_cast<std::int64_t>(input->size())};
  submission.input = input->data();
  Handle handle = 0;
  FARANDOLE_TRY(dependencies_.progress.submit({&submission, 1}, {&handle, 1}, kWaitSlice));
  while (!dependencies_.progress.wait(handle, kWaitSlice)) {
    if (!is_interrupted()) continue;
    dependencies_.progress.drop(handle);
    abandoned_input_ = std::move(input);
    return Status::retry("interrupted while the groups were being changed");
  }
  const Outcome outcome = dependencies_.progress.take(handle);
  // kStop means that there was no memory for the result.
  if (outcome.status.code() == StatusCode::kStop) throw std::bad_alloc();
  FARANDOLE_TRY(outcome.status);
  std::vector<Bytes> parts;
  const std::byte* next = outcome.received.get();
  for (const std::int64_t bytes : outcome.received_rows) {
    if (bytes == 0)
      return Status::fix_call(
          format_text("rank {} waits in join(): add and remove groups when all ranks have joined",
                      parts.size()));
    parts.emplace_back(next, next + bytes);
    next += bytes;
  }
  return parts;
}

}  // namespace farandole
