// Submissions: the calls of the program from submit to take, and which groups accept more calls. It
// is not thread-safe: the engine guards it with a lock. Handles, outcomes and errors are as in
// farandole/engine.h.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <vector>

#include "base/clock.h"
#include "farandole/engine.h"
#include "submission/context_tracker.h"
#include "submission/submission_table.h"

namespace farandole {

// The calls for which a thread waits: one call, or a batch, which has consecutive handles.
struct HandleRange {
  Handle first = 0;
  std::size_t count = 0;

  bool contains(Handle handle) const { return handle - first < count; }
};

class Submissions {
 public:
  void open_group(GroupId group) { group_is_open_.emplace(group, true); }
  // Rejects further submissions to the group until reopen_group(). Errors: kFixCall if a result in
  // the group was not taken. A finished call counts, too: ranks may finish a call at different
  // times, and must still get the same error.
  Status close_group(GroupId group);
  void reopen_group(GroupId group) { set_open(group, true); }
  // Call it when the group has ended. Further submissions are rejected with `status`, except
  // messages, because a message concerns only two ranks of the group. A group keeps the first
  // status that it gets.
  void end_group(GroupId group, const Status& status) { ended_groups_.emplace(group, status); }
  bool is_over(GroupId group) const { return ended_groups_.contains(group); }
  void forget_group(GroupId group);

  // Adds all calls of the batch; on an error, adds no call. The holder of the progress lock gets
  // them from take_arrived().
  Status add(std::span<const Submission> batch, std::span<Handle> handles, TimePoint now);
  // The last `count` records that were added.
  std::span<Record* const> newest_records(std::size_t count) const {
    return std::span(arrived_records_).last(count);
  }
  // Moves the added records to `records`, which must be empty. Its memory is reused for later
  // records.
  void take_arrived(std::vector<Record*>& records) { records.swap(arrived_records_); }

  bool poll(Handle handle);
  Outcome peek(Handle handle);
  Outcome take(Handle handle);
  void drop(Handle handle);
  // How many calls of the range are not finished; unknown handles count as finished.
  std::size_t count_unfinished(const HandleRange& range);

  // Call it when the record's outcome is set.
  void finish(Record& record) { table_.finish(record); }

  std::size_t calls_in_flight() const { return table_.calls_in_flight(); }
  std::size_t calls_with_completion() const { return table_.calls_with_completion(); }
  // Returns SubmissionTable::oldest_call().
  const Record* oldest_call() { return table_.oldest_call(); }

 private:
  Status rejection_of(const Submission& submission) const;
  Status add_all(std::span<const Submission> batch, std::span<Handle> handles);
  void set_open(GroupId group, bool is_open);
  // If the call has finished, records that the program has observed its end; `record` may be null.
  // The program may observe the end of a call at different times on different ranks, so this
  // observation influences only predictions, never a name or a result.
  void observe(Record* record);

  SubmissionTable table_;
  ContextTracker contexts_;
  std::vector<Record*> arrived_records_;  // not yet taken by the holder of the progress lock
  std::map<GroupId, bool>
      group_is_open_;  // this rank's groups; false if the group is being removed
  std::map<GroupId, Status> ended_groups_;  // this rank's groups that have ended, with the reason
};

}  // namespace farandole
