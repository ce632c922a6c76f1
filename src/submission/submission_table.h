// SubmissionTable: every submission from submit to take, by handle. It also knows which names are
// in use, and chooses names for calls without one. It is not thread-safe: the engine guards it with
// a lock.
//
// The agreement matches the calls of different ranks by name. So a name may depend only on which
// calls the program submits, and on which results it has taken before. It must not depend on when a
// call finishes or whether its handle is dropped (docs/decisions/0031). The names that the engine
// chooses depend only on whether all results were taken (docs/decisions/0082).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "control/submission_context.h"
#include "farandole/engine.h"
#include "submission/interned_signatures.h"

namespace farandole {

// One submission. While it is in flight, only the holder of the progress lock writes `outcome`.
struct Record {
  Handle handle = 0;
  Submission submission;
  // The entry of the call's name. Null after a later join of all ranks, which has released all
  // names.
  InternedSignatures::Entry* interned = nullptr;
  std::uint32_t unnamed_number = 0;  // SubmissionContext::unnamed_number
  TimePoint submitted_at{};
  SubmissionContext context;
  std::size_t index_in_flight = 0;  // position in GroupMember::in_flight_
  Outcome outcome;
  bool finished = false;
  bool dropped = false;
  bool observed = false;  // the program has seen that the call is finished, or has dropped it
};

class SubmissionTable {
 public:
  SubmissionTable();

  // Adds a checked submission: gives it a handle and, if it has none, a name. If another operation
  // uses its name, the submission gets another name. Errors: kFixCall if the same operation uses
  // the name, or if this rank has joined the group. If it throws std::bad_alloc, nothing
  // has changed.
  Result<Record*> add(const Submission& submission);
  // Undoes add(). Call it before the record is used for anything else.
  void roll_back(Record& record);
  Record* find(Handle handle);  // null if the handle is unknown

  // Call it when the record's outcome is set. If the record was dropped, this function erases it.
  void finish(Record& record);
  // Returns the outcome of a finished record and erases the record. Then the name may be used
  // again. If the record is a join that has succeeded, all names of the group may be used again,
  // even those of dropped calls. Automatic names then start again from 0, because the ranks have
  // made different numbers of calls before the join.
  Outcome take(Handle handle);
  // Call it if the program will never take this result. Erases the record now or when it finishes.
  // The name stays in use, as if the program had kept the handle. If the engine chose the name, the
  // indices of the operation begin at 0 again only after all ranks have joined.
  void drop(Handle handle);
  // Erases a removed group. All its results must have been taken. Throws nothing.
  void forget_group(GroupId group);

  std::size_t calls_in_flight() const { return in_flight_; }
  // How many of the calls in flight have a completion. Perhaps no thread waits for such a call, so
  // the engine's own threads must finish it.
  std::size_t calls_with_completion() const { return calls_with_completion_; }
  // How many results of the group were not taken, including those of dropped calls.
  std::size_t untaken_results(GroupId group) const;
  // The oldest call in flight that is not a join; null if there is none.
  Record* oldest_call();

 private:
  // The unnamed calls of one operation.
  struct UnnamedCalls {
    std::uint32_t count = 0;          // the number of calls since the last join of all ranks
    std::uint64_t next_index = 0;     // the index in the next automatic name
    std::size_t untaken_results = 0;  // also counts the results of dropped calls
  };
  struct GroupCalls {
    // Messages are not matched by name, and only two ranks make them. So the names of messages must
    // not influence the names of other calls.
    InternedSignatures& names_for(Operation operation) {
      return row_of(operation).is_message ? message_names : names;
    }

    InternedSignatures names;
    InternedSignatures message_names;
    std::map<Operation, UnnamedCalls> unnamed_calls;
    std::size_t untaken_results = 0;
    bool joined = false;  // this rank has joined, and has not taken the result of the join
  };

  Record& make_record(const Submission& submission);
  void choose_name(GroupCalls& calls, Record& record);
  InternedSignatures::Entry* acquire_name(GroupCalls& calls, Submission& submission);
  void erase(Record& record);
  void take_back_name(Record& record);
  UnnamedCalls& unnamed_calls_of(const Record& record);
  void end_join(const Record& record);
  void release_all_names(GroupId group);
  void retire(Record& record);

  std::map<GroupId, GroupCalls> groups_;
  std::size_t in_flight_ = 0;
  std::size_t calls_with_completion_ = 0;
  Handle last_handle_ = 0;
  // `recent_records_` has the newest records, by handle modulo its size. `older_records_` has the
  // records that newer records have replaced in `recent_records_`. A record keeps its address.
  std::vector<std::unique_ptr<Record>> recent_records_;
  std::unordered_map<Handle, std::unique_ptr<Record>> older_records_;
  // Unused records, which later submissions reuse with the memory of their names and shapes.
  std::vector<std::unique_ptr<Record>> spare_records_;
};

}  // namespace farandole
