// Flight record: what one worker does and did last, in memory that its launcher reads from outside,
// also after the worker's death. The worker writes, without a lock or a system call (20 ns a call);
// the launcher only looks, and what it finds half-written it leaves out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "farandole/engine.h"

namespace farandole {

class Timeline;

// How many of the last calls are kept, and how much of their names.
inline constexpr std::size_t kFlightCalls = 512;
inline constexpr std::size_t kFlightNameBytes = 72;

enum class FlightLife : std::uint32_t {
  kOutside,  // has not called init()
  kForming,  // waits in init() for the others
  kMember,
  kLeft,
};

enum class CallState : std::uint32_t {
  kWaiting,  // submitted; not all members have
  kRunning,  // all have: data moves
  kDone,
  kFailed,
};

struct FlightCall {
  Handle handle = 0;
  GroupId group = kWorld;
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kUInt8;
  std::int64_t elements = 0;
  std::string name;             // its first kFlightNameBytes
  std::uint64_t name_hash = 0;  // of all of it, the same in all processes
  CallState state = CallState::kWaiting;
  TimePoint submitted{};
  TimePoint changed{};  // when it came into its state

  bool in_flight() const { return state == CallState::kWaiting || state == CallState::kRunning; }
};

// The writing side. One engine at a time. Any thread, but the calls for one handle in order, and
// none of submitted(), finished(), and the two of blocking, from two threads at once. Only the last
// kFlightCalls are kept: what is in flight while so many others are submitted is seen no more, and
// a state that is written just then may stand at the newer call until that one's own next state.
class FlightRecorder {
 public:
  static std::size_t bytes_needed();

  // `memory`: bytes_needed() bytes, at first zeroed. `timeline`, if not null, is told of all calls.
  // Both outlive this.
  explicit FlightRecorder(std::byte* memory, Timeline* timeline = nullptr)
      : memory_(memory), timeline_(timeline) {}

  // A new engine begins: forgets what an earlier one of this process has left.
  void begin(TimePoint now);
  void formed(TimePoint now);
  void enter_group(GroupId group);
  void leave_group(GroupId group);
  // `name_hash`: of the name, the same in all processes.
  void submitted(Handle handle, const Submission& submission, std::uint64_t name_hash,
                 TimePoint now);
  void running(Handle handle, TimePoint now);
  void finished(Handle handle, bool well, TimePoint now);
  // The program waits inside a call of ours, for this handle: from when the first of its threads
  // does so until none does any more.
  void blocked(Handle handle, TimePoint now);
  void unblocked(TimePoint now);
  // This rank's calls fail because that one is gone. Only the first counts.
  void blame(int rank);
  void left(std::string_view reason, LeaveCause cause, std::string_view traceback, TimePoint now);

 private:
  std::byte* memory_;
  Timeline* timeline_;
};

// What a worker has done since its last init().
struct FlightCounts {
  std::uint64_t calls = 0;  // that have ended well
  std::uint64_t bytes = 0;  // of the tensors that it gave to calls, also to those in flight
  // How long its program was blocked in calls, while they waited for other ranks or data moved;
  // without what goes on now.
  Duration blocked{};
};

// Where the program waits, or did so last.
struct FlightWait {
  Handle handle = 0;  // 0: nowhere yet
  TimePoint since{};
  std::optional<TimePoint> until;  // nothing while it waits
};

// What the launcher finds.
struct FlightReport {
  FlightLife life = FlightLife::kOutside;
  TimePoint since{};                        // of this life
  std::optional<int> blamed_rank;           // whose end was the reason for our failure
  LeaveCause cause = LeaveCause::kOrderly;  // why it left
  std::string reason;                       // the same, for people
  std::string traceback;  // of the exception that ended its program; empty if none did
  std::vector<GroupId> groups;
  std::vector<FlightCall> calls;  // by handle, the last one last
  FlightCounts counts;
  FlightWait wait;
};

FlightReport read_flight_record(const std::byte* memory);

}  // namespace farandole
