#include "engine/failure.h"

#include "base/format.h"
#include "submission/submission_check.h"
#include "submission/submission_table.h"

namespace farandole {
namespace {

std::string rank_with_pid(int rank, const std::vector<std::int64_t>& pids) {
  return format_text("rank {} (pid {})", rank, pids[static_cast<std::size_t>(rank)]);
}

}  // namespace

GroupFailure failure_of_leave(int rank, const std::string& reason,
                              const std::vector<std::int64_t>& pids) {
  return {Status::rebuild_group(format_text("{} has left the job ({}); all ranks must make "
                                            "the same calls before any of them leaves",
                                            rank_with_pid(rank, pids), reason)),
          rank};
}

std::optional<GroupFailure> failure_of(const EndedRanks& ended, const std::vector<int>& ranks,
                                       int own_rank, const std::vector<std::int64_t>& pids) {
  std::uint32_t first_ticket = ended.first_dead_rank ? ended.leaves_before_death + 1 : UINT32_MAX;
  std::optional<GroupFailure> failure;
  if (ended.first_dead_rank) {
    failure = {Status::rebuild_group(
                   format_text("{} {}; this job is over: shut down, and start it again",
                               rank_with_pid(*ended.first_dead_rank, pids),
                               ended.death_text.empty() ? "has died" : ended.death_text)),
               *ended.first_dead_rank};
  }
  for (const int rank : ranks) {
    const auto& leave = ended.leavers[static_cast<std::size_t>(rank)];
    if (rank == own_rank || !leave || leave->ticket >= first_ticket) continue;
    first_ticket = leave->ticket;
    failure = failure_of_leave(rank, leave->reason, pids);
  }
  return failure;
}

Status error_of_unreachable(int rank, const std::string& cause,
                            const std::vector<std::int64_t>& pids) {
  return Status::rebuild_group(format_text(
      "{} cannot be reached; perhaps it has left the job, because its program has ended "
      "or has called shutdown() ({})",
      rank_with_pid(rank, pids), cause));
}

GiveUpReason reason_of_broken_group(const Status& ended) {
  return {ended, "its engine had to stop: " + ended.message()};
}

std::optional<GiveUpReason> reason_of_stall(const Record* oldest_call, TimePoint now,
                                            std::chrono::seconds limit) {
  if (oldest_call == nullptr || now - oldest_call->submitted_at < limit) return std::nullopt;
  const std::string name = call_title(oldest_call->submission);
  return GiveUpReason{Status::rebuild_group(
                          format_text("{} has waited {} s for other ranks, which is the "
                                      "FARANDOLE_STALL_LIMIT; the launcher's report says for which",
                                      name, limit.count())),
                      format_text("it gave up: {} had waited {} s, the FARANDOLE_STALL_LIMIT", name,
                                  limit.count())};
}

// Reads the death first. has_changed() compares the current state only with what this function has
// read, so it also reports a change that happens while this function runs.
EndedRanks FailureWatch::read() {
  EndedRanks ended;
  ended.first_dead_rank = doorbells_.closed_by();
  if (ended.first_dead_rank) {
    ended.leaves_before_death = doorbells_.leavers_before_closing();
    ended.death_text = doorbells_.closing_reason();
  }
  std::uint32_t leaves = 0;
  for (int rank = 0; rank < doorbells_.size(); ++rank) {
    ended.leavers.push_back(doorbells_.leaver(rank));
    leaves += ended.leavers.back() ? 1 : 0;
  }
  death_read_ = ended.first_dead_rank.has_value();
  leaves_read_ = leaves;
  return ended;
}

}  // namespace farandole
