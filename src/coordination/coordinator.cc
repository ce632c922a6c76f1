#include "coordination/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/try.h"
#include "coordination/decision.h"
#include "coordination/refusal_text.h"

namespace farandole {
namespace {

constexpr std::uint32_t kNumberMax = std::numeric_limits<std::uint32_t>::max();

}  // namespace

Coordinator::Coordinator(std::vector<int> ranks, std::size_t names_max)
    : ranks_(std::move(ranks)), members_(ranks_.size()), names_max_(names_max) {
  CHECK(!ranks_.empty(), "a group has members");
  CHECK(names_max_ >= 1, "the step that is being issued needs an id");
}

Status Coordinator::receive(int from, std::span<const std::byte> message) {
  CHECK(from >= 0 && static_cast<std::size_t>(from) < ranks_.size(), "the sender is a member");
  FARANDOLE_TRY_ASSIGN(const auto items, decode_announcements(message));
  for (const auto& item : items) {
    const bool announces =
        !std::holds_alternative<Raise>(item) && !std::holds_alternative<Report>(item);
    if (announces && mode_ == Mode::kQueue)
      return Status::stop("it announces something in generation 1");
    if (mode_ == Mode::kStopped && member(from).report)
      return Status::stop("it goes on after its report");
    // What was announced before the report will be announced again after the answer.
    if (announces && mode_ == Mode::kStopped) continue;
    if (announces && member(from).joined && !std::holds_alternative<AnnounceAgain>(item))
      return Status::stop("it announces something new after it has joined");
    FARANDOLE_TRY(std::visit(
        [this, from](const auto& alternative) { return apply(from, alternative); }, item));
  }
  return {};
}

Status Coordinator::apply(int /*from*/, const Raise& item) {
  if (mode_ == Mode::kStopped) return {};
  if (item.generation != generation_)
    return Status::stop(fmt::format("it raises in generation {}, the current one is {}",
                                    item.generation, generation_));
  stop();
  return {};
}

void Coordinator::stop() {
  mode_ = Mode::kStopped;
  for (auto& member : members_) member.report.reset();
  stream_.add(StreamItem(Stop{generation_}));
}

Status Coordinator::apply(int from, const Report& item) {
  if (mode_ != Mode::kStopped || item.generation != generation_)
    return Status::stop(
        fmt::format("it reports for generation {}, which nobody asked for", item.generation));
  FARANDOLE_TRY(problem_of_report(item));
  member(from).report = item;
  if (std::ranges::all_of(members_, [](const Member& one) { return one.report.has_value(); }))
    answer();
  return {};
}

// A member enters a number when it has completed the one before it, which all have entered.
Status Coordinator::problem_of_report(const Report& item) const {
  for (std::size_t index = 0; index < members_.size(); ++index) {
    const auto& other = members_[index].report;
    if (!other) continue;
    const auto ahead = item.completed - other->completed;
    const bool possible = ahead == 0 || (ahead == 1 && other->entered == 1) ||
                          (ahead == kNumberMax && item.entered == 1);
    if (possible) continue;
    return Status::stop(
        fmt::format("it reports {} completed and {} entered, rank {} reported {} and {}",
                    item.completed, item.entered, ranks_[index], other->completed, other->entered));
  }
  return {};
}

// Up to which all have entered alike. Between two reports one may have completed what the other
// has only entered: then all have entered it.
std::uint32_t Coordinator::common_prefix() const {
  const auto& first = *members_.front().report;
  bool alike = true;
  std::uint32_t completed = first.completed;
  for (const auto& [joined, due, report] : members_) {
    alike &= report->completed == first.completed && report->entered == 1 &&
             report->identity == first.identity;
    if (report->completed == completed + 1) ++completed;
  }
  return alike ? completed + 1 : completed;
}

// All that was announced before is announced again if it still counts.
void Coordinator::answer() {
  const auto prefix = common_prefix();
  pending_.clear();
  for (auto& member : members_) member = {};
  ++generation_;
  sequence_next_ = prefix + 1;
  mode_ = Mode::kLearn;
  stream_.add(StreamItem(Answer{generation_, prefix, 0}));
}

Status Coordinator::apply(int from, const AnnounceInFull& item) {
  return note_in_full(from, item.signature, item.moment);
}

Status Coordinator::apply(int from, const AnnounceById& item) {
  if (item.id > id_defined_last_)
    return Status::stop(fmt::format("it announces the id {}, the last that was given is {}",
                                    item.id, id_defined_last_));
  const auto* known = names_.find(item.id);
  if (known == nullptr) {  // forgotten meanwhile
    ++member(from).announcements_due;
    return {};
  }
  return note(from, known->signature, item.id, item.moment);
}

Status Coordinator::apply(int from, const AnnounceAgain& item) {
  if (member(from).announcements_due == 0)
    return Status::stop(fmt::format("it announces `{}` again, which was not forgotten",
                                    shortened(item.signature.name, 200)));
  --member(from).announcements_due;
  FARANDOLE_TRY(note_in_full(from, item.signature, item.moment));
  if (member(from).counts_as_joined()) examine_again();
  return {};
}

Status Coordinator::apply(int from, const AnnounceJoin& /*item*/) {
  member(from).joined = true;
  joined_last_ = from;
  if (member(from).counts_as_joined()) examine_again();
  return {};
}

// Who gets a definition had announced the signature and got its step with it, or has joined and
// cannot announce before the release, which comes later: so nobody announces in full what has an
// id.
Status Coordinator::note_in_full(int from, const Signature& signature, const Moment& moment) {
  if (const auto id = names_.id_of(digest_of(signature)); id != 0)
    return Status::stop(fmt::format("it announces `{}` in full, which has the id {}",
                                    shortened(signature.name, 200), id));
  return note(from, signature, 0, moment);
}

Status Coordinator::note(int from, const Signature& signature, std::uint32_t id,
                         const Moment& moment) {
  auto& candidates = pending_[signature.name];
  for (const auto& candidate : candidates) {
    if (std::ranges::find(candidate.members, from) != candidate.members.end())
      return Status::stop(
          fmt::format("it announces `{}` a second time", shortened(signature.name, 200)));
  }
  auto same = std::ranges::find(candidates, signature, &Candidate::signature);
  if (same == candidates.end())
    same = candidates.insert(candidates.end(), Candidate{signature, id, {}, {}});
  same->members.push_back(from);
  same->moments.push_back(moment);
  if (is_complete(candidates)) {
    const auto complete = pending_.extract(signature.name);
    decide(complete.key(), complete.mapped());
  }
  return {};
}

std::vector<int> Coordinator::missing(const Candidates& candidates) const {
  std::vector<bool> announced(members_.size());
  for (const auto& candidate : candidates)
    for (const int member : candidate.members) announced[static_cast<std::size_t>(member)] = true;
  std::vector<int> members;
  for (std::size_t member = 0; member < announced.size(); ++member)
    if (!announced[member]) members.push_back(static_cast<int>(member));
  return members;
}

bool Coordinator::is_complete(const Candidates& candidates) const {
  std::size_t announced = 0;
  for (const auto& candidate : candidates) announced += candidate.members.size();
  if (announced == members_.size()) return true;
  if (std::ranges::none_of(members_, &Member::counts_as_joined)) return false;
  return std::ranges::all_of(missing(candidates), [this](int member) {
    return members_[static_cast<std::size_t>(member)].counts_as_joined();
  });
}

// Somebody counts as joined from now on: what was pending may have waited for nobody else.
void Coordinator::examine_again() {
  std::vector<std::string> names;
  for (const auto& [name, candidates] : pending_) names.push_back(name);
  std::ranges::sort(names);
  for (const auto& name : names) {
    // A step may make a name be forgotten, and with it announcements of what comes later here.
    const auto found = pending_.find(name);
    if (found == pending_.end() || !is_complete(found->second)) continue;
    const auto complete = pending_.extract(found);
    decide(complete.key(), complete.mapped());
  }
  release_when_all_joined();
}

void Coordinator::release_when_all_joined() {
  if (!std::ranges::all_of(members_, &Member::counts_as_joined)) return;
  CHECK(pending_.empty(), "what waits for nobody is decided");
  stream_.add(StreamItem(
      ReleaseAll{generation_, sequence_next_++, ranks_[static_cast<std::size_t>(joined_last_)]}));
  for (auto& member : members_) member.joined = false;
}

void Coordinator::decide(const std::string& name, const Candidates& candidates) {
  const auto& first = candidates.front();
  const auto joined = missing(candidates);
  if (candidates.size() > 1)
    refuse(name, mismatch_text(candidates));
  else if (!joined.empty() && !row_of(first.signature.operation).runs_joined)
    refuse(name, joined_text(first.signature, ranks_of(joined)));
  else
    issue(first);
}

void Coordinator::refuse(const std::string& name, std::string text) {
  stream_.add(StreamItem(Refuse{generation_, sequence_next_++, name, std::move(text)}));
}

void Coordinator::issue(const Candidate& candidate) {
  const auto id = candidate.id != 0 ? candidate.id : define(candidate.signature);
  names_.touch(id);
  stream_.add(StreamItem(Issue{generation_, sequence_next_++, id}));
}

std::uint32_t Coordinator::define(const Signature& signature) {
  if (names_.size() == names_max_) forget(names_.least_recent());
  CHECK(id_defined_last_ != kNumberMax, "a group has fewer than 2^32 − 1 definitions");
  const auto id = ++id_defined_last_;
  names_.define(id, signature);
  stream_.add(StreamItem(Define{id, signature}));
  return id;
}

void Coordinator::forget(std::uint32_t id) {
  // Who announced it by this id will announce it again on seeing the Forget.
  const auto& signature = names_.find(id)->signature;
  if (const auto pending = pending_.find(signature.name); pending != pending_.end()) {
    auto& candidates = pending->second;
    const auto fallen = std::ranges::find(candidates, id, &Candidate::id);
    if (fallen != candidates.end()) {
      for (const int from : fallen->members) ++member(from).announcements_due;
      candidates.erase(fallen);
    }
    if (candidates.empty()) pending_.erase(pending);
  }
  names_.forget(id);
  stream_.add(StreamItem(Forget{id}));
}

std::string Coordinator::mismatch_text(const Candidates& candidates) const {
  std::vector<Variant> variants;
  for (const auto& candidate : candidates)
    variants.push_back({candidate.signature, ranks_of(candidate.members)});
  return refusal_text(std::move(variants));
}

std::vector<int> Coordinator::ranks_of(const std::vector<int>& members) const {
  std::vector<int> ranks;
  for (const int member : members) ranks.push_back(ranks_[static_cast<std::size_t>(member)]);
  return ranks;
}

}  // namespace farandole
