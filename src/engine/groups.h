// Groups: which groups the job has, and how groups are added and removed while the job runs. Every
// change is collective over the world. The ranks all-gather their requests. After each part of the
// change, they all-gather whether it has succeeded. So if requests differ, or if a rank fails or
// dies, all ranks get the same error.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/guarded.h"
#include "engine/progress_threads.h"
#include "formation/formation.h"

namespace farandole {

// Any thread may call these functions. Calls of add() and remove() by several threads run one after
// another.
class Groups {
 public:
  // The other parts of the engine, which must outlive this object.
  struct Dependencies {
    const Formation& formation;
    LocalStore& store;  // the Store of this host
    ProgressThreads& progress;
    FlightRecorder& recorder;
    const Clock& clock;
    std::function<bool()> interrupted;  // see EngineOptions
    Channels* channels;                 // null if all ranks are on this host
  };
  explicit Groups(Dependencies dependencies);

  // Returns the ranks of a group; null if the group does not exist or lacks ranks. Several threads
  // may use the result at a time; the formation owns the ranks of the world.
  std::shared_ptr<const std::vector<int>> find(GroupId group);
  // Whether the job lacks ranks of this group. It must be a group in FormationInput::options.
  bool lacks_ranks(GroupId group) const;
  // Returns kFixCall with the reason why the group is not found.
  Status not_found_error(GroupId group) const;

  // These functions do what Engine::add_group() and Engine::remove_group() do.
  Result<GroupId> add(const std::vector<int>& ranks);
  Status remove(GroupId group);

 private:
  using Table = std::map<GroupId, std::shared_ptr<const std::vector<int>>>;

  int rank() const { return dependencies_.formation.doorbells->rank(); }
  int size() const { return dependencies_.formation.doorbells->size(); }

  // Runs a change. Only one thread at a time runs a change. Errors besides those of the change:
  // kRetry (interrupted), kRebuildGroup (an earlier change was interrupted), kStop (no memory: this
  // rank has left the job).
  template <class Change>
  auto run_exclusively(Change change) -> decltype(change());
  Status leave_out_of_memory();
  Status begin_change();
  void end_change();
  bool is_interrupted() const { return dependencies_.interrupted && dependencies_.interrupted(); }
  Result<GroupId> perform_add(const std::vector<int>& ranks);
  Status perform_remove(GroupId group);
  Status check_new_group(const std::vector<int>& ranks);
  // Returns this rank's member of the new group; null if this rank does not belong to it.
  // `share_key`: the key under which this rank shares the memory of the group's members on this
  // host; empty if another rank shares this memory, or if the group has no members on this host.
  Result<std::unique_ptr<GroupMember>> form_group(GroupId id, const std::vector<int>& ranks,
                                                  const std::string& share_key);
  Result<std::unique_ptr<GroupMember>> make_member(GroupId id, const std::vector<int>& ranks);
  // Errors: kFixCall if not all ranks request the same.
  Status check_same_request(const std::string& request);
  // Returns the error of the first rank that has an error; the text names that rank. Returns ok if
  // no rank has an error.
  Status first_error_of_all(const Status& own_status);
  // All-gathers `own_bytes`; the result is by rank.
  Result<std::vector<Bytes>> exchange(const Bytes& own_bytes);

  Dependencies dependencies_;
  // true while a thread adds or removes a group; only that thread uses next_id_ and
  // abandoned_input_
  Guarded<bool> changing_;
  GroupId next_id_;
  // the input of an interrupted exchange, because the exchange still reads this input
  std::unique_ptr<Bytes> abandoned_input_;
  Guarded<Table> table_;
};

// Creates the GroupMember of this rank for a group to which it belongs. Errors: kStop.
Result<std::unique_ptr<GroupMember>> make_group_member(const FormedGroup& group,
                                                       const Formation& formation,
                                                       FlightRecorder& recorder, const Clock& clock,
                                                       Channels* channels);

}  // namespace farandole
