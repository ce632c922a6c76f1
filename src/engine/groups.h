// Groups: which groups the job has, and how one comes or goes while the job runs. Every change is
// collective over the world: all ranks exchange what they want and how far they have come through
// all-gathers of the world, so a different wish, a failure or a death is the same error on all.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/guarded.h"
#include "engine/formation.h"
#include "engine/progress_threads.h"

namespace farandole {

// Any thread; add() and remove() of several threads come one after another.
class Groups {
 public:
  // What the engine consists of otherwise; outlives this.
  struct Dependencies {
    const Formation& formation;
    Store& store;
    ProgressThreads& progress;
    FlightRecorder& recorder;
    const Clock& clock;
    std::function<bool()> interrupted;  // see EngineOptions
  };
  explicit Groups(Dependencies dependencies);

  // The ranks of a group; null for an unknown number. Shared with calls that are being checked,
  // but for the world's, which are the formation's.
  std::shared_ptr<const std::vector<int>> find(GroupId group);

  // As Engine::add_group() and remove_group().
  Result<GroupId> add(const std::vector<int>& ranks);
  Status remove(GroupId group);

 private:
  using Table = std::map<GroupId, std::shared_ptr<const std::vector<int>>>;

  int rank() const { return dependencies_.formation.doorbells->rank(); }
  int size() const { return dependencies_.formation.doorbells->size(); }

  // Runs a change when it is our turn. Errors beyond its own: kRetry (interrupted), kRebuildGroup
  // (an earlier change was interrupted), kStop (no memory: this rank has left the job).
  template <class Change>
  auto in_turn(Change change) -> decltype(change());
  Status leave_out_of_memory();
  Status begin_change();
  void end_change();
  bool is_interrupted() const { return dependencies_.interrupted && dependencies_.interrupted(); }
  Result<GroupId> add_now(const std::vector<int>& ranks);
  Status remove_now(GroupId group);
  Status check_new(const std::vector<int>& ranks);
  // Our member of the new group, null if we do not belong to it. `publish_as`: the key under which
  // we give the group's memory to the others; empty if another rank does.
  Result<std::unique_ptr<GroupMember>> form(GroupId id, const std::vector<int>& ranks,
                                            const std::string& publish_as);
  Result<std::unique_ptr<GroupMember>> make_member(GroupId id, const std::vector<int>& ranks);
  // Errors when the ranks do not all say the same.
  Status same_everywhere(const std::string& wish);
  // The first error of all ranks, with its rank; ok when all are.
  Status agree(const Status& own);
  // What each rank says, by rank.
  Result<std::vector<Bytes>> exchange(const Bytes& own);

  Dependencies dependencies_;
  Guarded<bool> changing_;  // somebody has its turn; what follows belongs to that one
  GroupId next_id_;
  std::unique_ptr<Bytes> lent_;  // to the call that an interruption has left behind
  Guarded<Table> table_;
};

// A member of a group that we belong to, with staging memory of its own. Errors: kStop.
Result<std::unique_ptr<GroupMember>> make_group_member(const FormedGroup& group,
                                                       const Formation& formation,
                                                       FlightRecorder& recorder,
                                                       const Clock& clock);

}  // namespace farandole
