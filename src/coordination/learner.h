// Learner: watches the steps that the coordinator issues, finds repetitions, and makes a plan from
// them. A plan is only a prediction. A synchronization point is a step before which every member
// had seen the completion of all earlier steps. A superstep consists of the steps between two
// synchronization points. A superstep that was seen twice becomes a fragment. Fragments are
// disjoint. If a new fragment overlaps an old one in part, three fragments replace them: the shared
// part, the rest of the old fragment and the rest of the new one. In a program without
// synchronization points, a sequence of distinct ids (a round) becomes a fragment when it was seen
// three times in a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "control/messages.h"
#include "control/submission_context.h"
#include "coordination/name_table.h"
#include "coordination/plan.h"

namespace farandole {

class Learner {
 public:
  // `names` must outlive this object. It has the signatures that may be planned, by id.
  Learner(const NameTable& names, std::int64_t fusion_bytes)
      : names_(names), fusion_bytes_(fusion_bytes), plan_(names) {}

  const Plan& plan() const { return plan_; }
  // Returns the edits since the last call. To update a copy of the plan, apply them in this order.
  std::vector<StreamItem> take_edits() { return std::exchange(edits_, {}); }

  // Forgets the steps since the last synchronization point. Call it after events that record() does
  // not see, such as a replan or a join. If the caller gives the members' counts of quiescent
  // points so far, the next step may already be a synchronization point.
  void restart(std::vector<std::uint32_t> quiescent_points = {});
  // Call it before the step with this id is issued. `contexts` are the contexts of the members'
  // submissions. Returns true if a superstep ends just before this step, or if a round ends there
  // that has repeated often enough. In this case, the learner has learned the superstep or round,
  // and a plan may begin before this step.
  bool try_end_superstep(std::uint32_t id, const std::vector<SubmissionContext>& contexts);
  // Call it when the step was issued.
  void record(std::uint32_t id, const std::vector<SubmissionContext>& contexts);
  // Chooses the fragment with which a plan begins at this id; 0 if no plan can begin. The result is
  // the fragment of this id or of one of the ids that members have `announced`: the one that
  // probably comes first.
  std::uint32_t choose_start(std::uint32_t id, const std::vector<std::uint32_t>& announced);

  // Learns from a raise that one of the fragments `to` may follow `from`. Returns that fragment, or
  // 0 if there is none.
  std::uint32_t add_edge_to_one_of(std::uint32_t from, const std::vector<std::uint32_t>& to,
                                   EdgeKind kind);
  // Learns from a raise of a member that waited at this bucket. In the grace time, only the `ready`
  // ids of this bucket and of later buckets became ready. When this happens for the second time,
  // the `ready` ids get their own buckets before the other ids.
  void learn_wait(std::uint32_t fragment, std::uint32_t bucket,
                  const std::vector<std::uint32_t>& ready);
  // Learns from a raise of a member that waited at the beginning of this fragment. In the grace
  // time, no id of this fragment became ready, but ids of the `ready` fragments did. Every second
  // time that this happens, the fragment is put after the `ready` fragments.
  void learn_order(std::uint32_t fragment, const std::vector<std::uint32_t>& ready);
  // Drops the fragment of this id, because the id loses its signature.
  void forget(std::uint32_t id);

  // The approximate memory for the steps since the last synchronization point. Before it exceeds
  // kHistoryBytesMax, the learner forgets these steps.
  std::size_t history_bytes() const { return recent_steps_.size() * kHistoryBytesOfStep; }

 private:
  struct IssuedStep {
    std::uint32_t id;
    std::uint32_t batch;
    std::uint64_t waits;  // see FusionItem::waits
  };
  // The approximate memory of one step: an element of `recent_steps_`, and a node and a hash slot
  // of the set `recent_ids_`.
  static constexpr std::size_t kHistoryBytesOfStep = sizeof(IssuedStep) + 5 * sizeof(void*);
  using Ids = std::vector<std::uint32_t>;
  using Buckets = std::vector<Ids>;

  void apply_edit(const auto& item);
  void forget_recent_steps();
  bool all_passed_quiescent_point(const std::vector<SubmissionContext>& contexts) const;
  void end_superstep();
  bool end_round();
  std::uint64_t digest_of_recent_ids() const;
  // Returns whether this superstep was recorded before.
  bool record_superstep(std::uint64_t digest);
  std::uint32_t fragment_of(std::uint32_t id) const;
  Ids fragments_of_recent_steps() const;
  bool recent_steps_consist_of(const Ids& fragments) const;
  void learn_recent_steps();
  void cut_by_recent_ids(std::uint32_t fragment);
  void split(std::uint32_t fragment, const Buckets& front_buckets, const Buckets& back_buckets);
  // The predecessors or the successors of a fragment, each with the kind of the edge between them.
  using Neighbours = std::vector<std::pair<std::uint32_t, EdgeKind>>;
  void replace(std::uint32_t fragment, const Buckets& buckets, const Neighbours& neighbours_before,
               const Neighbours& neighbours_after);
  std::uint32_t define(const Buckets& buckets);
  Neighbours predecessors(std::uint32_t fragment) const;
  Neighbours successors(std::uint32_t fragment) const;
  void connect(const Neighbours& neighbours_before, std::uint32_t first, std::uint32_t last,
               const Neighbours& neighbours_after);
  void insert_edge(std::uint32_t from, std::uint32_t to, EdgeKind kind);
  void order_and_connect(Ids fragments);
  std::uint32_t choose_next(std::uint32_t from, const Ids& fragments, EdgeKind kind) const;

  const NameTable& names_;
  std::int64_t fusion_bytes_;
  Plan plan_;
  std::vector<StreamItem> edits_;
  std::uint32_t fragment_defined_last_ = 0;

  // The steps since the last synchronization point, or since the last repetition of an id.
  std::vector<IssuedStep> recent_steps_;
  std::unordered_set<std::uint32_t> recent_ids_;
  // how many quiescent points each member has passed so far; empty if unknown
  std::vector<std::uint32_t> quiescent_points_;
  bool began_at_sync_point_ = false;
  bool has_repetition_ = false;
  std::uint32_t fragment_last_ = 0;  // the fragment that ended the last superstep; 0 if unknown
  // the digest of the ids of the last round
  std::uint64_t last_round_digest_ = 0;
  int equal_rounds_ = 0;  // how many rounds in a row were equal

  std::unordered_set<std::uint64_t> supersteps_seen_;  // the digests of the supersteps
  // how often members have raised for each wait, by the digest of the wait
  std::unordered_map<std::uint64_t, int> raises_by_wait_;
};

}  // namespace farandole
