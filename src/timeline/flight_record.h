// Flight record: what one worker does now and did last. It lies in memory that the launcher can
// read at any time, even after the worker has died. The worker writes without a lock or a system
// call (20 ns per call). The launcher leaves out lines that are half-written.
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

// How many of the last calls are kept, and how many bytes of each name.
inline constexpr std::size_t kFlightCalls = 512;
inline constexpr std::size_t kFlightNameBytes = 72;

enum class FlightLife : std::uint32_t {
  kOutside,  // has not called init()
  kForming,  // waits in init() for the others
  kMember,
  kLeft,
};

enum class CallState : std::uint32_t {
  kWaiting,  // submitted here, but not on all members
  kRunning,  // submitted on all members, so data moves
  kDone,
  kFailed,
};

struct FlightCall {
  Handle handle = 0;
  GroupId group = kWorld;
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kUInt8;
  std::int64_t elements = 0;
  std::string name;             // the first kFlightNameBytes of it
  std::uint64_t name_hash = 0;  // of the whole name, the same in all processes
  CallState state = CallState::kWaiting;
  TimePoint submitted{};
  TimePoint changed{};  // when it entered its state

  bool in_flight() const { return state == CallState::kWaiting || state == CallState::kRunning; }
};

// The writing side, for one engine at a time. Any thread may call it, with these limits: the calls
// for one handle come in order, and no two threads are in submitted(), finished(), blocked() or
// unblocked() at the same time. Only the last kFlightCalls calls are kept. If an older call is
// still in flight, it is lost; a change of its state that is written at that moment may appear at
// the newer call until the newer call's next change.
class FlightRecorder {
 public:
  static std::size_t bytes_needed();

  // `memory` has bytes_needed() bytes, zeroed at first. `timeline` may be null; otherwise it is
  // notified of all calls. Both must outlive this object.
  explicit FlightRecorder(std::byte* memory, Timeline* timeline = nullptr)
      : memory_(memory), timeline_(timeline) {}

  // Call it when a new engine begins: clears the record of the previous engine of this process.
  void begin(TimePoint now);
  void formed(TimePoint now);
  void enter_group(GroupId group);
  void leave_group(GroupId group);
  // `name_hash` is a hash of the name, the same in all processes.
  void submitted(Handle handle, const Submission& submission, std::uint64_t name_hash,
                 TimePoint now);
  void running(Handle handle, TimePoint now);
  void finished(Handle handle, bool well, TimePoint now);
  // Marks the time in which the program waits for this handle: from the moment when its first
  // thread waits until no thread waits any more.
  void blocked(Handle handle, TimePoint now);
  void unblocked(TimePoint now);
  // Notes that this rank's calls fail because `rank` is gone. Only the first rank is kept.
  void blame(int rank);
  void left(std::string_view reason, LeaveCause cause, std::string_view traceback, TimePoint now);

 private:
  std::byte* memory_;
  Timeline* timeline_;
};

// What a worker has done since its last init().
struct FlightCounts {
  std::uint64_t calls = 0;  // that succeeded
  std::uint64_t bytes = 0;  // of the tensors of all calls, including those in flight
  // How long the program was blocked in calls, because they waited for other ranks or because data
  // moved. A wait that is not over is not included.
  Duration blocked{};
};

// The call in which the program waits or has last waited.
struct FlightWait {
  Handle handle = 0;  // 0: it has not waited yet
  TimePoint since{};
  std::optional<TimePoint> until;  // empty while it waits
};

// The contents of a flight record, as the launcher reads them.
struct FlightReport {
  FlightLife life = FlightLife::kOutside;
  TimePoint since{};                        // when `life` began
  std::optional<int> blamed_rank;           // the rank whose end made this rank's calls fail
  LeaveCause cause = LeaveCause::kOrderly;  // why it left
  std::string reason;                       // why it left, for people
  std::string traceback;  // of the exception that ended its program; empty if none did
  std::vector<GroupId> groups;
  std::vector<FlightCall> calls;  // sorted by handle, so the last call is last
  FlightCounts counts;
  FlightWait wait;
};

FlightReport read_flight_record(const std::byte* memory);

}  // namespace farandole
