// Submissions: what the program has submitted, from submit to take, and which groups accept more.
// A plain container: the engine guards it. Handles, outcomes and errors are those of
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

// What a caller waits for: a call, or those of a batch, whose handles follow one another.
struct Wanted {
  Handle first = 0;
  std::size_t count = 0;

  bool has(Handle handle) const { return handle - first < count; }
};

class Submissions {
 public:
  void open_group(GroupId group) { open_.emplace(group, true); }
  // Rejects further submissions to the group, for good or until reopen_group(). Errors: kFixCall
  // when some of ours there were not taken: whether they are still in flight depends on time.
  Status close_group(GroupId group);
  void reopen_group(GroupId group) { set_open(group, true); }
  // The group has ended: further submissions get `status`. Only the first one counts.
  void end_group(GroupId group, const Status& status) { over_.emplace(group, status); }
  bool is_over(GroupId group) const { return over_.contains(group); }
  void forget_group(GroupId group);

  // All of the batch or, on an error, none. They arrive at the holder of the progress lock by
  // take_arrived().
  Status add(std::span<const Submission> batch, std::span<Handle> handles, TimePoint now);
  // The last `count` of those.
  std::span<Record* const> newest(std::size_t count) const {
    return std::span(arrived_).last(count);
  }
  // `into` is empty; its memory is kept for those that come.
  void take_arrived(std::vector<Record*>& into) { into.swap(arrived_); }

  bool poll(Handle handle);
  Outcome peek(Handle handle);
  Outcome take(Handle handle);
  void drop(Handle handle);
  // How many of them; unknown handles count as finished.
  std::size_t unfinished(const Wanted& wanted);

  // The record's outcome is written.
  void finish(Record& record) { table_.finish(record); }

  std::size_t in_flight() const { return table_.in_flight(); }
  std::size_t with_completion() const { return table_.with_completion(); }
  // The one that has waited longest (SubmissionTable::oldest()); may be null.
  const Record* oldest() { return table_.oldest(); }

 private:
  Status why_closed(GroupId group) const;
  Status add_all(std::span<const Submission> batch, std::span<Handle> handles);
  void set_open(GroupId group, bool open);
  // Notes that the user has seen that the call is done, if it is; `record` may be null. When that
  // happens depends on time, so it steers only predictions (`contexts_`), never a name or a result.
  void observe(Record* record);

  SubmissionTable table_;
  ContextTracker contexts_;
  std::vector<Record*> arrived_;    // not yet seen by the holder of the progress lock
  std::map<GroupId, bool> open_;    // our groups; false: one that is being removed
  std::map<GroupId, Status> over_;  // our groups that have ended, and why
};

}  // namespace farandole
