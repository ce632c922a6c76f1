// Flight record: what one worker does now and did last. It is in memory that the launcher can read
// at any time, even after the worker has died. The worker writes without locks and system calls (20
// ns per call). The launcher ignores lines that are only partly written.
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

// How many of the last calls the record keeps.
inline constexpr std::size_t kFlightCalls = 512;
// How many bytes of each name the record keeps.
inline constexpr std::size_t kFlightNameBytes = 72;

enum class MemberState : std::uint32_t {
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

// One call in the flight record. It may have finished.
struct RecordedCall {
  Handle handle = 0;
  GroupId group = kWorld;
  Operation operation = Operation::kBarrier;
  DType dtype = DType::kUInt8;
  int peer = 0;  // messages: the other rank, or kAnyRank
  std::int64_t elements = 0;
  std::string name;             // its first kFlightNameBytes bytes
  std::uint64_t name_hash = 0;  // hash of the whole name, the same in all processes
  CallState state = CallState::kWaiting;
  TimePoint submitted{};
  TimePoint changed{};  // when `state` began

  bool in_flight() const { return state == CallState::kWaiting || state == CallState::kRunning; }
};

// The writing side, for one engine at a time. Any thread may call it, with two limits: the
// functions must be called in order for each handle, and record_submitted(), record_finished(),
// record_blocked() and record_unblocked() must not run at the same time. The record has lines for
// the last kFlightCalls calls. A new call takes the line of an older call, even if the older call
// is still in flight. If the older call changes its state at that moment, the line may show this
// state for the new call until the new call changes its own state.
class FlightRecorder {
 public:
  static std::size_t bytes_needed();

  // `memory` has bytes_needed() bytes, which are zero at first. `timeline` is notified of all
  // calls; it may be null. Both must outlive this object.
  explicit FlightRecorder(std::byte* memory, Timeline* timeline = nullptr)
      : memory_(memory), timeline_(timeline) {}

  // Call it when a new engine begins: clears the record of the previous engine of this process.
  void begin(TimePoint now);
  void record_membership(TimePoint now);
  void enter_group(GroupId group);
  void leave_group(GroupId group);
  // `name_hash` is a hash of the name, the same in all processes.
  void record_submitted(Handle handle, const Submission& submission, std::uint64_t name_hash,
                        TimePoint now);
  void record_running(Handle handle, TimePoint now);
  void record_finished(Handle handle, bool succeeded, TimePoint now);
  // The program counts as blocked between these two calls. Call record_blocked() when the first
  // thread of the program begins to wait for this handle, and record_unblocked() when no thread
  // waits any more.
  void record_blocked(Handle handle, TimePoint now);
  void record_unblocked(TimePoint now);
  // Records that this rank's calls fail because `rank` is gone. Only the first such rank is
  // recorded.
  void record_blamed_rank(int rank);
  void record_left(std::string_view reason, LeaveCause cause, std::string_view traceback,
                   TimePoint now);

 private:
  std::byte* memory_;
  Timeline* timeline_;
};

// What a worker has done since its last init().
struct FlightCounts {
  std::uint64_t calls = 0;  // calls that succeeded
  std::uint64_t bytes = 0;  // size of the tensors of all calls, including those in flight
  // How long the program was blocked in calls, which waited for other ranks or moved data. The
  // current wait is not included.
  Duration blocked{};
};

// The call in which the program waits or has last waited.
struct FlightWait {
  Handle handle = 0;  // 0 if the program has not waited yet
  TimePoint since{};
  std::optional<TimePoint> until;  // empty while the program waits
};

// The contents of a flight record, as the launcher reads them.
struct FlightReport {
  MemberState member_state = MemberState::kOutside;
  TimePoint since{};                        // when `member_state` began
  std::optional<int> blamed_rank;           // the rank whose end made this rank's calls fail
  LeaveCause cause = LeaveCause::kOrderly;  // why the worker left
  std::string reason;                       // why the worker left, for people
  std::string traceback;                    // of the exception that ended its program, or empty
  std::vector<GroupId> groups;
  std::vector<RecordedCall> calls;  // sorted by handle, so the last call is last
  FlightCounts counts;
  FlightWait wait;
};

FlightReport read_flight_record(const std::byte* memory);

}  // namespace farandole
