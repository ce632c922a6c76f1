// The public C++ interface. One Engine is one member of one job; it runs collective operations on
// borrowed memory. Frameworks and bindings include this folder and nothing else.
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

// Who this process is. `farandole run` sets it through FARANDOLE_* variables; the variables of
// other launchers are understood, too (docs/howto/launchers.md).
struct RankTopology {
  int rank = 0;        // 0 … size − 1
  int size = 1;        // workers in the job
  int local_rank = 0;  // among the workers of this host
  int local_size = 1;
  int cross_rank = 0;  // among the workers with this local_rank, over the hosts
  int cross_size = 1;
};

struct EngineOptions {
  RankTopology topology;
  // Our end of the Unix socket to the launcher; −1 if there is none. Borrowed: it must stay open
  // while the engine lives.
  int rendezvous_descriptor = -1;
  // For a job without a launcher of ours: a text that is the same on all ranks, and that no other
  // job on this host uses. The ranks find each other by it, and each engine of a process needs a
  // new one. If it is empty, size must be 1, or there must be a launcher.
  std::string rendezvous_id;
  // Groups beside the world, each an ascending list of ranks, the same on every rank. They get the
  // numbers 1, 2, … in this order; the world is group 0.
  std::vector<std::vector<int>> groups;
  // How long to wait for the other ranks.
  std::chrono::milliseconds start_timeout{120'000};
  // If a call is in flight for this long, this rank leaves the job; 0: never. The launcher warns
  // earlier. Joins do not count.
  std::chrono::seconds stall_limit{0};
  // Memory shared with the launcher, which reads there what this rank does
  // (timeline/flight_record.h); −1 if there is none. Borrowed: create() maps it.
  int flight_record_descriptor = -1;
  // Limits in bytes for a frontend's bucket of gradients, and for a transfer that the allreduces of
  // other calls share. 0: each has its own. Must be equal on all ranks; the engine compares it.
  std::size_t bucket_bytes = 0;
  // After this many steps of an optimizer, a frontend compares the parameters of all ranks; 0:
  // never. Must be equal on all ranks; the engine compares it and passes it on.
  std::uint64_t check_parameters = 0;
  // Size of the memory that the other ranks of the host can see. Only touched pages cost memory. 0:
  // as much as the machine has, if this process may map the heaps of all ranks.
  std::size_t heap_bytes = 0;
  // The file of a timeline that begins with the engine; empty: none. If it cannot be written, the
  // log says so and the job goes on.
  std::string timeline_path;
  // Approximate size limit of a timeline's file, for all ranks together. What does not fit is left
  // out.
  std::size_t timeline_bytes = std::size_t{256} << 20;
  // As `mark_cycles` of start_timeline(), for this timeline.
  bool timeline_mark_cycles = false;
  // The least severe messages on standard error: trace, debug, info, warning, error or fatal.
  std::string log_level = "warning";
  bool log_hide_time = false;
  // Called about every 100 ms while create(), add_group() or remove_group() wait. If it returns
  // true, the wait ends with kRetry.
  std::function<bool()> interrupted;

  // Reads the knobs (see `docs/knobs.md`). If they do not say who this process is, reads what
  // another launcher has set. A caller that sets place and meeting itself passes true, and then
  // this is skipped. Errors: kFixCall, naming the variable and its value.
  static Result<EngineOptions> from_environment(bool topology_is_known = false);
};

using GroupId = std::uint32_t;
inline constexpr GroupId kWorld = 0;

// One collective call of one rank. The memory is borrowed until the call is done (see poll()) or
// the engine is destroyed. After kRebuildGroup, the contents of the outputs are undefined, but no
// other rank writes to them any more. If a rank is stopped, this error takes a second, and the
// output's memory is not shared any more. The shape is in elements, outermost dimension first,
// C-contiguous. The operation's row says which fields are used.
struct Submission {
  Operation operation = Operation::kBarrier;
  // Calls with the same name on all members of the group belong together. A name is in use from
  // submit() to take(), also after an error; that of a dropped call as long as the group exists
  // (about 40 bytes each). Empty: the engine chooses `<operation>.noname.<index>` with the lowest
  // index that is not in use in the group, so that loops repeat their names; that of a dropped call
  // never comes again. So names follow from the order of the program's own submit() and take(), and
  // pair the right calls if that is the same on all members: take() where the program waits for the
  // result, and where poll() has been true only look at it, by peek(). Threads that submit at the
  // same time have no order: they must name their calls.
  std::string name;
  GroupId group = kWorld;
  DType dtype = DType::kUInt8;
  // The device of the user's tensor; must be the same on all ranks. Input and output are always
  // memory of this process: the caller has copied a tensor on a device there.
  DeviceType device = DeviceType::kCpu;
  std::vector<std::int64_t> shape;
  const void* input = nullptr;  // broadcast: only read on the root
  // Allreduce, broadcast: may equal input. Reduce-scatter: scattered_rows() rows, must not be the
  // input.
  void* output = nullptr;
  ReduceOp reduce_op = ReduceOp::kSum;
  // Reductions: postscale × op(prescale × input of each rank). Both finite and the same on all
  // ranks. Floats are scaled in the type that sums them; integers in float64, truncated toward
  // zero.
  double prescale = 1;
  double postscale = 1;
  int root_rank = 0;  // broadcast: a world rank that is a member of the group
  // Alltoall: how many rows go to each member, in the order of the group's ranks; their sum is at
  // most the first dimension. Empty: all rows in equal shares.
  std::vector<std::int64_t> splits;
  // If not empty, the caller found this call invalid: it is rejected on all members with this text.
  // Only operation, name and group are used then.
  std::string call_error = {};
};

// The result of a call.
struct Outcome {
  Status status;
  // Allgather, alltoall: what came from each member, one after another in the order of the ranks,
  // and how many rows each has sent.
  std::shared_ptr<std::byte> received = {};  // shared by the taker and whatever views it hands out
  std::vector<std::int64_t> received_rows = {};
  int last_joined = -1;  // join: the rank that came last, the same on all members
};

using Handle = std::uint64_t;

// Why a rank leaves its job. From it the launcher finds the rank that failed first; the texts
// beside it are for people.
enum class LeaveCause : std::uint8_t {
  kOrderly,    // the program ended, or called shutdown()
  kException,  // an uncaught exception of the program's own
  kGroupLost,  // an uncaught exception that says that a group was lost, or that one caused
};

// Thread-safe throughout. Only create(), add_group(), remove_group(), wait(), shutdown(), a
// submit() with a limit, start_timeline() and stop_timeline() block. The engine has two threads
// ("progress" and "watch"), which sleep when idle, and a third one while a timeline is on. Not
// usable in a forked child: see abandon_after_fork().
class Engine {
 public:
  struct Parts;  // internal

  // Meets the other members and forms the groups. Blocks until all are there. Errors: kFixCall (the
  // options contradict each other or another rank's), kRetry (interrupted), kRebuildGroup (some
  // ranks did not arrive; names them), kStop (system limits).
  static Result<std::unique_ptr<Engine>> create(EngineOptions options);

  ~Engine();  // shutdown(), then frees everything but memory that still has owners outside
  explicit Engine(std::unique_ptr<Parts> parts);  // only for create()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const RankTopology& topology() const;
  // Whether no call can succeed any more, because this rank has called shutdown() or has noticed
  // that the job has ended. It notices that at the latest when a call ends with kRebuildGroup. Any
  // thread.
  bool is_over() const;
  // World ranks of a group, ascending; empty for an unknown number.
  std::vector<int> ranks_of(GroupId group) const;

  // Adds a group to, or removes one from, the running job. All ranks of the world must call it,
  // with the same argument and in the same order; it blocks until they have. A new group gets a
  // number that no change has tried before. Errors: kFixCall (not an ascending list of ranks, known
  // already, too many; the world or an unknown number to be removed; a rank says something else or
  // has calls there that it has not taken), kStop (a rank is at its system's limits), kRebuildGroup
  // (a member is gone), kRetry (interrupted: this rank can change no groups any more). After
  // kFixCall, and kStop of a rank that is still in the job, all ranks have the same groups as
  // before. After kRebuildGroup and kRetry some may have the new one, and calls in it end.
  Result<GroupId> add_group(const std::vector<int>& ranks);
  Status remove_group(GroupId group);

  // Starts a call. Without a limit it never blocks. With a limit it also waits until the call is
  // done or the time is over; if the engine is idle, the whole call then runs on this thread
  // without waking another one. take() returns how the call ended: kFixCall on every member, with
  // one text, if the members disagree or the call is invalid on any of them (splits, root, scales,
  // dtype without this reduction …). Errors: kFixCall (unknown group, not a member, name in use,
  // a name or a shape out of bounds, a number that is in no table, this rank has joined, after
  // shutdown() …), kRebuildGroup (the group is over), kStop (in a forked child, no memory, the
  // engine has failed). Names that begin with `farandole.`, or have `.noname.` in them, are the
  // engine's own.
  Result<Handle> submit(const Submission& submission, std::chrono::milliseconds wait_limit = {});
  // Starts all calls of a batch or, on an error, none; a limit is for all of them. The handles are
  // in the batch's order. If one call fails with kFixCall, the others still run.
  Result<std::vector<Handle>> submit_batch(std::span<const Submission> batch,
                                           std::chrono::milliseconds wait_limit = {});
  // True once take() will not answer kRetry. Unknown handles count as done. Changes nothing.
  bool poll(Handle handle);
  // Makes progress until the call is done or the time is over. Returns poll(handle).
  bool wait(Handle handle, std::chrono::milliseconds limit);
  // The outcome of a finished call; forgets the handle, and the name may be used again.
  // Outcome.status is kFixCall for an unknown handle, kRetry if the call is not done.
  Outcome take(Handle handle);
  // The same, but the handle stays as it is, and with it the name. What it hands out is shared.
  Outcome peek(Handle handle);
  // Nobody will take the outcome: forgets the call when it is done, until when its memory stays
  // borrowed. The name stays in use, as if the handle had been kept: ranks may drop at different
  // times.
  void drop(Handle handle);

  // Allocates zeroed memory of the shared heap, 128-byte aligned; ordinary memory if the heap is
  // full. Stays mapped until the last owner is gone, also after shutdown. Errors: kStop if the
  // system has no memory left.
  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes);

  // Whether the other ranks of this host can see this memory, so that calls on it need no copy.
  // True for memory of allocate() while the heap has room (see heap_bytes). Any thread.
  bool is_shared(const void* memory, std::size_t bytes) const;

  // From now on, writes this rank's calls to a file, a JSON trace for Perfetto: when they were
  // submitted, when all ranks had submitted them, and when they were done. All ranks of a job may
  // give the same path, at any time, and share the file; anything else in it is replaced. A
  // relative path is relative to the current folder. If a timeline is on, it is stopped; the same
  // path continues its file. Blocks for as long as the disk takes. Errors: kFixCall (the path,
  // another job's file, after shutdown()), kStop (system limits, a forked child). If the file
  // cannot be written later on, the log says so and the timeline ends. `mark_cycles` marks each
  // call that is submitted while no other is in flight.
  Status start_timeline(const std::string& path, bool mark_cycles = false);
  // Stops the timeline: all calls until now are in the file, which can be read. Other ranks may
  // continue it. Does nothing if there is none. Errors: kStop (in a forked child).
  Status stop_timeline();

  // Leaves the job. Calls that all members have begun are finished first, or end after a second
  // without progress. Other calls that need this rank end with kRebuildGroup; on the other ranks
  // the error gives `reason`. Idempotent. `cause` and `traceback` are for the launcher; the
  // traceback says where the exception was raised that ends this process.
  void shutdown(const std::string& reason, LeaveCause cause = LeaveCause::kOrderly,
                const std::string& traceback = {});

  // For the child of a fork: closes our descriptors and makes every later call fail with a clear
  // error. Takes no lock. Mapped memory stays.
  void abandon_after_fork();

 private:
  std::unique_ptr<Parts> parts_;
};

// For a process that ends without an engine: what its launcher shows of the end, as shutdown()
// tells it with one. Does nothing without a launcher. Errors: kFixCall, kStop, as Engine::create().
Status report_end(const EngineOptions& options, const std::string& reason, LeaveCause cause,
                  const std::string& traceback);

}  // namespace farandole
