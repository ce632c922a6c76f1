// Learner: watches the steps that the coordinator issues, finds what repeats, and makes a plan of
// it. Pure bookkeeping: what it concludes is a prediction, never a promise.
// A border is a step before which every member had seen all earlier ones completed; a segment is
// what lies between two borders. A segment that was seen twice becomes an atom. Atoms are disjoint:
// where a new one overlaps another in part, both are cut into what they share and what they do not.
// Programs without borders: what repeats without a repetition inside, three times in a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "coordination/messages.h"
#include "coordination/moment.h"
#include "coordination/name_table.h"
#include "coordination/plan.h"

namespace farandole {

class Learner {
 public:
  // `names` outlives this. What gets an id there may be planned.
  Learner(const NameTable& names, std::int64_t fusion_bytes)
      : names_(names), fusion_bytes_(fusion_bytes), plan_(names) {}

  const Plan& plan() const { return plan_; }
  // How the plan has changed since the last call; in this order they make the same plan of another.
  std::vector<StreamItem> take_edits() { return std::exchange(edits_, {}); }

  // From here on steps come that were not expected: a border must be found first. It may be the
  // first of them, if the members are known to have entered nothing since these quiet points.
  void restart(std::vector<std::uint32_t> quiet_points = {});
  // The step of this id comes next, submitted by every member at such a moment. True if what came
  // before it is complete: then a plan may begin here.
  bool is_border(std::uint32_t id, const std::vector<Moment>& moments);
  // It was issued.
  void note(std::uint32_t id, const std::vector<Moment>& moments);
  // The atom with which the plan begins at a border before this id; 0 if the id is in none. Of the
  // others that members have `announced` one may come before it.
  std::uint32_t start_for(std::uint32_t id, const std::vector<std::uint32_t>& announced);

  // Learned from a raise: this atom may be followed by one of those; which one, 0 if none is
  // planned.
  std::uint32_t add_succession(std::uint32_t from, const std::vector<std::uint32_t>& to,
                               Where where);
  // Of this bucket (and what comes after it) only these ids were ready for long. What happens twice
  // is learned: they come first from now on, in buckets of their own.
  void learn_wait(std::uint32_t atom, std::uint32_t bucket,
                  const std::vector<std::uint32_t>& ready);
  // Of this atom, with which the plan began, nothing was ready for long, but something of those.
  // What happens twice is learned: it follows them.
  void learn_order(std::uint32_t atom, const std::vector<std::uint32_t>& ready);
  // It must not be planned any more.
  void forget(std::uint32_t id);

 private:
  struct Issued {
    std::uint32_t id;
    std::vector<Moment> moments;
  };
  using Ids = std::vector<std::uint32_t>;
  using Buckets = std::vector<Ids>;

  void edit(const auto& item);
  bool is_after_all(const std::vector<Moment>& moments) const;
  void end_segment();
  bool end_round();
  std::uint64_t digest_of_run() const;
  bool remember(std::uint64_t segment);
  std::uint32_t atom_of(std::uint32_t id) const;
  Ids atoms_of_run() const;
  bool is_known(const Ids& atoms) const;
  void learn_run();
  void cut(std::uint32_t atom);
  void split(std::uint32_t atom, const Buckets& first, const Buckets& second);
  // Each with its place: the atoms that it follows, and those that follow it.
  using Neighbours = std::vector<std::pair<std::uint32_t, Where>>;
  void replace(std::uint32_t atom, const Buckets& buckets, const Neighbours& before,
               const Neighbours& after);
  std::uint32_t define(const Buckets& buckets);
  Neighbours predecessors(std::uint32_t atom) const;
  Neighbours successors(std::uint32_t atom) const;
  void connect(const Neighbours& before, std::uint32_t first, std::uint32_t last,
               const Neighbours& after);
  void add_one_succession(std::uint32_t from, std::uint32_t to, Where where);
  void follow(Ids atoms);
  std::uint32_t choose(std::uint32_t from, const Ids& atoms, Where where) const;

  const NameTable& names_;
  std::int64_t fusion_bytes_;
  Plan plan_;
  std::vector<StreamItem> edits_;
  std::uint32_t atom_defined_last_ = 0;

  // What was issued since the last border, or since an id came again.
  std::vector<Issued> run_;
  std::unordered_set<std::uint32_t> ids_of_run_;
  std::vector<std::uint32_t> quiet_points_;  // of each member, the most since the last border
  bool began_at_border_ = false;
  bool has_repetition_ = false;
  std::uint32_t atom_last_ = 0;  // with which the last segment ended; 0 if that is not known
  std::uint64_t round_last_ = 0;
  int rounds_alike_ = 0;

  std::unordered_set<std::uint64_t> segments_seen_;
  std::unordered_map<std::uint64_t, int> waits_seen_;
};

}  // namespace farandole
