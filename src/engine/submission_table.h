// SubmissionTable: every submission from submit to take, by handle; which names are in flight, and
// the automatic names. A plain container: the engine guards it.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "coordination/moment.h"
#include "engine/known_signatures.h"
#include "farandole/engine.h"

namespace farandole {

// One submission. While it is in flight the holder of the baton alone writes `outcome`.
struct Record {
  Handle handle = 0;
  Submission submission;
  std::optional<int> automatic_index;  // when the engine chose the name
  TimePoint submitted{};
  Moment moment;
  // Of the group's member: the signature, and the place among those in flight there.
  KnownSignatures::Entry* known = nullptr;
  std::size_t place = 0;
  Outcome outcome;
  bool finished = false;
  bool dropped = false;
  bool seen = false;  // the user knows that it is finished, or does not want to
};

class SubmissionTable {
 public:
  SubmissionTable();

  // Gives it a handle and, if it has none, a name. Errors: kFixCall when the name is in flight, or
  // this rank has joined the group. When std::bad_alloc comes out nothing has changed.
  Result<Record*> add(const Submission& submission);
  // Takes back what add() has just given; nobody has seen it yet.
  void withdraw(Record& record);
  Record* find(Handle handle);  // null when unknown

  // The record's outcome is written: its name may be used again. A dropped one is forgotten.
  void finish(Record& record);
  // Forgets a finished record.
  Outcome remove(Handle handle);
  // Forgets it now or when it is finished, but not the index of its automatic name.
  void drop(Handle handle);

  std::size_t in_flight() const { return in_flight_.size(); }
  std::size_t in_flight(GroupId group) const;
  // The one that was submitted first of those in flight that do not wait for a join; may be null.
  Record* oldest();

 private:
  struct Hash {
    std::size_t operator()(const Record* record) const;
  };
  struct SameName {
    bool operator()(const Record* one, const Record* other) const;
  };
  using Records = std::unordered_map<Handle, Record>;  // which stay where they are

  Record& make(const Submission& submission);
  bool fill(Record& record);
  void forget(const Record& record);
  void erase(Records::iterator found);
  int take_index(const Submission& submission);
  void give_index_back(const Record& record);

  Records records_;
  // Of calls that are over, with the memory of their names and shapes, for those that come.
  std::vector<Records::node_type> spares_;
  std::unordered_set<const Record*, Hash, SameName> in_flight_;  // by group and name
  // Indices of automatic names, in use until the handle is taken: a point of the program, not of
  // time, so that all ranks choose alike. Those of dropped calls never come back.
  struct Indices {
    int next = 0;  // the first that was never used
    std::set<int> in_use;
    std::set<int> given_back;
  };
  std::map<std::pair<GroupId, Operation>, Indices> automatic_indices_;
  std::set<GroupId> joined_;  // groups with a join of ours in flight
  Handle last_handle_ = 0;
};

}  // namespace farandole
