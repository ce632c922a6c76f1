// The public C++ interface. One Engine is one member of one job; it runs collective operations on
// borrowed memory. Frameworks and bindings include only the headers in this folder.
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
#include "farandole/knobs.h"
#include "farandole/operation.h"
#include "farandole/status.h"

namespace farandole {

// ProcessContext: owns the objects that the engines of one process share. These are the heap from
// which allocate() takes memory, the connection to the launcher, the flight record, and the job's
// secret. The engines may exist one after another or at the same time. Memory that one engine has
// allocated is also visible to the peers of the other engines, unless a later engine asks for a
// smaller heap and so replaces the heap. The launcher sees the calls of one engine at a time. Most
// shared objects are freed with the last engine or tensor that uses them. But the secret lives as
// long as the context, because a process can read the secret only once. If this process serves the
// job's Store, that Store lives as long as the context, too. A process that serves the Store waits
// in the destructor of the context until all formations that have begun are over. This takes a few
// seconds at most. A forked child may use the context for engines of its own, which get new memory.
// Either the parent or the child may use the launcher, but not both.
class ProcessContext;
std::shared_ptr<ProcessContext> make_process_context();
// After this call, each time this process asks the launcher of an elastic job for a rank, it also
// says that this process has the state of the training. Only a process that has the state gets rank
// 0. If no such process is left, the job ends.
void set_has_state(ProcessContext& context);
// If the launcher or the driver of an elastic job is lost, the job must end with its next commit.
// Waits for the news of such a loss until the limit is over. Returns why the job must end, or an
// empty text if the job continues. Ranks may get the news at different times, so they must agree on
// the last step. A process that still runs 9 s after the loss is killed.
std::string announced_end(ProcessContext& context, std::chrono::milliseconds limit = {});

// Waits until the other ranks have left the job, if this process serves the job's Store (see
// EngineOptions::serves_job_store). The other ranks need the Store for new groups. Call this
// function when the program ends without an error. `interrupted` is called about every 100 ms; if
// it returns true, the wait ends with kRetry.
Status wait_for_other_ranks(ProcessContext& context, const std::function<bool()>& interrupted);

// The knobs, and the options that only a program can set. A knob that only a launcher or a frontend
// uses has no effect here.
struct EngineOptions : Knobs {
  // Shared by all engines of the process. Null: a new context. Engines that use the same launcher
  // at the same time must share a context, because otherwise an engine could read an answer of the
  // launcher that is for another engine.
  std::shared_ptr<ProcessContext> context;
  // A text by which the ranks find each other; the same on all ranks. Each engine of a process
  // needs a new text, which no other job on these hosts may use. There are two cases:
  // - `farandole run` has not started the job, so there is no rendezvous_descriptor. The text may
  //   be empty if size is 1. It may also be empty if there is a job_store; then this rank counts as
  //   the only rank of its host. If there is a text and a job_store, the ranks may be on several
  //   hosts, and the keys in that Store begin with the text, which may have at most 100 bytes.
  // - There is a rendezvous_descriptor. The text is empty for the engine of the whole job. For an
  //   engine of some ranks of the job, the keys in the Stores of the job begin with the text, which
  //   may have at most 100 bytes. The ranks may be on several hosts. Their numbers start at 0
  //   within this engine.
  std::string rendezvous_id;
  // Whether the engine has only some ranks of a larger job. The numbers of these ranks start at 0
  // within this engine. The engine gives no stall warnings, because they would name the wrong
  // ranks.
  bool is_subset_of_job = false;
  // Whether this process serves the Store at job_store, until its process context is destroyed. If
  // `farandole run` has not started the job, exactly one process of the job serves the Store. Other
  // processes, and later engines of this process, connect to that Store.
  bool serves_job_store = false;
  // Groups in addition to the world. Each is an ascending list of ranks; the list of groups is the
  // same on every rank. The groups in the list get the numbers 1, 2, … in this order. The world is
  // group 0. In an elastic job, groups may name ranks that the job lacks. Such groups get numbers,
  // too, but the program cannot use them until an engine of a larger job is created.
  std::vector<std::vector<int>> groups;
  // Called about every 100 ms while create(), add_group() or remove_group() wait. If it returns
  // true, the wait ends with kRetry.
  std::function<bool()> interrupted;

  // Reads the knobs (see `docs/knobs.md`). If they give neither rank nor size, the function also
  // reads the variables of other launchers. A caller that sets topology and rendezvous_id itself
  // must pass true for `topology_is_known`; then the function never reads the variables of other
  // launchers. Errors: kFixCall, with the variable and its value.
  static Result<EngineOptions> from_environment(bool topology_is_known = false);
};

using GroupId = std::uint32_t;
inline constexpr GroupId kWorld = 0;

using Handle = std::uint64_t;

// If this is the peer of a receive, the message may come from any other rank of the group.
inline constexpr int kAnyRank = -1;

// A function that runs once when a call is done, whatever its outcome, for callers that never wait.
// The function gets the call's handle. The thread that finishes the call runs the function: a
// thread that submits, waits or shuts down, or a thread of the engine. The function may run inside
// submit(), so a caller of submit() must not hold a lock that the function takes.
//
// The engine holds no mutex while the function runs, but this rank makes no progress until the
// function returns. So the function must not wait for another call, nor for a thread that waits for
// another call. The function may call submit(), poll(), peek(), take() and drop(); the memory of
// its own call is no longer borrowed. Inside the function, submit() and wait() ignore their limits,
// and other functions that block return kFixCall. If the program has dropped the handle, the handle
// is unknown inside the function. Calls that a completion submits have no fixed order relative to
// the calls of other threads. So such calls need names. If submit() returns an error, there is no
// call, and the function never runs.
struct Completion {
  void (*function)(void* context, Handle handle) noexcept = nullptr;  // null: none
  void* context = nullptr;
};

// One call of one rank. The engine borrows the memory until the call is done (see poll()) or the
// engine is destroyed. The operation's row in kOperationRows says which fields are used.
//
// After kRebuildGroup, the contents of the outputs are undefined, but no other rank writes to them
// any more. If a signal has stopped another rank when the call fails, the error comes a second
// later, and the memory of the output is no longer shared.
struct Submission {
  Operation operation = Operation::kBarrier;
  // Calls with the same name on all members of the group belong together. A name is in use from
  // submit() to take(), even if the call failed. The name of a dropped call stays in use until the
  // group is removed (about 40 bytes per name).
  //
  // If the name is empty, the engine chooses `<operation>.noname.<index>`. The index is one more
  // than that of the last unnamed call of the operation in the group. The index begins at 0 again
  // when the program has taken the results of all such calls, so that loops repeat their names.
  // Before each submit() of an unnamed call, all members must have taken equally many results of
  // unnamed calls. If they have not, different calls may get the same name; then these calls fail
  // with kFixCall. Or one call may get different names on two ranks; then this call stalls. So call
  // take() only where the program waits for the result. If poll() has returned true, call peek()
  // instead. Threads that submit at the same time have no common order, so they must name their
  // calls.
  std::string name;
  GroupId group = kWorld;
  DType dtype = DType::kUInt8;
  // The device of the user's tensor, the same on all ranks. Input and output are always in host
  // memory. If the tensor is on another device, the caller copies it to host memory and back.
  DeviceType device = DeviceType::kCpu;
  // In elements, outermost dimension first. The tensor is C-contiguous.
  std::vector<std::int64_t> shape;
  const void* input = nullptr;  // in a broadcast, only the root's input is read
  // In a reduce-scatter, the output has scattered_rows() rows. The operation's row in
  // kOperationRows says whether the output may be the input.
  void* output = nullptr;
  ReduceOp reduce_op = ReduceOp::kSum;
  // Reductions: the result is postscale × op(prescale × input of each rank). Both scales are finite
  // and the same on all ranks. Floats are scaled in the type in which they are summed; integers are
  // scaled in float64 and truncated toward zero.
  double prescale = 1;
  double postscale = 1;
  int root_rank = 0;  // broadcast: the world rank of the root, which is a member of the group
  // Messages: the world rank of the other member; for a receive, `peer` may also be kAnyRank. A
  // receive gets the oldest message that has the same channel and tag as the receive; names do not
  // matter. Messages of one rank with the same channel and tag arrive in the order in which they
  // were submitted. Both ranks must give the same dtype and number of elements; otherwise both
  // calls fail. But if the send was done before the ranks compare the calls, only the receive
  // fails. A send reads `input`, a receive writes `output`.
  //
  // A send is done when the receiver has taken the message. A send of up to 8 KiB may be done
  // earlier, if the ring of 64 KiB to the receiver has room, and if fewer than 64 messages from
  // this rank wait at the receiver for a receive.
  int peer = 0;
  int tag = 0;
  std::string channel = {};  // at most 256 bytes; messages of different channels never match
  // Alltoall: how many rows go to each member, in the order of the group's ranks; their sum is at
  // most the first dimension. If this list is empty, each member gets an equal share of all rows.
  std::vector<std::int64_t> splits;
  // If this text is not empty, it says why the caller considers this call invalid. Then the call is
  // rejected on all members with this text. Of the other fields, only operation, name and group are
  // used.
  std::string call_error = {};
  Completion completion = {};
};

// The result of a call.
struct Outcome {
  Status status;
  // Allgather, alltoall: the rows that this rank has received, in the order of the members, and how
  // many of them came from each member.
  std::shared_ptr<std::byte> received = {};  // the memory is freed when its last owner is gone
  std::vector<std::int64_t> received_rows = {};
  int last_joined = -1;  // join: the rank that joined last, the same on all members
  int source = -1;       // receive: the rank that has sent
};

// Why a rank leaves its job. The launcher uses this cause to find the rank that failed first.
enum class LeaveCause : std::uint8_t {
  kOrderly,    // the program ended, or called shutdown()
  kException,  // an uncaught exception in the program itself
  kGroupLost,  // an uncaught exception that reports the loss of a group, or whose cause does
};

// All functions are thread-safe. Only create(), add_group(), remove_group(), wait(), shutdown(),
// submit() with a limit, start_timeline() and stop_timeline() block. The engine has two threads
// ("progress" and "watch"), which sleep when they have nothing to do, and a third thread while a
// timeline is on. If another launcher than `farandole run` has started the job, one engine per host
// also has a thread that checks for stalls at intervals (see Knobs::stall_warning). A forked child
// cannot use the engine: see abandon_after_fork().
class Engine {
 public:
  struct Parts;  // internal

  // Connects to the other ranks and forms the groups. Blocks until all ranks have connected.
  // Errors: kFixCall (the options contradict each other or the options of another rank), kRetry
  // (interrupted), kRebuildGroup (some ranks did not connect; the message names them), kStop
  // (system limits).
  static Result<std::unique_ptr<Engine>> create(EngineOptions options);

  // Calls shutdown(). A completion must not call shutdown(), so it must not destroy the engine,
  // either. Memory from allocate() stays valid.
  ~Engine();
  explicit Engine(std::unique_ptr<Parts> parts);  // called only by create()
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // The topology that the ranks found when the job was formed; all its fields are set.
  const RankTopology& topology() const;
  // True if no call can succeed any more, because this rank has called shutdown() or because the
  // job has ended. When a call ends with kRebuildGroup, this rank knows that the job has ended.
  bool is_over() const;
  // The number of the current epoch of an elastic job. It counts from 1 and is the same on all
  // ranks. It is 0 if the job is not elastic.
  std::int64_t epoch() const;
  // Whether the launcher of an elastic job wants to change the members. If so, all ranks should
  // shut down after the same step and create the next engine. Ranks may learn of the change at
  // different times, so they must agree on this step. The call asks the launcher, which takes about
  // 20 µs. Returns false in other jobs.
  bool is_change_announced() const;
  // World ranks of a group in ascending order, including ranks that the job lacks; empty for an
  // unknown group.
  std::vector<int> ranks_of(GroupId group) const;

  // Add a group to the running job, or remove one. All ranks of the world must call the function
  // with the same argument and in the same order; each call blocks until all ranks have made it. A
  // new group gets a number that was never used before.
  //
  // Errors: kFixCall (the ranks are not an ascending list, the group exists already, there are too
  // many groups; the world or an unknown group cannot be removed; another rank passes another
  // argument, or has not taken the results of all its calls in the group), kStop (a rank has
  // reached a limit of its system), kRebuildGroup (a member is gone), kRetry (interrupted: this
  // rank can change no groups any more). After kFixCall, and after kStop of a rank that is still in
  // the job, all ranks have the same groups as before. After kRebuildGroup and kRetry, some ranks
  // may have the new group; calls in it fail.
  Result<GroupId> add_group(const std::vector<int>& ranks);
  Status remove_group(GroupId group);

  // Starts a call. Without a limit it never blocks. With a limit it also waits until the call is
  // done or the limit is over. If the engine is idle, the whole call runs on this thread, and no
  // other thread wakes up. take() returns how the call ended. If the members disagree about the
  // call, or if the call is invalid on any member (splits, root, scales, a dtype without this
  // reduction …), its outcome is kFixCall with the same text on every member.
  //
  // Errors: kFixCall (the group, operation, dtype, device or reduction is unknown; this rank is not
  // a member, or has joined; the name is in use, too long, or reserved for the engine; the shape is
  // invalid; shutdown() was called …), kRebuildGroup (the group is over), kStop (this is a forked
  // child, there is no memory, or the engine has failed). Names that begin with `farandole.` or
  // contain `.noname.` are reserved for the engine.
  Result<Handle> submit(const Submission& submission, std::chrono::milliseconds wait_limit = {});
  // Starts all calls of a batch; if there is an error, starts no call. The limit is for all calls
  // together. The handles are in the order of the batch. If the outcome of one call is kFixCall,
  // the other calls still run.
  Result<std::vector<Handle>> submit_batch(std::span<const Submission> batch,
                                           std::chrono::milliseconds wait_limit = {});
  // True if the call is done, so that take() returns its outcome. True for an unknown handle.
  // Changes nothing.
  bool poll(Handle handle);
  // Makes progress until the call is done or the limit is over. Returns poll(handle).
  bool wait(Handle handle, std::chrono::milliseconds limit);
  // Returns the outcome of a call that is done, and forgets the handle. Then the name may be used
  // again. Outcome.status is kFixCall for an unknown handle and kRetry if the call is not done.
  Outcome take(Handle handle);
  // The same as take(), but keeps the handle and the name. All outcomes that are returned for a
  // handle share the same received memory.
  Outcome peek(Handle handle);
  // Tells the engine that no thread will take the outcome. The engine forgets the call when it is
  // done; until then its memory stays borrowed. The name stays in use, because ranks may drop the
  // handle at different times.
  void drop(Handle handle);

  // Allocates zeroed memory in the shared heap, aligned to 128 bytes, or ordinary memory if the
  // heap is full. The memory stays mapped until its last owner is gone, even after shutdown().
  // Errors: kStop if the system has no memory left.
  Result<std::shared_ptr<std::byte>> allocate(std::size_t bytes);

  // Whether the other ranks of this host can see this memory, so that calls on it need no copy.
  // This is true for memory that allocate() has taken from the shared heap (see heap_bytes).
  bool is_shared(const void* memory, std::size_t bytes) const;

  // Starts to write this rank's calls to a file, a JSON trace for Perfetto: when each call was
  // submitted, when all ranks had submitted it, and when it was done. All ranks of a job may give
  // the same path, at any time. They then share the file. The trace of an earlier job in this file
  // is replaced. A relative path starts at the current folder. If a timeline is on, this call first
  // stops that timeline. If the old timeline had the same path, the new timeline continues the file
  // of the old one. `mark_cycles` marks each call that is submitted while no other call is in
  // flight. Blocks while the beginning of the file is written.
  //
  // Errors: kFixCall (the path cannot be used, the file belongs to another job, or called after
  // shutdown()), kStop (system limits, a forked child). If a later write to the file fails, the log
  // says so and the timeline ends.
  Status start_timeline(const std::string& path, bool mark_cycles = false);
  // Stops the timeline. Afterwards, the file contains all calls so far and can be read. Other ranks
  // may continue it. Does nothing if no timeline is on. Errors: kStop (in a forked child).
  Status stop_timeline();

  // Leaves the job. Calls that all members have begun are finished first; after a second without
  // progress, the engine gives them up. Other calls that need this rank end with kRebuildGroup; on
  // the other ranks, the error contains `reason`. Further calls of shutdown() do nothing. `cause`
  // and `traceback` are reported to the launcher; the traceback is that of the exception that ends
  // this process. Errors: kFixCall (called from a completion).
  Status shutdown(const std::string& reason, LeaveCause cause = LeaveCause::kOrderly,
                  const std::string& traceback = {});

  // For the child of a fork: closes the engine's descriptors, and makes every later call fail with
  // a clear error. Takes no lock. Mapped memory stays mapped.
  void abandon_after_fork();

 private:
  std::unique_ptr<Parts> parts_;
};

// For a process that ends and has no engine: reports the reason to the launcher, as shutdown()
// does. Does nothing if there is no launcher. Errors: kFixCall, kStop, as for Engine::create().
Status report_end(const EngineOptions& options, const std::string& reason, LeaveCause cause,
                  const std::string& traceback);

}  // namespace farandole
