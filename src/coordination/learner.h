// Learner: watches the steps that the coordinator issues, finds what repeats, and makes a plan of
// it. What it concludes is only a prediction. A synchronization point is a step before which every
// member had seen the completion of all earlier ones; a superstep is what lies between two
// synchronization points. A superstep that was seen twice becomes a fragment. Fragments are
// disjoint: if a new one overlaps another in part, both are cut into the shared part and the rests.
// If a program has no synchronization points, a sequence without inner repetition becomes a
// fragment when it was seen three times in a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "coordination/messages.h"
#include "coordination/name_table.h"
#include "coordination/plan.h"
#include "coordination/submission_context.h"

namespace farandole {

class Learner {
 public:
  // `names` must outlive this object. Signatures with an id may be planned.
  Learner(const NameTable& names, std::int64_t fusion_bytes)
      : names_(names), fusion_bytes_(fusion_bytes), plan_(names) {}

  const Plan& plan() const { return plan_; }
  // The edits of the plan since the last call. Applied in this order, they bring a copy up to date.
  std::vector<StreamItem> take_edits() { return std::exchange(edits_, {}); }

  // Begins again, because unexpected steps follow. The learner must find a synchronization point
  // first. The first step may be one, if the members have entered nothing since these quiescent
  // points.
  void restart(std::vector<std::uint32_t> quiescent_points = {});
  // The step of this id comes next; `contexts` are those of every member's submission. Returns true
  // if what came before it is complete, so that a plan may begin here.
  bool is_sync_point(std::uint32_t id, const std::vector<SubmissionContext>& contexts);
  // The step was issued.
  void note(std::uint32_t id, const std::vector<SubmissionContext>& contexts);
  // The fragment with which the plan begins, at a synchronization point before this id; 0 if no
  // fragment contains the id. If members have also `announced` ids of other fragments, one of these
  // may have to come first.
  std::uint32_t start_for(std::uint32_t id, const std::vector<std::uint32_t>& announced);

  // After a raise: learns that one of `to` may follow this fragment. Returns which; 0 if none of
  // them is planned.
  std::uint32_t add_edge(std::uint32_t from, const std::vector<std::uint32_t>& to, Where where);
  // For a long time only these ids of this bucket (and of those after it) were ready. If that
  // happens twice, they come first from now on, in buckets of their own.
  void learn_wait(std::uint32_t fragment, std::uint32_t bucket,
                  const std::vector<std::uint32_t>& ready);
  // The plan began with this fragment. For a long time none of it was ready, but some of `ready`
  // was. If that happens twice, the fragment follows these from now on.
  void learn_order(std::uint32_t fragment, const std::vector<std::uint32_t>& ready);
  // The id loses its signature, so it must not be planned any more.
  void forget(std::uint32_t id);

  // Approximate memory for what came since the last synchronization point. Before it would exceed
  // kHistoryBytesMax, the learner forgets all of that.
  std::size_t history_bytes() const { return run_.size() * kHistoryBytesOfStep; }

 private:
  struct Issued {
    std::uint32_t id;
    std::uint32_t batch;
    std::uint64_t waits;  // FusionItem::waits
  };
  // In `run_`, and a node and its bucket in `ids_of_run_`.
  static constexpr std::size_t kHistoryBytesOfStep = sizeof(Issued) + 5 * sizeof(void*);
  using Ids = std::vector<std::uint32_t>;
  using Buckets = std::vector<Ids>;

  void edit(const auto& item);
  void forget_run();
  bool all_passed_quiescent_point(const std::vector<SubmissionContext>& contexts) const;
  void end_superstep();
  bool end_round();
  std::uint64_t digest_of_run() const;
  bool remember(std::uint64_t superstep);
  std::uint32_t fragment_of(std::uint32_t id) const;
  Ids fragments_of_run() const;
  bool is_known(const Ids& fragments) const;
  void learn_run();
  void cut(std::uint32_t fragment);
  void split(std::uint32_t fragment, const Buckets& first, const Buckets& second);
  // The fragments that one fragment follows, or those that follow it; each with where it does so.
  using Neighbours = std::vector<std::pair<std::uint32_t, Where>>;
  void replace(std::uint32_t fragment, const Buckets& buckets, const Neighbours& before,
               const Neighbours& after);
  std::uint32_t define(const Buckets& buckets);
  Neighbours predecessors(std::uint32_t fragment) const;
  Neighbours successors(std::uint32_t fragment) const;
  void connect(const Neighbours& before, std::uint32_t first, std::uint32_t last,
               const Neighbours& after);
  void add_one_edge(std::uint32_t from, std::uint32_t to, Where where);
  void follow(Ids fragments);
  std::uint32_t choose(std::uint32_t from, const Ids& fragments, Where where) const;

  const NameTable& names_;
  std::int64_t fusion_bytes_;
  Plan plan_;
  std::vector<StreamItem> edits_;
  std::uint32_t fragment_defined_last_ = 0;

  // The steps since the last synchronization point, or since an id came again.
  std::vector<Issued> run_;
  std::unordered_set<std::uint32_t> ids_of_run_;
  std::vector<std::uint32_t>
      quiescent_points_;  // by member, the highest since the last synchronization point
  bool began_at_sync_point_ = false;
  bool has_repetition_ = false;
  std::uint32_t fragment_last_ = 0;  // the fragment that ended the last superstep; 0 if unknown
  std::uint64_t round_last_ = 0;
  int rounds_alike_ = 0;

  std::unordered_set<std::uint64_t> supersteps_seen_;
  std::unordered_map<std::uint64_t, int> waits_seen_;
};

}  // namespace farandole
