#include "engine/memberships.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/format.h"
#include "submission/submission_check.h"

namespace farandole {
namespace {

// How long a rank that ends its groups waits for more progress of a step that all members entered.
constexpr std::chrono::milliseconds kFinishTimeout(1000);
// The longest time that a leaving rank waits until the other hosts have received all its data.
constexpr std::chrono::seconds kFlushTimeout(5);

}  // namespace

void Memberships::add(std::unique_ptr<GroupMember> member) {
  recorder_.enter_group(member->id());
  member->connect();
  for (const auto& end : early_group_ends_)
    if (end.group == member->id()) member->handle_group_end(end);
  std::erase_if(early_group_ends_, [&](const auto& end) { return end.group == member->id(); });
  members_.push_back(std::move(member));
  has_new_members_ = true;
}

void Memberships::remove(GroupId group) {
  std::erase_if(members_, [group](const auto& candidate) { return candidate->id() == group; });
  mailbox_.forget_group(group);
  if (channels_ != nullptr)
    channels_->for_each([group](int, PeerChannel& channel) { channel.forget_group(group); });
  recorder_.leave_group(group);
}

void Memberships::submit(Record& record, std::vector<Record*>& finished) {
  const GroupId group = record.submission.group;
  const auto member = std::ranges::find_if(
      members_, [group](const auto& candidate) { return candidate->id() == group; });
  const Operation operation = record.submission.operation;
  const Status status =
      member == members_.end()
          ? Status::fix_call(format_text("group {} was removed before {} could begin", group,
                                         call_title(record.submission)))
      : row_of(operation).is_message ? Status()
      : (*member)->end_status()      ? *(*member)->end_status()
                                     : (*member)->supports(operation);
  if (status.ok() && row_of(operation).is_message)
    return mailbox_.submit(record, (*member)->ranks(), finished);
  if (status.ok()) return (*member)->submit(record);
  record.outcome.status = status;
  finished.push_back(&record);
}

// First handles everything that a rank has sent, then the failure of the connection to that rank.
bool Memberships::advance_channels(std::vector<Record*>& finished) {
  bool progress = channels_->advance();
  channels_->for_each([&](int sender, PeerChannel& channel) {
    while (auto end = channel.next_group_end()) handle_group_end(sender, *std::move(end));
    while (const auto death = channel.next_death())
      if (check_rank_exists(death->rank, sender)) close_epoch(death->rank, death->reason);
    if (!channel.peer_said_goodbye() || channel.has_envelope() || mailbox_.is_gone(sender)) return;
    const auto leave_failure = failure_of_leave(sender, *channel.peer_goodbye(), pids_);
    mailbox_.end_peer(sender, leave_failure.status, finished);
    progress = true;
  });
  for (const auto& [rank, text, peer_may_live] : channels_->take_failures()) {
    if (peer_may_live)
      mailbox_.end_peer(rank, error_of_unreachable(rank, text, pids_), finished);
    else
      close_epoch(rank,
                  format_text("has died or is cut off (rank {} has lost the connection to it: {})",
                              doorbells_.rank(), text));
    progress = true;
  }
  return progress;
}

bool Memberships::check_rank_exists(int rank, int sender) {
  const bool exists = rank >= 0 && rank < doorbells_.size();
  if (!exists) close_epoch(sender, format_text("has reported rank {}, which does not exist", rank));
  return exists;
}

void Memberships::handle_group_end(int sender, GroupEnd end) {
  if (!check_rank_exists(end.rank, sender)) return;
  const auto member = std::ranges::find_if(
      members_, [&](const auto& candidate) { return candidate->id() == end.group; });
  if (member != members_.end())
    (*member)->handle_group_end(end);
  else
    early_group_ends_.push_back(std::move(end));
}

// `ending`: how the rank has ended, see EndedRanks.
void Memberships::close_epoch(int dead_rank, std::string_view ending) {
  if (!doorbells_.closed_by()) doorbells_.close(dead_rank, ending);
  forward_death();
}

// Ends the epoch, because a rank has left, and this rank gives up a step that all members on its
// host have entered. Ranks on other hosts may have completed this step.
void Memberships::give_up_step(int leaving_rank, std::string_view reason) {
  close_epoch(leaving_rank, format_text("has left the job in the middle of a call ({})", reason));
}

// Every rank that learns of a death tells all ranks to which it has channels, before it tells them
// that its groups have ended or that it leaves. Otherwise these ranks would see only a leave, and
// continue other groups.
void Memberships::forward_death() {
  const auto dead_rank = doorbells_.closed_by();
  if (channels_ == nullptr || !dead_rank || std::exchange(has_forwarded_death_, true)) return;
  const std::string ending = doorbells_.closing_reason();
  channels_->for_each([&](int, PeerChannel& channel) { channel.send(Death{*dead_rank, ending}); });
}

// Members and mailbox advance first, because other hosts wait for their messages. After something
// has arrived, they advance again, before a failure or group end that arrived with it is handled.
bool Memberships::advance_all(std::vector<Record*>& finished) {
  bool progress = advance_members(finished);
  if (channels_ == nullptr || !advance_channels(finished)) return progress;
  advance_members(finished);
  return true;
}

bool Memberships::advance_members(std::vector<Record*>& finished) {
  bool progress = mailbox_.advance(finished);
  for (auto& member : members_) progress |= member->advance(finished);
  if (channels_ != nullptr) progress |= channels_->send();
  return progress;
}

bool Memberships::advance(std::vector<Record*>& finished) {
  bool progress = advance_all(finished);
  const auto broken_member = std::ranges::find_if(
      members_, [](const auto& member) { return is_broken(member->end_status()); });
  if (broken_member != members_.end())
    give_up(reason_of_broken_group(*(*broken_member)->end_status()), finished);
  if (mailbox_.protocol_error())
    give_up(reason_of_broken_group(*mailbox_.protocol_error()), finished);
  if (may_have_new_endings() || (progress && !ending_groups_.empty())) {
    end_failed_groups(finished);
    progress = true;  // the driving thread must run another round before it sleeps
  }
  has_unsent_ =
      mailbox_.has_unsent() || (channels_ != nullptr && channels_->has_work()) ||
      std::ranges::any_of(members_, [](const auto& member) { return member->has_unsent(); });
  return progress;
}

void Memberships::tick(TimePoint now) {
  for (auto& member : members_) member->tick(now);
  if (channels_ != nullptr) channels_->request_receive_from_all();
}

TimePoint Memberships::deadline(TimePoint latest) const {
  for (const auto& member : members_)
    if (const auto due = member->deadline()) latest = std::min(latest, *due);
  return channels_ == nullptr ? latest : std::min(latest, channels_->deadline());
}

bool Memberships::may_have_new_endings() {
  const bool changed = failure_watch_.has_changed();
  if (std::exchange(has_new_members_, false) || changed) return true;
  return channels_ != nullptr && std::ranges::any_of(members_, [this](const auto& member) {
           return !ending_groups_.contains(member->id()) && member->end_on_other_host();
         });
}

// A death has the highest priority. A group end that the leader has forwarded from another host has
// priority over a leave on this host, because the leader forwards no end after it has ended the
// group itself.
std::optional<Memberships::Ending> Memberships::ending_of(const GroupMember& member,
                                                          const EndedRanks& ended) const {
  const auto end = member.end_on_other_host();
  if (end && !ended.first_dead_rank)
    return Ending{failure_of_leave(end->rank, end->reason, pids_), end->reason, true};
  auto failure = failure_of(ended, member.ranks(), doorbells_.rank(), pids_);
  if (!failure) return std::nullopt;
  const auto& leaver = ended.leavers[static_cast<std::size_t>(failure->failed_rank)];
  return Ending{*std::move(failure), leaver ? leaver->reason : "", false};
}

// Ends the groups in which a rank has died or left. If such a rank has finished its last step, it
// has stored all data that the others need for that step. So this function reads which ranks have
// ended, and then advances all groups until they make no progress, which finishes such steps. The
// next advance() finds deaths that happen during this function. If a step waits for data from
// another host, its group ends later.
void Memberships::end_failed_groups(std::vector<Record*>& finished) {
  const EndedRanks ended = failure_watch_.read();
  forward_death();
  if (give_up_reason_) end_all(*give_up_reason_, finished);
  std::vector<std::pair<GroupMember*, Ending>> endings;
  for (auto& member : members_)
    if (auto ending = ending_of(*member, ended); ending && !member->end_status())
      endings.emplace_back(member.get(), *std::move(ending));
  for (auto& [member, ending] : endings) member->stop_entering();
  if (channels_ != nullptr) channels_->request_receive_from_all();
  while (advance_all(finished)) continue;
  end_failed_messages(ended, finished);
  ending_groups_.clear();
  for (auto& [member, ending] : endings) {
    if (!ended.first_dead_rank && member->must_finish_step()) {
      ending_groups_.insert(member->id());
      continue;
    }
    recorder_.record_blamed_rank(ending.failure.failed_rank);
    const bool gives_up_step = end(*member, ending.failure.status, finished);
    if (ended.first_dead_rank) continue;
    // If another host has ended the group without entering the step, no host can complete the step.
    if (gives_up_step && !ending.is_from_other_host)
      give_up_step(ending.failure.failed_rank, ending.reason);
    // Also forward an end that has arrived from another host. Then all hosts blame the same rank,
    // even if this rank leaves next.
    member->send_group_end(ending.failure.failed_rank, ending.reason);
  }
}

// A message concerns only two ranks, so it does not end if a third rank leaves. A death ends all
// messages.
void Memberships::end_failed_messages(const EndedRanks& ended, std::vector<Record*>& finished) {
  for (int peer = 0; peer < doorbells_.size(); ++peer) {
    const auto failure = failure_of(ended, {peer}, doorbells_.rank(), pids_);
    if (failure && peer != doorbells_.rank()) mailbox_.end_peer(peer, failure->status, finished);
  }
}

void Memberships::give_up(const GiveUpReason& cause, std::vector<Record*>& finished) {
  if (give_up_reason_) return;
  finish_running_steps(finished);
  end_all(cause, finished);
  give_up_reason_ = cause;
  for (auto& member : members_) member->send_group_end(doorbells_.rank(), cause.reason);
  leave(cause.reason);
}

void Memberships::end_by_shutdown(std::optional<std::string_view> reason,
                                  std::vector<Record*>& finished) {
  finish_running_steps(finished);
  const Status status = Status::rebuild_group("this rank has called shutdown()");
  for (auto& member : members_) {
    if (member->end(status, finished))
      give_up_step(doorbells_.rank(), reason.value_or("its engine has ended"));
  }
  mailbox_.end(status, finished);
  if (reason) {
    for (auto& member : members_) member->send_group_end(doorbells_.rank(), std::string(*reason));
    leave(*reason);
  }
  wait_for_writers(finished);
  if (channels_ != nullptr) channels_->stop(reason ? Duration(kFlushTimeout) : Duration());
}

void Memberships::end_all(const GiveUpReason& cause, std::vector<Record*>& finished) {
  for (auto& member : members_)
    if (end(*member, cause.status, finished)) give_up_step(doorbells_.rank(), cause.reason);
  mailbox_.end(cause.status, finished);
}

bool Memberships::end(GroupMember& member, const Status& status, std::vector<Record*>& finished) {
  const bool gives_up_step = member.end(status, finished);
  ended_groups_.emplace_back(member.id(), status);
  return gives_up_step;
}

void Memberships::finish_running_steps(std::vector<Record*>& finished) {
  for (TimePoint deadline = clock_.now() + kFinishTimeout;;) {
    const std::uint32_t ticket = doorbells_.prepare_sleep();
    bool may_progress = mailbox_.is_moving_data();
    for (auto& member : members_)
      may_progress |=
          !member->stop_entering() && (member->must_finish_step() || !member->any_member_gone());
    // A member that is gone stores no more data, so this advance_all() finds all of its data.
    if (channels_ != nullptr) channels_->request_receive_from_all();
    const bool progress = advance_all(finished);
    const TimePoint now = clock_.now();
    if (progress) deadline = now + kFinishTimeout;
    if (!progress && may_progress && now < deadline) {
      ring_on_arrival();
      doorbells_.sleep(ticket, deadline - now);
    } else {
      doorbells_.cancel_sleep();
    }
    if (!progress && (!may_progress || now >= deadline)) return;
  }
}

// Waits until no other rank writes to memory of ended calls any more.
void Memberships::wait_for_writers(std::vector<Record*>& finished) {
  for (;;) {
    const std::uint32_t ticket = doorbells_.prepare_sleep();
    const TimePoint now = clock_.now();
    bool any_member_waits = false;
    TimePoint deadline = TimePoint::max();  // ignores the channels, which do not advance here
    for (auto& member : members_) {
      member->tick(now);
      member->advance(finished);
      any_member_waits |= member->waits_for_writers();
      if (const auto due = member->deadline()) deadline = std::min(deadline, *due);
    }
    if (!any_member_waits) return doorbells_.cancel_sleep();
    doorbells_.sleep(ticket, deadline - now);
  }
}

void Memberships::leave(std::string_view reason) {
  if (std::exchange(has_left_, true)) return;
  doorbells_.leave(reason);
  forward_death();
  if (channels_ != nullptr)
    channels_->for_each(
        [&](int, PeerChannel& channel) { channel.say_goodbye(std::string(reason)); });
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
