#include "coordination/learner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/digest.h"
#include "coordination/fusion_planner.h"

namespace farandole {
namespace {

constexpr std::size_t kSegmentsMax = 4096;
constexpr std::size_t kWaitsMax = 4096;
constexpr std::size_t kSuccessorsMax = 256;
constexpr int kRoundsAlike = 3;
// A wait for the same submissions is learned the second time it is seen. A wait for any at one
// bucket is learned the fourth time.
constexpr int kWaitsAlike = 2;
constexpr int kWaitsAtOneBucket = 4;

std::uint64_t digest_of_set(std::vector<std::uint32_t> ids) {
  std::ranges::sort(ids);
  Digest digest;
  for (const auto id : ids) digest.add(id);
  return digest.value();
}

template <class Range, class Value>
bool contains(const Range& range, const Value& value) {
  return std::ranges::find(range, value) != std::ranges::end(range);
}

}  // namespace

void Learner::edit(const auto& item) {
  CHECK(plan_.apply(item).ok(), "what is learned fits to what is planned");
  edits_.emplace_back(item);
}

void Learner::restart(std::vector<std::uint32_t> quiet_points) {
  run_.clear();
  ids_of_run_.clear();
  quiet_points_ = std::move(quiet_points);
  began_at_border_ = false;
  has_repetition_ = false;
  atom_last_ = 0;
  rounds_alike_ = 0;
}

bool Learner::is_border(std::uint32_t id, const std::vector<Moment>& moments) {
  if (is_after_all(moments)) {
    end_segment();
    const auto atom_last = atom_last_;
    restart();
    atom_last_ = atom_last;
    began_at_border_ = true;
    return true;
  }
  return ids_of_run_.contains(id) && end_round();
}

bool Learner::is_after_all(const std::vector<Moment>& moments) const {
  if (quiet_points_.empty()) return false;
  for (std::size_t member = 0; member < moments.size(); ++member) {
    const auto ahead = moments[member].quiet_points - quiet_points_[member];
    if (static_cast<std::int32_t>(ahead) <= 0) return false;
  }
  return true;
}

void Learner::note(std::uint32_t id, const std::vector<Moment>& moments) {
  run_.push_back({id, moments});
  ids_of_run_.insert(id);
  if (quiet_points_.empty())
    for (const auto& moment : moments) quiet_points_.push_back(moment.quiet_points);
  for (std::size_t member = 0; member < moments.size(); ++member) {
    const auto ahead = moments[member].quiet_points - quiet_points_[member];
    if (static_cast<std::int32_t>(ahead) > 0) quiet_points_[member] = moments[member].quiet_points;
  }
}

void Learner::end_segment() {
  if (!began_at_border_ || has_repetition_) {
    atom_last_ = 0;
    return;
  }
  const bool known = is_known(atoms_of_run());
  const bool repeats = known || remember(digest_of_run());
  if (repeats && !known) learn_run();
  if (repeats)
    follow(atoms_of_run());
  else
    atom_last_ = 0;
}

// An id comes again although the program has not waited for all. So perhaps the steps between the
// two repeat.
bool Learner::end_round() {
  const auto round = digest_of_run();
  rounds_alike_ = round == round_last_ ? rounds_alike_ + 1 : 1;
  round_last_ = round;
  has_repetition_ = true;
  atom_last_ = 0;
  const bool repeats = rounds_alike_ >= kRoundsAlike;
  if (repeats) {
    if (!is_known(atoms_of_run())) learn_run();
    const auto atoms = atoms_of_run();
    follow(atoms);
    // Anywhere, because each member decides for itself whether it waits for all submissions in
    // between.
    add_one_succession(atom_last_, choose(atom_last_, atoms, Where::kInside), Where::kAnywhere);
  }
  run_.clear();
  ids_of_run_.clear();
  return repeats;
}

std::uint64_t Learner::digest_of_run() const {
  Ids ids;
  for (const auto& issued : run_) ids.push_back(issued.id);
  return digest_of_set(std::move(ids));
}

// True if it was seen before.
bool Learner::remember(std::uint64_t segment) {
  if (segments_seen_.size() >= kSegmentsMax) segments_seen_.clear();
  return !segments_seen_.insert(segment).second;
}

std::uint32_t Learner::atom_of(std::uint32_t id) const {
  const auto* known = names_.find(id);
  const auto* atom = known == nullptr ? nullptr : plan_.atom_of(known->digest);
  return atom == nullptr ? 0 : atom->number;
}

// In their order, with a 0 if a submission is in no atom.
Learner::Ids Learner::atoms_of_run() const {
  Ids atoms;
  for (const auto& issued : run_)
    if (const auto atom = atom_of(issued.id); !contains(atoms, atom)) atoms.push_back(atom);
  return atoms;
}

// Whether these atoms together are the run.
bool Learner::is_known(const Ids& atoms) const {
  std::size_t ids = 0;
  for (const auto atom : atoms) {
    if (atom == 0) return false;
    for (const auto& bucket : plan_.find(atom)->buckets) ids += bucket.ids.size();
  }
  return ids == run_.size();
}

void Learner::learn_run() {
  for (const auto atom : atoms_of_run())
    if (atom != 0) cut(atom);
  Ids ids;
  std::vector<FusionItem> items;
  for (const auto& [id, moments] : run_) {
    if (atom_of(id) != 0) continue;
    const auto& known = *names_.find(id);
    ids.push_back(id);
    items.push_back({known.fusion_key, known.bytes, moments.front().batch, {}});
    for (const auto& moment : moments) items.back().waits.push_back(moment.waits);
  }
  Buckets buckets;
  for (const auto& planned : plan_buckets(items, fusion_bytes_)) {
    auto& bucket = buckets.emplace_back();
    for (const auto index : planned) bucket.push_back(ids[index]);
  }
  if (!buckets.empty()) define(buckets);
}

// Cuts the atom into what the run contains and the rest. The shared part comes first: when it
// comes, it is still unknown whether the rest will.
void Learner::cut(std::uint32_t atom) {
  Buckets inside;
  Buckets outside;
  for (const auto& bucket : plan_.find(atom)->buckets) {
    Ids in;
    Ids out;
    for (const auto id : bucket.ids) (ids_of_run_.contains(id) ? in : out).push_back(id);
    if (!in.empty()) inside.push_back(in);
    if (!out.empty()) outside.push_back(out);
  }
  if (!outside.empty()) split(atom, inside, outside);
}

void Learner::split(std::uint32_t atom, const Buckets& first, const Buckets& second) {
  auto before = predecessors(atom);
  auto after = successors(atom);
  edit(DropAtom{atom});
  const auto front = define(first);
  const auto back = define(second);
  for (auto& [one, where] : before)
    if (one == atom) one = back;
  for (auto& [one, where] : after)
    if (one == atom) one = front;
  add_one_succession(front, back, Where::kInside);
  connect(before, front, back, after);
  if (atom_last_ == atom) atom_last_ = back;
}

void Learner::replace(std::uint32_t atom, const Buckets& buckets, const Neighbours& before,
                      const Neighbours& after) {
  edit(DropAtom{atom});
  for (const auto& bucket : buckets) edit(AddBucket{atom, bucket});
  connect(before, atom, atom, after);
}

void Learner::connect(const Neighbours& before, std::uint32_t first, std::uint32_t last,
                      const Neighbours& after) {
  for (const auto& [one, where] : before) add_one_succession(one, first, where);
  for (const auto& [one, where] : after) add_one_succession(last, one, where);
}

std::uint32_t Learner::define(const Buckets& buckets) {
  const auto atom = ++atom_defined_last_;
  for (const auto& bucket : buckets) edit(AddBucket{atom, bucket});
  return atom;
}

Learner::Neighbours Learner::predecessors(std::uint32_t atom) const {
  Neighbours all;
  for (const auto& [number, from] : plan_.atoms())
    for (const auto& succession : from.successors)
      if (succession.to->number == atom) all.emplace_back(number, succession.where);
  std::ranges::sort(all);
  return all;
}

Learner::Neighbours Learner::successors(std::uint32_t atom) const {
  Neighbours all;
  for (const auto& [to, where] : plan_.find(atom)->successors) all.emplace_back(to->number, where);
  return all;
}

void Learner::add_one_succession(std::uint32_t from, std::uint32_t to, Where where) {
  const auto& known = plan_.find(from)->successors;
  const auto same = std::ranges::find(known, plan_.find(to), &Plan::Succession::to);
  if (same == known.end() ? known.size() < kSuccessorsMax : !same->holds(where))
    edit(AddSuccession{from, to, where});
}

// These atoms came behind a border, in any order.
void Learner::follow(Ids atoms) {
  for (auto where = Where::kBehindBorder; !atoms.empty(); where = Where::kInside) {
    const auto next = choose(atom_last_, atoms, where);
    if (atom_last_ != 0) add_one_succession(atom_last_, next, where);
    atom_last_ = next;
    std::erase(atoms, next);
  }
}

// Which of the atoms comes next: one that is already known as a successor. Otherwise, to learn few
// successions, the oldest one that follows none of the others within its segment.
std::uint32_t Learner::choose(std::uint32_t from, const Ids& atoms, Where where) const {
  if (from != 0)
    for (const auto& succession : plan_.find(from)->successors)
      if (succession.holds(where) && contains(atoms, succession.to->number))
        return succession.to->number;
  auto sorted = atoms;
  std::ranges::sort(sorted);
  const auto follows_another = [&](std::uint32_t atom) {
    return std::ranges::any_of(sorted, [&](std::uint32_t other) {
      const auto& known = plan_.find(other)->successors;
      const auto same = std::ranges::find(known, plan_.find(atom), &Plan::Succession::to);
      return other != atom && same != known.end() && same->holds(Where::kInside);
    });
  };
  const auto first = std::ranges::find_if_not(sorted, follows_another);
  return first == sorted.end() ? sorted.front() : *first;
}

std::uint32_t Learner::start_for(std::uint32_t id, const Ids& announced) {
  Ids atoms = {atom_of(id)};
  if (atoms.front() == 0) return 0;
  for (const auto other : announced)
    if (const auto atom = atom_of(other); atom != 0) atoms.push_back(atom);
  const auto next = choose(atom_last_, atoms, Where::kBehindBorder);
  // An atom that only follows others inside their segments does not begin one. The one that does is
  // not announced yet.
  bool leads = true;
  for (const auto& [before, where] : predecessors(next)) {
    if (before == atom_last_ && where != Where::kInside) return next;
    leads &= before == next || where != Where::kInside;
  }
  if (!leads) return 0;
  if (atom_last_ != 0) add_one_succession(atom_last_, next, Where::kBehindBorder);
  return next;
}

std::uint32_t Learner::add_succession(std::uint32_t from, const Ids& to, Where where) {
  Ids atoms;
  for (const auto atom : to)
    if (plan_.find(atom) != nullptr && !contains(atoms, atom)) atoms.push_back(atom);
  if (plan_.find(from) == nullptr || atoms.empty()) return 0;
  const auto next = choose(from, atoms, where);
  add_one_succession(from, next, where);
  return next;
}

void Learner::learn_wait(std::uint32_t atom, std::uint32_t bucket, const Ids& ready) {
  const auto* found = plan_.find(atom);
  if (found == nullptr || bucket >= found->buckets.size()) return;
  Ids missing;
  for (const auto id : found->buckets[bucket].ids)
    if (!contains(ready, id)) missing.push_back(id);
  if (waits_seen_.size() > kWaitsMax) waits_seen_.clear();
  const auto here = digest_of_set(found->buckets[bucket].ids);
  const int alike = ++waits_seen_[digest_of_set(missing) ^ here];
  if (alike < kWaitsAlike && ++waits_seen_[here] < kWaitsAtOneBucket) return;

  Buckets before;
  Buckets first;
  Buckets second;
  for (std::size_t index = 0; index < found->buckets.size(); ++index) {
    const auto& ids = found->buckets[index].ids;
    Ids in;
    Ids out;
    for (const auto id : ids) (index < bucket || contains(ready, id) ? in : out).push_back(id);
    if (!in.empty()) (index < bucket ? before : first).push_back(in);
    if (!out.empty()) second.push_back(out);
  }
  if (first.empty()) return before.empty() ? void() : split(atom, before, second);
  for (const auto* part : {&first, &second})
    before.insert(before.end(), part->begin(), part->end());
  replace(atom, before, predecessors(atom), successors(atom));
}

// From now on the atom follows other atoms only inside a segment: the ready ones, and those that it
// followed there before. It no longer follows itself, and the ready atoms follow it only behind a
// border.
void Learner::learn_order(std::uint32_t atom, const Ids& ready) {
  const auto* found = plan_.find(atom);
  if (found == nullptr) return;
  Neighbours before;
  for (const auto other : ready)
    if (other != atom && plan_.find(other) != nullptr) before.emplace_back(other, Where::kInside);
  if (before.empty()) return;
  if (waits_seen_.size() > kWaitsMax) waits_seen_.clear();
  // Does not share its count with the waits at that bucket.
  if (++waits_seen_[~digest_of_set(found->buckets.front().ids)] % kWaitsAlike != 0) return;
  for (const auto& [one, where] : predecessors(atom))
    if (where != Where::kBehindBorder) before.emplace_back(one, Where::kInside);
  auto after = successors(atom);
  std::erase_if(after, [atom](const auto& one) { return one.first == atom; });
  for (auto& [one, where] : after)
    if (contains(ready, one)) where = Where::kBehindBorder;
  Buckets buckets;
  for (const auto& bucket : found->buckets) buckets.push_back(bucket.ids);
  replace(atom, buckets, before, after);
}

void Learner::forget(std::uint32_t id) {
  if (ids_of_run_.contains(id)) restart();
  const auto atom = atom_of(id);
  if (atom == 0) return;
  if (atom_last_ == atom) atom_last_ = 0;
  edit(DropAtom{atom});
}

}  // namespace farandole
