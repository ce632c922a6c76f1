#include "ranks.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/cores.h"
#include "base/thread_setup.h"
#include "transport/shm/heap_size.h"

namespace farandole::bench {

void Member::run(CollectiveCall&& call) {
  ++sequence_;
  CollectiveStep step = choose_step(
      group_, {.generation = 1, .sequence = sequence_, .id = sequence_}, std::move(call));
  Progress progress = advance(step);
  if (progress == Progress::kDone) return;
  policy_.begin_wait(clock_);
  for (; progress != Progress::kDone; progress = advance(step)) {
    CHECK(progress != Progress::kMismatch && progress != Progress::kMisprediction,
          "all ranks of a benchmark make the same calls");
    if (progress == Progress::kAdvanced) {
      policy_.begin_wait(clock_);
      continue;
    }
    if (wait_awake(policy_, clock_)) continue;
    sleep(step, progress);
    if (progress == Progress::kDone) return;
  }
}

void Member::sleep(CollectiveStep& step, Progress& progress) {
  const std::uint32_t ticket = doorbells_.prepare_sleep();
  progress = advance(step);
  if (progress != Progress::kPending) return doorbells_.cancel_sleep();
  request_short_time_slices();
  doorbells_.sleep(ticket, std::chrono::seconds(1));
}

Ranks::Ranks(int ranks)
    : count_(ranks),
      doorbell_memory_(Segment::create("bench-doorbells", Doorbells::bytes_needed(ranks)).value()),
      flag_memory_(Segment::create("bench-board", FlagBoard::bytes_needed(ranks)).value()) {
  for (int rank = 0; rank < ranks; ++rank) {
    heaps_.push_back(SharedHeap::create(heap_bytes(heap_limits(), ranks)).value());
    staging_memory_.push_back(Segment::create("bench-staging", kStagingBytes).value());
    staging_memory_.back()->allocate_huge_pages(staging_memory_.back()->data(), kStagingBytes);
    peers_.push_back(PeerHeap::attach(heaps_.back()->descriptor()).value());
  }
}

Member Ranks::member(int rank) {
  const auto index = static_cast<std::size_t>(rank);
  std::vector<int> ranks;
  std::vector<const PeerHeap*> heaps;
  std::vector<std::byte*> stagings;
  for (int other = 0; other < count_; ++other) {
    ranks.push_back(other);
    heaps.push_back(peers_[static_cast<std::size_t>(other)].get());
    stagings.push_back(staging_memory_[static_cast<std::size_t>(other)]->data());
  }
  doorbells_ = std::make_unique<Doorbells>(doorbell_memory_->data(), rank, count_);
  flags_ = std::make_unique<FlagBoard>(flag_memory_->data(), rank, ranks, *doorbells_);
  Group group = {.member = rank,
                 .ranks = ranks,
                 .board = flags_.get(),
                 .stagings = stagings,
                 .heap = heaps_[index].get(),
                 .heaps = heaps,
                 .costs = costs_on(count_, usable_cores())};
  return {std::move(group), *doorbells_, *heaps_[index], WaitPolicy(count_, usable_cores())};
}

bool run_in_processes(int ranks, const std::function<bool(int rank)>& function) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    CHECK(child >= 0, "the processes of a benchmark must start");
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::_exit(function(rank) ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    children.push_back(child);
  }
  bool good = true;
  // When a process fails, kill the others, because they would wait for it for ever.
  for (std::size_t ended = 0; ended < children.size(); ++ended) {
    int status = 0;
    const pid_t child = ::wait(&status);
    if (status == 0 || !std::exchange(good, false)) continue;
    for (const pid_t other : children)
      if (other != child) ::kill(other, SIGKILL);
  }
  return good;
}

}  // namespace farandole::bench
