#include "coordination/coordinator.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/format.h"
#include "base/try.h"
#include "coordination/decision.h"

namespace farandole {
namespace {

constexpr std::uint32_t kNumberMax = std::numeric_limits<std::uint32_t>::max();

}  // namespace

Coordinator::Coordinator(std::vector<int> ranks, const AgreementOptions& options)
    : ranks_(std::move(ranks)),
      members_(ranks_.size()),
      names_max_(options.names_max),
      learner_(names_, options.fusion_bytes) {
  CHECK(!ranks_.empty(), "a group has members");
  CHECK(names_max_ >= 1, "the step that is being issued needs an id");
}

Status Coordinator::receive(const MemberSet& from, const Announcement& item) {
  CHECK(!from.empty() && static_cast<std::size_t>(from.last()) < ranks_.size(),
        "the senders are members");
  const bool announces =
      !std::holds_alternative<Raise>(item) && !std::holds_alternative<Report>(item);
  if (replan_ && replan_->any_has_reported(from))
    return Status::stop("it sends another item after its report");
  if (announces && mode_ == Mode::kQueue)
    return Status::stop("it announces a call in generation 1");
  // This announcement belongs to the old generation, so it is dropped. After the replan, the sender
  // announces the call again if this is still needed.
  if (announces && replan_) return {};
  bool any_joined = false;
  from.for_each([&](int number) { any_joined |= member(number).joined; });
  if (announces && any_joined && !std::holds_alternative<AnnounceAgain>(item))
    return Status::stop("it announces another call after it has joined");
  return std::visit([&](const auto& alternative) { return apply(from, alternative); }, item);
}

Status Coordinator::apply(const MemberSet& /*from*/, const Raise& item) {
  if (replan_) return {};
  if (item.generation != generation_)
    return Status::stop(format_text("it raises in generation {}, but the current generation is {}",
                                    item.generation, generation_));
  stop_members(item);
  return {};
}

void Coordinator::stop_members(Raise raise) {
  replan_.emplace(ranks_, std::move(raise));
  stream_.add(StreamItem(Stop{generation_}));
}

Status Coordinator::apply(const MemberSet& from, const Report& item) {
  if (!replan_ || item.generation != generation_)
    return Status::stop(
        format_text("it reports for generation {}, but no report is expected", item.generation));
  FARANDOLE_TRY(replan_->add(from, item));
  if (replan_->is_complete()) send_answer();
  return {};
}

// Ends the replan. Drops all announcements; members repeat those that they still need.
void Coordinator::send_answer() {
  const auto replan = *std::exchange(replan_, std::nullopt);
  const bool planned = mode_ == Mode::kPlan;
  const auto fragment = planned ? learn_and_choose_fragment(replan) : 0;
  mode_ = fragment != 0 ? Mode::kPlan : Mode::kLearn;
  if (planned && fragment == 0) back_off(replan.fragments_run());
  learner_.restart(replan.quiescent_points());
  pending_calls_.clear();
  for (auto& member : members_) member = {};
  member_joined_last_.reset();
  ++generation_;
  sequence_next_ = replan.common_prefix() + 1;
  publish_edits();
  stream_.add(StreamItem(Answer{generation_, replan.common_prefix(), fragment}));
}

// Returns the fragment with which the plan continues after the raise; 0 if the group must return to
// learn mode.
std::uint32_t Coordinator::learn_and_choose_fragment(const Replan& replan) {
  const auto& raise = replan.raise();
  if (raise.cause == Raise::Cause::kBucket)
    learner_.learn_wait(raise.fragment, raise.bucket, raise.ready);
  const auto* fragment = learner_.plan().find(raise.fragment);
  if (raise.cause != Raise::Cause::kMissingEdge || fragment == nullptr) return 0;
  if (raise.bucket == 0) {
    learner_.learn_order(raise.fragment, raise.ready);
    return 0;
  }
  if (raise.bucket < fragment->buckets.size()) {
    learner_.learn_wait(raise.fragment, raise.bucket, {});
    return 0;
  }
  const auto next_fragment =
      learner_.add_edge_to_one_of(raise.fragment, raise.ready, raise.edge_kind);
  // The plan can continue only if all members are at the end of the fragment that the raise names.
  return replan.rolls_back() || replan.common_prefix() != raise.completed ? 0 : next_fragment;
}

// If a plan has failed soon after its start, the next plan would probably fail soon, too. So the
// coordinator lets some synchronization points pass before it starts a plan again.
void Coordinator::back_off(std::uint32_t fragments_run) {
  constexpr std::uint32_t kFragmentsOfLongRun = 4;
  constexpr int kSyncPointsMax = 16;
  back_off_last_ =
      fragments_run < kFragmentsOfLongRun ? std::clamp(2 * back_off_last_, 1, kSyncPointsMax) : 0;
  sync_points_to_pass_ = back_off_last_;
}

Status Coordinator::apply(const MemberSet& from, const AnnounceInFull& item) {
  return record_announcement_in_full(from, item.signature, item.context);
}

Status Coordinator::apply(const MemberSet& from, const AnnounceById& item) {
  if (item.id > id_defined_last_)
    return Status::stop(
        format_text("it announces the id {}, but the last id is {}", item.id, id_defined_last_));
  const auto* interned = names_.find(item.id);
  if (interned == nullptr) {  // the id was forgotten before the announcement arrived
    from.for_each([this](int number) { ++member(number).announcements_due; });
    return {};
  }
  return record_announcement(from, interned->signature, item.id, item.context);
}

Status Coordinator::apply(const MemberSet& from, const AnnounceAgain& item) {
  bool all_are_due = true;
  from.for_each([&](int number) { all_are_due &= member(number).announcements_due > 0; });
  if (!all_are_due)
    return Status::stop(format_text("it announces `{}` again, but its id was not forgotten",
                                    shortened(item.signature.name, kNameShownBytesMax)));
  from.for_each([this](int number) { --member(number).announcements_due; });
  FARANDOLE_TRY(record_announcement_in_full(from, item.signature, item.context));
  recheck_if_joined(from);
  return {};
}

Status Coordinator::apply(const MemberSet& from, const AnnounceJoin& item) {
  const auto order_of_join = [this](int number) {
    return std::pair(member(number).calls_before_join, number);
  };
  from.for_each([&](int number) {
    member(number).joined = true;
    member(number).calls_before_join = item.calls;
    if (!member_joined_last_ || order_of_join(number) > order_of_join(*member_joined_last_))
      member_joined_last_ = number;
  });
  learner_.restart();
  if (mode_ == Mode::kPlan)
    stop_members({});
  else
    recheck_if_joined(from);
  return {};
}

void Coordinator::recheck_if_joined(const MemberSet& members) {
  bool any_counts_as_joined = false;
  members.for_each([&](int number) { any_counts_as_joined |= member(number).counts_as_joined(); });
  if (any_counts_as_joined) recheck_pending();
}

// A signature that has an id must not be announced in full, because every member knows the id
// before it can announce the signature again. A member that has announced the first call with this
// signature gets the id with the step of that call. A member that has joined gets the id before its
// release.
Status Coordinator::record_announcement_in_full(const MemberSet& from, const Signature& signature,
                                                const SubmissionContext& context) {
  if (const auto id = names_.id_of(digest_of(signature)); id != 0)
    return Status::stop(format_text("it announces `{}` in full, but this call has the id {}",
                                    shortened(signature.name, kNameShownBytesMax), id));
  return record_announcement(from, signature, 0, context);
}

Status Coordinator::record_announcement(const MemberSet& from, const Signature& signature,
                                        std::uint32_t id, const SubmissionContext& context) {
  // The sender announced a planned call because it did not know yet that the plan had begun. The
  // announcement is not needed any more.
  if (mode_ == Mode::kPlan && id != 0 && fragment_of(id) != 0) return {};
  auto& candidates = pending_calls_[signature.name];
  if (std::ranges::any_of(
          candidates, [&](const auto& candidate) { return candidate.members.intersects(from); }))
    return Status::stop(format_text("it announces `{}` a second time",
                                    shortened(signature.name, kNameShownBytesMax)));
  auto matching = std::ranges::find(candidates, signature, &Candidate::signature);
  if (matching == candidates.end())
    matching = candidates.insert(
        matching, {signature, id, {}, std::vector<SubmissionContext>(members_.size())});
  matching->members.insert(from);
  from.for_each(
      [&](int number) { matching->contexts[static_cast<std::size_t>(number)] = context; });
  if (mode_ == Mode::kPlan) {
    if (is_complete(candidates) ||
        learner_.plan().has_name(digest_of(std::string_view(signature.name))))
      stop_members({});
  } else if (is_complete(candidates)) {
    const auto complete_call = pending_calls_.extract(signature.name);
    decide(complete_call.key(), complete_call.mapped());
  }
  return {};
}

MemberSet Coordinator::missing_members(const Candidates& candidates) const {
  MemberSet missing;
  for (int member = 0; member < static_cast<int>(members_.size()); ++member)
    if (std::ranges::none_of(
            candidates, [&](const auto& candidate) { return candidate.members.contains(member); }))
      missing.insert(member);
  return missing;
}

bool Coordinator::is_complete(const Candidates& candidates) const {
  int announced_members = 0;
  for (const auto& candidate : candidates) announced_members += candidate.members.count();
  if (static_cast<std::size_t>(announced_members) == members_.size()) return true;
  if (!member_joined_last_) return false;
  bool all_missing_joined = true;
  missing_members(candidates).for_each([&](int number) {
    all_missing_joined &= members_[static_cast<std::size_t>(number)].counts_as_joined();
  });
  return all_missing_joined;
}

// Call it when one more member counts as joined, because pending names no longer wait for that
// member.
void Coordinator::recheck_pending() {
  std::vector<std::string> names;
  for (const auto& [name, candidates] : pending_calls_) names.push_back(name);
  std::ranges::sort(names);
  for (const auto& name : names) {
    // decide() may forget the id of a later name and drop its announcements, so look it up again.
    const auto pending_call = pending_calls_.find(name);
    if (pending_call == pending_calls_.end() || !is_complete(pending_call->second)) continue;
    const auto complete_call = pending_calls_.extract(pending_call);
    decide(complete_call.key(), complete_call.mapped());
  }
  release_when_all_joined();
}

void Coordinator::release_when_all_joined() {
  if (!std::ranges::all_of(members_, &Member::counts_as_joined)) return;
  CHECK(pending_calls_.empty(), "a name that waits for no member is decided");
  stream_.add(StreamItem(ReleaseAll{generation_, sequence_next_++,
                                    ranks_[static_cast<std::size_t>(*member_joined_last_)]}));
  for (auto& member : members_) member.joined = false;
  member_joined_last_.reset();
}

void Coordinator::decide(const std::string& name, const Candidates& candidates) {
  const auto& first = candidates.front();
  const auto joined_members = missing_members(candidates);
  const auto has_error = [](const Candidate& candidate) {
    return candidate.signature.has_call_error();
  };
  if (std::ranges::any_of(candidates, has_error))
    reject(name, call_error_text(variants_of(candidates)));
  else if (const auto numbers = ranks_by_unnamed_number(candidates); numbers.size() > 1)
    reject(name, unnamed_text(first.signature, numbers));
  else if (candidates.size() > 1)
    reject(name, mismatch_text(variants_of(candidates)));
  else if (!joined_members.empty() && !row_of(first.signature.operation).allowed_while_joined)
    reject(name, joined_text(first.signature, ranks_of(joined_members)));
  else
    issue_step(first);
}

void Coordinator::reject(const std::string& name, std::string text) {
  stream_.add(StreamItem(Reject{generation_, sequence_next_++, name, std::move(text)}));
}

void Coordinator::issue_step(const Candidate& candidate) {
  const auto id = candidate.id != 0 ? candidate.id : define(candidate.signature);
  names_.touch(id);
  if (!member_joined_last_) {
    const auto fragment =
        learner_.try_end_superstep(id, candidate.contexts) ? find_plan_start(id) : 0;
    publish_edits();
    if (fragment != 0) return start_plan(fragment);
    learner_.record(id, candidate.contexts);
  }
  stream_.add(StreamItem(Issue{generation_, sequence_next_++, id}));
}

// Returns the first fragment of the plan, if a plan begins at the synchronization point before the
// step with this id; otherwise 0.
std::uint32_t Coordinator::find_plan_start(std::uint32_t id) {
  if (sync_points_to_pass_ > 0) {
    --sync_points_to_pass_;
    return 0;
  }
  std::vector<std::uint32_t> announced;
  for (const auto& [name, candidates] : pending_calls_) {
    for (const auto& candidate : candidates) {
      if (candidate.id != 0 && fragment_of(candidate.id) != 0)
        announced.push_back(candidate.id);
      else if (learner_.plan().has_name(digest_of(std::string_view(name))))
        return 0;  // this name is planned with another signature, so the plan would mispredict
    }
  }
  return learner_.choose_start(id, announced);
}

// Starts the plan instead of issuing the next step. Drops announcements of planned submissions.
void Coordinator::start_plan(std::uint32_t fragment) {
  stream_.add(StreamItem(Follow{generation_, sequence_next_ - 1, fragment}));
  mode_ = Mode::kPlan;
  for (auto entry = pending_calls_.begin(); entry != pending_calls_.end();) {
    std::erase_if(entry->second,
                  [this](const Candidate& candidate) { return fragment_of(candidate.id) != 0; });
    entry = entry->second.empty() ? pending_calls_.erase(entry) : std::next(entry);
  }
}

void Coordinator::publish_edits() {
  for (const auto& item : learner_.take_edits()) stream_.add(item);
}

// Returns the fragment that contains this id; 0 if no fragment contains it.
std::uint32_t Coordinator::fragment_of(std::uint32_t id) const {
  const auto* interned = names_.find(id);
  const auto* fragment =
      interned == nullptr ? nullptr : learner_.plan().fragment_of(interned->digest);
  return fragment == nullptr ? 0 : fragment->number;
}

std::uint32_t Coordinator::define(const Signature& signature) {
  if (names_.size() == names_max_) forget(names_.least_recent_id());
  CHECK(id_defined_last_ != kNumberMax, "a group has fewer than 2^32 − 1 definitions");
  const auto id = ++id_defined_last_;
  names_.define(id, signature);
  stream_.add(StreamItem(Define{id, signature}));
  return id;
}

void Coordinator::forget(std::uint32_t id) {
  // A member that has announced a call by this id announces the call again when it receives the
  // Forget message.
  const auto& signature = names_.find(id)->signature;
  if (const auto pending_call = pending_calls_.find(signature.name);
      pending_call != pending_calls_.end()) {
    auto& candidates = pending_call->second;
    const auto dropped = std::ranges::find(candidates, id, &Candidate::id);
    if (dropped != candidates.end()) {
      dropped->members.for_each([this](int number) { ++member(number).announcements_due; });
      candidates.erase(dropped);
    }
    if (candidates.empty()) pending_calls_.erase(pending_call);
  }
  learner_.forget(id);
  publish_edits();
  names_.forget(id);
  stream_.add(StreamItem(Forget{id}));
}

std::vector<Variant> Coordinator::variants_of(const Candidates& candidates) const {
  std::vector<Variant> variants;
  for (const auto& candidate : candidates)
    variants.push_back({candidate.signature, ranks_of(candidate.members)});
  return variants;
}

// Groups the ranks by the SubmissionContext::unnamed_number of the call that they have announced.
// The result is empty if the call has a name; its number is then 0.
RanksByNumber Coordinator::ranks_by_unnamed_number(const Candidates& candidates) const {
  RanksByNumber ranks_by_number;
  const auto& first = candidates.front();
  if (first.contexts[static_cast<std::size_t>(first.members.first())].unnamed_number == 0)
    return ranks_by_number;
  for (const auto& candidate : candidates)
    candidate.members.for_each([&](int number) {
      const auto member = static_cast<std::size_t>(number);
      ranks_by_number[candidate.contexts[member].unnamed_number].push_back(ranks_[member]);
    });
  return ranks_by_number;
}

std::vector<int> Coordinator::ranks_of(const MemberSet& members) const {
  std::vector<int> ranks;
  members.for_each([&](int member) { ranks.push_back(ranks_[static_cast<std::size_t>(member)]); });
  return ranks;
}

}  // namespace farandole
