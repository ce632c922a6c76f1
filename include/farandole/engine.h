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

#include "farandole/device.h"
#include "farandole/dtype.h"
#include "farandole/operation.h"
#include "farandole/status.h"

namespace farandole {

// Who this process is. `farandole run` sets these through FARANDOLE_* variables; what other
// launchers set is understood, too (docs/howto/launchers.md).
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
  // Our end of the Unix socket to the launcher; −1 when there is none. Borrowed: it must stay open
  // while the engine lives.
  int rendezvous_descriptor = -1;
  // Without a launcher of ours: a text that is the same on all ranks, and that nobody else has on
  // this host; the ranks find each other by it. Each engine of a process needs a new one. Empty
  // means that there is none; size must then be 1, or a launcher be there.
  std::string meeting;
  // Groups beside the world, each an ascending list of ranks; the same list on every rank.
  // They get the numbers 1, 2, … in this order; the world is group 0.
  std::vector<std::vector<int>> groups;
  // How long the others may take to arrive.
  std::chrono::milliseconds start_timeout{120'000};
  // After a call has been in flight for so long this rank leaves the job; 0: never. The launcher
  // warns earlier. Joins do not count.
  std::chrono::seconds stall_limit{0};
  // Memory shared with the launcher, in which it reads what we are doing
  // (timeline/flight_record.h); −1 when nobody reads it. Borrowed: mapped by create().
  int flight_record_descriptor = -1;
  // How many bytes of gradients a frontend puts in one bucket, and up to how many the allreduces of
  // other calls share a transfer; 0: each has its own. All ranks must have the same; the engine
  // compares it.
  std::size_t bucket_bytes = 0;
  // After how many steps of an optimizer a frontend compares the parameters of all ranks; 0: never.
  // All ranks must have the same; the engine compares it and hands it on.
  std::uint64_t check_parameters = 0;
  // How large the memory is that the other ranks of the host can see: only what is touched of it
  // costs memory. 0: as much as the machine has, if this process may map the heaps of all ranks.
  std::size_t heap_bytes = 0;
  // The file of the timeline that begins with the engine; empty: none. If it cannot be written the
  // log says so, and the job goes on.
  std::string timeline_path;
  // How long the file of a timeline gets, about, all ranks together. What does not fit is left out.
  std::size_t timeline_bytes = std::size_t{256} << 20;
  // For this one, what start_timeline() says of `mark_cycles`.
  bool timeline_mark_cycles = false;
  // What is said on standard error: trace, debug, info, warning, error or fatal, and above.
  std::string log_level = "warning";
  bool log_hide_time = false;
  // Asked about every 100 ms while create(), add_group() or remove_group() wait; true ends the
  // waiting with kRetry.
  std::function<bool()> interrupted;

  // Reads the knobs (see `docs/knobs.md`) and, where they do not say who this process is, what
  // another launcher has set; not so for a caller that knows the place and the meeting itself and
  // sets them. Errors: kFixCall naming the variable and its value.
  static Result<EngineOptions> from_environment(bool place_is_known = false);
};

using GroupId = std::uint32_t;
inline constexpr GroupId kWorld = 0;

// One collective call of one rank. The memory is borrowed until the call is done (see poll()) or
// the engine is destroyed. What the outputs hold after kRebuildGroup is undefined; in memory of
// allocate(), ranks that have not yet noticed the end may even write them for a moment. Shape is in
// elements, outermost dimension first, C-contiguous. Which fields have a meaning follows from the
// operation's row.
struct Submission {
  Operation operation = Operation::kBarrier;
  // Calls with the same name on all members of the group belong together. It is in use until this
  // rank has seen that the call is done, by wait(), poll() or take(), or has dropped it and it is
  // done. Empty: the lowest free index of this operation is used, so that loops repeat their names.
  std::string name;
  GroupId group = kWorld;
  DType dtype = DType::kUInt8;
  // Where the program's tensor lies; must be the same on all ranks. Input and output are memory of
  // this process all the same: what lies on a device has been copied there.
  DeviceType device = DeviceType::kCpu;
  std::vector<std::int64_t> shape;
  const void* input = nullptr;  // broadcast: read on the root only
  // Allreduce, broadcast: may equal input. Reduce-scatter: scattered_rows() rows, apart from input.
  void* output = nullptr;
  ReduceOp reduce_op = ReduceOp::kSum;
  // Reductions: postscale × op(prescale × input of each rank), finite and the same on all ranks.
  // Floats are scaled in the type that sums them; integers in float64, cut off toward zero.
  double prescale = 1;
  double postscale = 1;
  int root_rank = 0;  // broadcast: a rank of the world inside the group
  // Alltoall: how many rows go to each member, in the order of the group's ranks; their sum is at
  // most the first dimension. Empty: equal shares of all rows.
  std::vector<std::int64_t> splits;
  // What the caller has found wrong with the call: it is refused on all members, with this text.
  // Of what is above only operation, name and group have a meaning then.
  std::string fault = {};
};

// What became of a call.
struct Outcome {
  Status status;
  // Allgather, alltoall: what came from each member, one after another in the order of the ranks,
  // and how many rows each has sent.
  std::shared_ptr<std::byte> received;  // shared by the taker and whatever views it hands out
  std::vector<std::int64_t> received_rows;
  int last_joined = -1;  // join: the rank that came last, the same on all members
};

using Handle = std::uint64_t;

// Thread-safe throughout. Only create(), add_group(), remove_group(), wait(), shutdown(), a
// submit() with a limit, start_timeline() and stop_timeline() block. Two threads live inside
// ("progress" and "watch"), both asleep when idle; a third one while a timeline is on. Not usable
// in a forked child: see abandon_after_fork().
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
  // Whether this rank has noticed that the job is over, by a call that has ended with kRebuildGroup
  // at the latest, or has called shutdown(): no call can come to a good end. Any thread.
  bool is_over() const;
  // Ranks of a group, ascending; empty for an unknown number.
  std::vector<int> ranks_of(GroupId group) const;

  // Adds a group to, or removes one from, the running job. All ranks of the world must call it,
  // with the same argument and in the same order; it blocks until they have. A new group gets a
  // number that no change has tried before. Errors: kFixCall (not an ascending list of ranks, known
  // already, too many; the world or an unknown number to be removed; a rank says something else or
  // still has calls in flight there), kStop (a rank is at its system's limits), kRebuildGroup (a
  // member is gone), kRetry (interrupted: this rank can change no groups any more).
  // After kFixCall, and kStop of a rank that is still in the job, all ranks have the same groups as
  // before. After kRebuildGroup and kRetry some may have the new one, and calls in it end.
  Result<GroupId> add_group(const std::vector<int>& ranks);
  Status remove_group(GroupId group);

  // Starts a call, and with a limit makes progress until it is done or that time is over: what
  // submit() and wait() do, but on an idle engine all of it on this thread, and nobody is woken.
  // Without a limit it never blocks. How the call ended take() says: kFixCall on every member, with
  // one text, when the members disagree, or the call is wrong on any of them (splits, root, scales,
  // dtype without this reduction …). Errors: kFixCall (unknown group, not a member, name in use,
  // a name or a shape out of bounds, a number that is in no table, this rank has joined, after
  // shutdown() …), kRebuildGroup (the group is over), kStop (in a forked child, no memory, the
  // engine has failed). Names that begin with `farandole.` are the engine's own.
  Result<Handle> submit(const Submission& submission, std::chrono::milliseconds wait_limit = {});
  // Starts all of a batch or, on an error, none of it; a limit is for all of it. The handles are in
  // the batch's order. A call that take() answers with kFixCall does not stop the others.
  Result<std::vector<Handle>> submit_batch(std::span<const Submission> batch,
                                           std::chrono::milliseconds wait_limit = {});
  // True once take() will not answer kRetry. Unknown handles count as done.
  bool poll(Handle handle);
  // Makes progress until the call is done or the time is over; returns poll(handle).
  bool wait(Handle handle, std::chrono::milliseconds limit);
  // The outcome of a finished call; forgets the handle. Outcome.status is kFixCall for an unknown
  // handle, kRetry if the call is not done.
  Outcome take(Handle handle);
  // Nobody will take the outcome: forgets the call when it is done, until when its memory stays
  // borrowed. A name that the engine chose stays in use, for ranks may drop at different moments.
  void drop(Handle handle);

  // Memory of the shared heap, 128-byte aligned, zeroed; ordinary memory when the heap is full.
  // Stays mapped until the last owner is gone, also after shutdown. Errors: kStop when the system
  // gives no more.
  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes);

  // Whether the other ranks of this host see this memory: calls on it need no copy. True for what
  // comes from allocate() while the heap has room (see heap_bytes). Any thread.
  bool is_shared(const void* memory, std::size_t bytes) const;

  // From now on this rank's calls are told in a file, a JSON trace for Perfetto: when they were
  // submitted, when all ranks had, when they were done. All ranks of a job may give the same path,
  // at any time, and share the file; what else is there is replaced. A relative path is taken from
  // the folder that the process is in. A timeline that is on is stopped; the same path goes on.
  // Blocks for as long as the disk takes. Errors: kFixCall (the path, another job's file, after
  // shutdown()), kStop (the system's limits, a forked child). When it cannot be written later on,
  // the log says so, and the timeline ends. `mark_cycles`: a mark where a call is submitted while
  // none is in flight.
  Status start_timeline(const std::string& path, bool mark_cycles = false);
  // All calls until now are in the file, which others may go on with; it can be read. Without
  // a timeline it does nothing. Errors: kStop (in a forked child).
  Status stop_timeline();

  // Leaves the job: the others' calls that need this rank end with an error that carries
  // `reason`. Ours that are pending end with kRebuildGroup. Idempotent. `traceback` is for the
  // launcher: where the exception was raised that ends this process; empty when none does.
  void shutdown(const std::string& reason, const std::string& traceback = {});

  // For the child of a fork: closes our descriptors and makes every later call fail with a clear
  // error. Takes no lock; mapped memory stays.
  void abandon_after_fork();

 private:
  std::unique_ptr<Parts> parts_;
};

// For a process that ends without an engine: what its launcher shows of the end, as shutdown()
// tells it with one. Does nothing without a launcher. Errors: kFixCall, kStop, as Engine::create().
Status report_end(const EngineOptions& options, const std::string& reason,
                  const std::string& traceback);

}  // namespace farandole
