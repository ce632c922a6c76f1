// Ranks: the members of one group. Each is a process of this benchmark, and inherits the group's
// shared memory.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "collective/chooser.h"
#include "collective/group.h"
#include "transport/shm/doorbells.h"
#include "transport/shm/segment.h"
#include "transport/shm/wait_policy.h"

namespace farandole::bench {

// The group from the view of one member.
class Member {
 public:
  Member(Group group, Doorbells& doorbells, SharedHeap& heap, WaitPolicy policy)
      : group_(std::move(group)), doorbells_(doorbells), heap_(heap), policy_(policy) {}

  int rank() const { return group_.member; }
  const Group& group() const { return group_; }
  // Allocates memory that the other ranks can map. Ends the program if the allocation fails.
  std::shared_ptr<std::byte> allocate(std::size_t bytes) { return heap_.allocate(bytes).value(); }
  // Runs the group's next step to its end. Waits as the engine does.
  void run(CollectiveCall&& call);

 private:
  void sleep(CollectiveStep& step, Progress& progress);

  Group group_;
  Doorbells& doorbells_;
  SharedHeap& heap_;
  WaitPolicy policy_;
  SystemClock clock_;
  std::uint32_t sequence_ = 0;
};

// Forks a process for each rank and runs the function in it. Returns whether the function returned
// true in all of them.
bool run_in_processes(int ranks, const std::function<bool(int rank)>& function);

class Ranks {
 public:
  explicit Ranks(int ranks);  // construct it before run_in_processes()
  // Returns the member of the calling process. Each process must call this function once.
  Member member(int rank);

 private:
  int count_;
  std::shared_ptr<Segment> doorbell_memory_, flag_memory_;  // nothing else owns them
  std::vector<std::shared_ptr<SharedHeap>> heaps_;
  std::vector<std::shared_ptr<Segment>> staging_memory_;  // nothing else owns it
  std::vector<std::unique_ptr<PeerHeap>> peers_;
  std::unique_ptr<Doorbells> doorbells_;
  std::unique_ptr<FlagBoard> flags_;
};

}  // namespace farandole::bench
