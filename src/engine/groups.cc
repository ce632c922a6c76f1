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
// The longest wait for the key of a new group. Usually another rank has set the key already.
constexpr std::chrono::seconds kStoreTimeout(60);
constexpr const char* kExchangeName = "farandole.groups";
constexpr const char* kUnknownMessage = "sent an unknown message (a bug in Farandole)";

Bytes encode_status(const Status& status) {
  ByteWriter writer;
  writer.put(status.code());
  writer.put_text(status.message());
  return writer.take();
}

// Decodes the status of another rank. Any error except kFixCall becomes kStop.
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

// The world never changes, so calls in the world need no lock here. Most calls are in the world.
std::shared_ptr<const std::vector<int>> Groups::find(GroupId group) {
  if (group == kWorld) return {std::shared_ptr<void>(), &dependencies_.formation.ranks_of[kWorld]};
  auto table = table_.lock();
  const auto entry = table->find(group);
  return entry == table->end() ? nullptr : entry->second;
}

bool Groups::lacks_ranks(GroupId group) const {
  const auto& ranks_of = dependencies_.formation.ranks_of;
  return group < ranks_of.size() && ranks_of[group].empty();
}

Status Groups::not_found_error(GroupId group) const {
  const Formation& formation = dependencies_.formation;
  if (!lacks_ranks(group))
    return Status::fix_call(format_text(
        "there is no group {}; groups are given to init() on all ranks, or added later", group));
  const std::vector<int>& ranks = formation.given_groups[group - 1];
  const std::vector<int> missing_ranks(std::ranges::lower_bound(ranks, size()), ranks.end());
  return Status::fix_call(format_text(
      "the group {} cannot be used now: it lacks {}, because the job has {} rank{} now; it can be "
      "used again when the job has {} (--min-workers {} lets the job wait for them)",
      group_text(ranks), ranks_text(missing_ranks), size(), size() == 1 ? "" : "s",
      ranks.back() + 1, ranks.back() + 1));
}

Result<GroupId> Groups::add(const std::vector<int>& ranks) {
  return run_exclusively([&] { return perform_add(ranks); });
}

Status Groups::remove(GroupId group) {
  return run_exclusively([&] { return perform_remove(group); });
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

// Waits until no other thread makes a change; in short slices, to notice interruptions.
Status Groups::begin_change() {
  for (bool is_own_turn = false; !is_own_turn;) {
    {
      auto changing = changing_.lock();
      is_own_turn = changing.wait_until(dependencies_.clock.now() + kWaitSlice,
                                        [](bool busy) { return !busy; });
      if (is_own_turn) *changing = true;
    }
    if (!is_own_turn && is_interrupted())
      return Status::retry("interrupted while another thread changes the groups");
  }
  if (!abandoned_input_) return {};
  end_change();
  return Status::rebuild_group(
      format_text("a change of groups was interrupted on rank {}, and the others still wait for "
                  "it: shut down, and start the job again",
                  rank()));
}

Result<GroupId> Groups::perform_add(const std::vector<int>& ranks) {
  FARANDOLE_TRY(check_same_request("adds the group " + group_text(ranks)));
  FARANDOLE_TRY(check_new_group(ranks));
  // A failed change uses an id, too, so that no later group finds the old key.
  const GroupId id = next_id_++;
  const std::string key = keys::group(dependencies_.formation.epoch, id);
  const auto local_ranks = dependencies_.formation.members_on_this_host(ranks);
  const bool shares_memory = !local_ranks.empty() && local_ranks.front() == rank();
  auto member = form_group(id, ranks, shares_memory ? key : "");
  // After an interruption the key stays, because other ranks may still read it.
  if (shares_memory && member.status().code() != StatusCode::kRetry)
    (void)dependencies_.store.remove(key);
  FARANDOLE_TRY(member.status());
  if (*member) dependencies_.progress.add_member(std::move(*member));
  table_.lock()->emplace(id, std::make_shared<const std::vector<int>>(ranks));
  return id;
}

Result<std::unique_ptr<GroupMember>> Groups::form_group(GroupId id, const std::vector<int>& ranks,
                                                        const std::string& share_key) {
  const auto members = static_cast<int>(dependencies_.formation.members_on_this_host(ranks).size());
  const auto failure_text = [this] { return format_text("rank {} cannot add a group", rank()); };
  FARANDOLE_TRY(first_error_of_all(catch_bad_alloc(failure_text, [&] {
    return share_key.empty() ? Status()
                             : share_group(dependencies_.store, share_key, members,
                                           dependencies_.formation.costs);
  })));
  std::unique_ptr<GroupMember> member;
  Status member_status;
  if (std::ranges::binary_search(ranks, rank())) {
    auto member_result = catch_bad_alloc(failure_text, [&] { return make_member(id, ranks); });
    member_status = member_result.status();
    if (member_result.ok()) member = std::move(*member_result);
  }
  FARANDOLE_TRY(first_error_of_all(member_status));
  return member;
}

Status Groups::perform_remove(GroupId group) {
  FARANDOLE_TRY(check_same_request(format_text("removes group {}", group)));
  if (group == kWorld) return Status::fix_call("group 0 is the world and cannot be removed");
  const auto ranks = find(group);
  if (!ranks && lacks_ranks(group)) return not_found_error(group);
  if (!ranks)
    return Status::fix_call(format_text(
        "there is no group {} to remove: it was never added, or removed before", group));
  const Status close_status = dependencies_.progress.close_group(group);
  const Status status = first_error_of_all(close_status);
  if (!status.ok()) {
    if (close_status.ok()) dependencies_.progress.reopen_group(group);
    return status;
  }
  // The group stays closed, because other threads may have found it before it is erased here.
  table_.lock()->erase(group);
  dependencies_.progress.remove_member(group);
  return {};
}

// All ranks have requested the same group, so they all get the same result here.
Status Groups::check_new_group(const std::vector<int>& ranks) {
  FARANDOLE_TRY(check_group(ranks, size()));
  auto table = table_.lock();
  const GroupId first_id =
      dependencies_.formation.job_size == JobSize::kFixed ? kWorld : kWorld + 1;
  for (auto existing = table->lower_bound(first_id); existing != table->end(); ++existing)
    if (*existing->second == ranks)
      return Status::fix_call(format_text("the group {} exists already, as number {}",
                                          group_text(ranks), existing->first));
  if (table->size() < kGroupsMax) return {};
  return Status::fix_call(format_text(
      "there are {} groups already, which is the most that is possible; remove one first",
      table->size()));
}

Result<std::unique_ptr<GroupMember>> Groups::make_member(GroupId id,
                                                         const std::vector<int>& ranks) {
  // If a rank has died, the key may be gone, because the first member has ended the change.
  const std::function<bool()> interrupted = [this] {
    return is_interrupted() || dependencies_.progress.is_over(kWorld);
  };
  const WaitLimit limit{dependencies_.clock.now() + kStoreTimeout, interrupted};
  const Formation& formation = dependencies_.formation;
  const auto bytes =
      GroupMemory::bytes_needed(static_cast<int>(formation.members_on_this_host(ranks).size()));
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
  const auto request_of = [&](int rank) {
    ByteReader reader(requests[static_cast<std::size_t>(rank)]);
    const std::string text = reader.get_text();
    return reader.ok() ? text : std::string(kUnknownMessage);
  };
  for (int other_rank = 1; other_rank < size(); ++other_rank)
    if (request_of(other_rank) != request_of(0))
      return Status::fix_call(
          format_text("rank 0 {}, rank {} {}; all ranks must add and remove the same groups in the "
                      "same order",
                      request_of(0), other_rank, request_of(other_rank)));
  return {};
}

Status Groups::first_error_of_all(const Status& own_status) {
  FARANDOLE_TRY_ASSIGN(const auto answers, exchange(encode_status(own_status)));
  for (int other_rank = 0; other_rank < size(); ++other_rank)
    FARANDOLE_TRY(decode_status(answers[static_cast<std::size_t>(other_rank)], other_rank));
  return {};
}

Result<std::vector<Bytes>> Groups::exchange(const Bytes& own_bytes) {
  auto input = std::make_unique<Bytes>(own_bytes);
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
  std::vector<Bytes> results;
  const std::byte* next_bytes = outcome.received.get();
  for (const std::int64_t bytes : outcome.received_rows) {
    if (bytes == 0)
      return Status::fix_call(
          format_text("rank {} waits in join(): add and remove groups when all ranks have joined",
                      results.size()));
    results.emplace_back(next_bytes, next_bytes + bytes);
    next_bytes += bytes;
  }
  return results;
}

}  // namespace farandole
