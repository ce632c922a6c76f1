#include "engine/memberships.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/format.h"
#include "submission/submission_check.h"

namespace farandole {
namespace {

// How long a rank that ends its groups waits for the next progress of a step that all have entered.
constexpr std::chrono::milliseconds kFinishTimeout(1000);

}  // namespace

void Memberships::add(std::unique_ptr<GroupMember> member) {
  recorder_.enter_group(member->id());
  members_.push_back(std::move(member));
  has_new_members_ = true;
}

void Memberships::remove(GroupId group) {
  std::erase_if(members_, [group](const auto& member) { return member->id() == group; });
  mailbox_.forget_group(group);
  recorder_.leave_group(group);
}

void Memberships::submit(Record& record, std::vector<Record*>& finished) {
  const GroupId group = record.submission.group;
  const auto member =
      std::ranges::find_if(members_, [group](const auto& one) { return one->id() == group; });
  if (member != members_.end() && row_of(record.submission.operation).is_message)
    return mailbox_.submit(record, (*member)->ranks(), finished);
  if (member != members_.end() && !(*member)->ended()) return (*member)->submit(record);
  record.outcome.status =
      member == members_.end()
          ? Status::fix_call(format_text("group {} was removed before {} could begin", group,
                                         call_title(record.submission)))
          : *(*member)->ended();
  finished.push_back(&record);
}

bool Memberships::advance_all(std::vector<Record*>& finished) {
  bool progress = mailbox_.advance(finished);
  for (auto& member : members_) progress |= member->advance(finished);
  return progress;
}

bool Memberships::advance(std::vector<Record*>& finished) {
  bool progress = advance_all(finished);
  const auto broken =
      std::ranges::find_if(members_, [](const auto& member) { return is_broken(member->ended()); });
  if (broken != members_.end()) give_up(reason_of_broken_group(*(*broken)->ended()), finished);
  if (mailbox_.broken()) give_up(reason_of_broken_group(*mailbox_.broken()), finished);
  if (std::exchange(has_new_members_, false) || failure_watch_.has_changed()) {
    end_failed_groups(finished);
    progress = true;  // the driving thread must run another round before it sleeps
  }
  has_unsent_ = mailbox_.has_unsent() || std::ranges::any_of(members_, [](const auto& member) {
                  return member->has_unsent();
                });
  return progress;
}

void Memberships::tick(TimePoint now) {
  for (auto& member : members_) member->tick(now);
}

TimePoint Memberships::deadline(TimePoint at_most) const {
  for (const auto& member : members_)
    if (const auto theirs = member->deadline()) at_most = std::min(at_most, *theirs);
  return at_most;
}

// Ends the groups in which a rank has died or left. A rank that finished its last step before it
// ended has stored everything that the others need for that step. So this function first advances
// all groups until they make no progress, which finishes such steps. It reads the ended ranks
// before that; the next advance() finds a death that comes meanwhile.
void Memberships::end_failed_groups(std::vector<Record*>& finished) {
  const EndedRanks ended = failure_watch_.read();
  if (given_up_) end_all(*given_up_, finished);
  std::vector<std::pair<GroupMember*, GroupFailure>> failures;
  for (auto& member : members_) {
    const auto failure = failure_of(ended, member->ranks(), doorbells_.rank(), pids_);
    if (failure) failures.emplace_back(member.get(), *failure);
  }
  for (auto& [member, failure] : failures) member->stop_entering();
  while (advance_all(finished)) continue;
  end_failed_messages(ended, finished);
  for (auto& [member, failure] : failures) {
    recorder_.blame(failure.failed_rank);
    end(*member, failure.status, finished);
  }
}

// A message concerns two ranks. So the leave of another rank does not end it, but a death does.
void Memberships::end_failed_messages(const EndedRanks& ended, std::vector<Record*>& finished) {
  for (int peer = 0; peer < doorbells_.size(); ++peer) {
    const auto failure = failure_of(ended, {peer}, doorbells_.rank(), pids_);
    if (failure && peer != doorbells_.rank()) mailbox_.end_peer(peer, failure->status, finished);
  }
}

void Memberships::give_up(const GiveUpReason& why, std::vector<Record*>& finished) {
  if (given_up_) return;
  finish_running_steps(finished);
  end_all(why.status, finished);
  given_up_ = why.status;
  leave(why.reason);
}

void Memberships::end_by_shutdown(std::optional<std::string_view> reason,
                                  std::vector<Record*>& finished) {
  finish_running_steps(finished);
  const Status status = Status::rebuild_group("this rank has called shutdown()");
  for (auto& member : members_) member->end(status, finished);
  mailbox_.end(status, finished);
  if (reason) leave(*reason);
  wait_for_writers(finished);
}

void Memberships::end_all(const Status& status, std::vector<Record*>& finished) {
  for (auto& member : members_) end(*member, status, finished);
  mailbox_.end(status, finished);
}

void Memberships::end(GroupMember& member, const Status& status, std::vector<Record*>& finished) {
  member.end(status, finished);
  ended_.emplace_back(member.id(), status);
}

void Memberships::finish_running_steps(std::vector<Record*>& finished) {
  for (TimePoint deadline = clock_.now() + kFinishTimeout;;) {
    const std::uint32_t ticket = doorbells_.prepare_sleep();
    bool may_progress = mailbox_.is_moving_data();
    for (auto& member : members_)
      may_progress |= !member->stop_entering() && !member->any_member_gone();
    // After any_member_gone(), because a member that is gone has stored all that it ever will.
    const bool progress = advance_all(finished);
    const TimePoint now = clock_.now();
    if (progress) deadline = now + kFinishTimeout;
    if (!progress && may_progress && now < deadline)
      doorbells_.sleep(ticket, deadline - now);
    else
      doorbells_.cancel_sleep();
    if (!progress && (!may_progress || now >= deadline)) return;
  }
}

// Waits until no other rank writes to memory of ended calls any more.
void Memberships::wait_for_writers(std::vector<Record*>& finished) {
  for (;;) {
    const std::uint32_t ticket = doorbells_.prepare_sleep();
    const TimePoint now = clock_.now();
    bool waits = false;
    for (auto& member : members_) {
      member->tick(now);
      member->advance(finished);
      waits |= member->waits_for_writers();
    }
    if (!waits) return doorbells_.cancel_sleep();
    doorbells_.sleep(ticket, deadline(TimePoint::max()) - now);
  }
}

void Memberships::leave(std::string_view reason) {
  if (!std::exchange(has_left_, true)) doorbells_.leave(reason);
}

void Memberships::abort_out_of_memory() {
  constexpr const char* kReason = "it could not allocate memory for its own data";
  std::fprintf(
      stderr,
      "farandole: rank %d (pid %d) has no memory left (malloc failed); look at `ulimit -v` "
      "and the memory limit of the container. The process ends here.\n",
      doorbells_.rank(), static_cast<int>(::getpid()));
  leave(kReason);
  recorder_.record_left(kReason, LeaveCause::kOrderly, {}, clock_.now());
  std::abort();
}

}  // namespace farandole
