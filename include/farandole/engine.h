// The public door. One Engine is one member of one job; it runs collective operations on borrowed
// memory. Frameworks and bindings see this folder and nothing else.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "farandole/dtype.h"
#include "farandole/operation.h"
#include "farandole/status.h"

namespace farandole {

// Who this process is. The launcher sets these through FARANDOLE_* variables.
struct Place {
  int rank = 0;        // 0 … size − 1
  int size = 1;        // workers in the job
  int local_rank = 0;  // among the workers of this host
  int local_size = 1;
  int cross_rank = 0;  // among the workers with this local_rank, over the hosts
  int cross_size = 1;
};

struct EngineOptions {
  Place place;
  // Our end of the Unix socket to the launcher; −1 when there is none (size must then be 1).
  // Borrowed: it must stay open while the engine lives.
  int rendezvous_descriptor = -1;
  // Groups beside the world, each an ascending list of ranks; the same list on every rank.
  // They get the numbers 1, 2, … in this order; the world is group 0.
  std::vector<std::vector<int>> groups;
  // How long the others may take to arrive.
  std::chrono::milliseconds start_timeout{120'000};
  // How many bytes of gradients a frontend puts in one bucket. All ranks must have
  // the same; the engine compares it and hands it on.
  std::size_t bucket_bytes = 0;
  // What is said on standard error: trace, debug, info, warning, error or fatal, and above.
  std::string log_level = "warning";
  bool log_hide_time = false;
  // Asked about every 100 ms while create() waits; true ends the waiting with kRetry.
  std::function<bool()> interrupted;

  // Reads the knobs (see `docs/knobs.md`). Errors: kFixCall naming the variable and its value.
  static Result<EngineOptions> from_environment();
};

using GroupId = std::uint32_t;
inline constexpr GroupId kWorld = 0;

// One collective call of one rank. The memory is borrowed until the outcome is taken or the engine
// is destroyed; shape is in elements, outermost dimension first, C-contiguous.
struct Submission {
  Operation operation = Operation::kBarrier;
  // Calls with the same name on all members of the group belong together. Empty: the lowest free
  // index of this operation is used, so that loops repeat their names.
  std::string name;
  GroupId group = kWorld;
  DType dtype = DType::kUInt8;
  std::vector<std::int64_t> shape;
  const void* input = nullptr;  // allreduce, allgather; broadcast: read on the root only
  void* output = nullptr;       // allreduce, broadcast; may equal input. Allgather: see Outcome
  ReduceOp reduce_op = ReduceOp::kSum;  // allreduce
  int root_rank = 0;                    // broadcast, a rank of the world inside the group
};

// What became of a call.
struct Outcome {
  Status status;
  // Allgather only: the concatenation in rank order, and each member's first dimension.
  std::shared_ptr<std::byte> gathered;  // shared by the taker and whatever views it hands out
  std::vector<std::int64_t> first_dimensions;
};

using Handle = std::uint64_t;

// Thread-safe throughout. Only create(), wait() and shutdown() block. Two threads live inside
// ("progress" and "watch"), both asleep when idle. Not usable in a forked child: see
// abandon_after_fork().
class Engine {
 public:
  struct Parts;  // the engine's own

  // Meets the other members and forms the groups. Blocks until all are there.
  // Errors: kFixCall (options contradict each other or another rank's), kRetry (interrupted),
  // kRebuildGroup (somebody did not arrive; names the ranks), kStop (system limits).
  static Result<std::unique_ptr<Engine>> create(EngineOptions options);

  ~Engine();  // shutdown(), then frees everything but memory that is still owned outside
  explicit Engine(std::unique_ptr<Parts> parts);  // by create()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Place& place() const;
  // Ranks of a group, ascending; empty for an unknown number.
  std::span<const int> ranks_of(GroupId group) const;

  // Starts a call; never blocks. Errors: kFixCall (unknown group, not a member, name already in
  // flight, bad shape, dtype without this reduction, after shutdown() …), kRebuildGroup (the group
  // is over), kStop (in a forked child).
  Result<Handle> submit(const Submission& submission);
  // True once take() will not answer kRetry. Unknown handles count as done.
  bool poll(Handle handle);
  // Makes progress until the call is done or the time is over; returns poll(handle).
  bool wait(Handle handle, std::chrono::milliseconds limit);
  // The outcome of a finished call; forgets the handle. Outcome.status is kFixCall for an unknown
  // handle, kRetry if the call is not done.
  Outcome take(Handle handle);

  // Memory of the shared heap, 128-byte aligned, zeroed. Stays mapped until the last owner is
  // gone, also after shutdown. Errors: kStop when the system gives no more.
  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes);

  // Leaves the job: the others' calls that need this rank end with an error that carries
  // `reason`. Ours that are pending end with kRebuildGroup. Idempotent.
  void shutdown(const std::string& reason);

  // For the child of a fork: closes our descriptors and makes every later call fail with a clear
  // error. Takes no lock; mapped memory stays.
  void abandon_after_fork();

 private:
  std::unique_ptr<Parts> parts_;
};

}  // namespace farandole
