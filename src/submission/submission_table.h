// SubmissionTable: every submission from submit to take, by handle; which names are in use, and
// the automatic names. A plain container: the engine guards it.
//
// Names pair the calls of different ranks. So they follow from what the program does, in its order:
// from its submissions and from the results that it has taken. When a call finishes, and whether
// its handle is dropped, changes nothing (docs/decisions/0031).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "coordination/submission_context.h"
#include "farandole/engine.h"
#include "submission/interned_signatures.h"

namespace farandole {

// One submission. While it is in flight the holder of the progress lock alone writes `outcome`.
struct Record {
  Handle handle = 0;
  Submission submission;
  InternedSignatures::Entry* interned = nullptr;  // its name's
  std::optional<std::int64_t> automatic_index;    // when the engine chose the name
  TimePoint submitted{};
  SubmissionContext context;
  std::size_t place = 0;  // of the group's member: among those in flight there
  Outcome outcome;
  bool finished = false;
  bool dropped = false;
  bool observed = false;  // the user knows that it is finished, or does not want to
};

class SubmissionTable {
 public:
  SubmissionTable();

  // Gives a checked one a handle and, if it has none, a name. Errors: kFixCall when the name is in
  // use, or this rank has joined the group. If it throws std::bad_alloc, nothing has changed.
  Result<Record*> add(const Submission& submission);
  // Takes back what add() has just given; nobody has seen it yet.
  void roll_back(Record& record);
  Record* find(Handle handle);  // null when unknown

  // The record's outcome is written. A dropped one is forgotten.
  void finish(Record& record);
  // The program has its result: forgets a finished record, and its name may be used again.
  Outcome take(Handle handle);
  // The program will never have its result: forgets it now or when it is finished. Its name stays
  // in use, as if the handle had been kept; an automatic one never comes again.
  void drop(Handle handle);
  // Forgets a group that is gone, where no call is left that was not taken. Throws nothing.
  void forget_group(GroupId group);

  std::size_t in_flight() const { return in_flight_; }
  // How many of those have a completion, so perhaps nobody waits for them.
  std::size_t with_completion() const { return with_completion_; }
  // How many calls of the group were not taken; also those that are dropped.
  std::size_t not_taken(GroupId group) const;
  // The one that was submitted first of those in flight that do not wait for a join; may be null.
  Record* oldest();

 private:
  // Indices of automatic names of one operation.
  class Indices {
   public:
    std::int64_t take();  // the lowest that is free
    void give_back(std::int64_t index) noexcept;
    void lose() noexcept { --live_; }  // one that was taken never comes again

   private:
    std::int64_t next_ = 0;           // the first that was never taken
    std::size_t live_ = 0;            // taken and not lost, or free: `free_` has room for so many
    std::vector<std::int64_t> free_;  // a heap, the lowest in front
  };
  // Those of one group.
  struct Calls {
    InternedSignatures names;
    std::map<Operation, Indices> automatic_indices;
    std::size_t not_taken = 0;
    bool joined = false;  // a join of ours is not taken
  };

  Record& make(const Submission& submission);
  void choose_name(Calls& calls, Record& record);
  void erase(Record& record);
  void give_index_back(const Record& record);
  void lose(Record& record);

  std::map<GroupId, Calls> groups_;
  std::size_t in_flight_ = 0;
  std::size_t with_completion_ = 0;
  Handle last_handle_ = 0;
  // The last ones, by the end of their handles, and those whose place another has taken. They stay
  // where they are.
  std::vector<std::unique_ptr<Record>> recent_;
  std::unordered_map<Handle, std::unique_ptr<Record>> older_;
  // Of calls that are over, with the memory of their names and shapes, for those that come.
  std::vector<std::unique_ptr<Record>> spares_;
};

}  // namespace farandole
