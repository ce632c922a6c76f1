// SubmissionTable: every submission from submit to take, by handle; which names are in use, and
// the automatic names. A plain container: the engine guards it.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "coordination/moment.h"
#include "farandole/engine.h"
#include "submission/known_signatures.h"

namespace farandole {

// One submission. While it is in flight the holder of the baton alone writes `outcome`.
struct Record {
  Handle handle = 0;
  Submission submission;
  KnownSignatures::Entry* known = nullptr;  // its name's; null when that may be used again
  std::optional<int> automatic_index;       // when the engine chose the name
  TimePoint submitted{};
  Moment moment;
  std::size_t place = 0;  // of the group's member: among those in flight there
  Outcome outcome;
  bool finished = false;
  bool dropped = false;
  bool seen = false;  // the user knows that it is finished, or does not want to
};

class SubmissionTable {
 public:
  SubmissionTable();

  // Gives a checked one a handle and, if it has none, a name. Errors: kFixCall when the name is in
  // use, or this rank has joined the group. When std::bad_alloc comes out nothing has changed.
  Result<Record*> add(const Submission& submission);
  // Takes back what add() has just given; nobody has seen it yet.
  void withdraw(Record& record);
  Record* find(Handle handle);  // null when unknown

  // The record's outcome is written. A dropped one is forgotten.
  void finish(Record& record);
  // The program knows that it is finished: its name may be used again. Not before, for that is a
  // point of the program, the same on all ranks, and when it finishes is none.
  void free_name(Record& record);
  // Forgets a finished record.
  Outcome remove(Handle handle);
  // Forgets it now or when it is finished, but not the index of its automatic name.
  void drop(Handle handle);
  // Forgets the names of a group that is gone; nothing of ours is in flight there. Throws nothing.
  void forget_names(GroupId group);

  std::size_t in_flight() const { return in_flight_; }
  std::size_t in_flight(GroupId group) const;
  // The one that was submitted first of those in flight that do not wait for a join; may be null.
  Record* oldest();

 private:
  // Indices of automatic names, in use until the handle is taken: a point of the program, not of
  // time, so that all ranks choose alike. Those of dropped calls never come back.
  struct Indices {
    int next = 0;  // the first that was never used
    std::set<int> in_use;
    std::set<int> given_back;
  };
  // Those of one group.
  struct Calls {
    KnownSignatures names;
    std::map<Operation, Indices> automatic_indices;
    std::size_t in_flight = 0;
    bool joined = false;  // a join of ours is in flight
  };

  Record& make(const Submission& submission);
  void choose_name(Calls& calls, Record& record);
  void erase(Record& record);
  void give_index_back(const Record& record);

  std::map<GroupId, Calls> groups_;
  std::size_t in_flight_ = 0;
  Handle last_handle_ = 0;
  // The last ones, by the end of their handles, and those whose place another has taken. They stay
  // where they are.
  std::vector<std::unique_ptr<Record>> recent_;
  std::unordered_map<Handle, std::unique_ptr<Record>> older_;
  // Of calls that are over, with the memory of their names and shapes, for those that come.
  std::vector<std::unique_ptr<Record>> spares_;
};

}  // namespace farandole
