// TraceText: formats the events of one rank as lines of a Chrome trace, which Perfetto and
// chrome://tracing open. Uses no file and no clock.
//
// The file is a JSON array with one object per line: the head, the lines of all ranks, the end.
// Each rank is a process of the trace, each tensor one of its threads, `allreduce.<its name>`. A
// call is NEGOTIATE_ALLREDUCE from submission until all ranks have it, then ALLREDUCE until it is
// done. The names and the phases (B, E) are those of Horovod. Control characters become visible
// text instead of \u escapes, and each object begins with its phase and its time, because
// Perfetto's tokenizer cannot read it otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "timeline/trace_events.h"

namespace farandole {

// The first lines of a file, from the rank that opens it first.
struct TraceHead {
  // the same on all ranks of a job, and different in every other job; without quotes
  std::string job;
  TimePoint zero{};           // the zero point of the file's times, on this host
  std::int64_t epoch_us = 0;  // the same point in time, in microseconds since 1970, for people

  std::string text() const;
};
inline constexpr std::size_t kTraceHeadBytesMax = 512;
// Reads the head from the beginning of a file. Empty if the file is not a trace of ours.
std::optional<TraceHead> read_trace_head(std::string_view text);

// The last line. If the last writer was killed while it wrote, the file may lack it; viewers do not
// need it.
inline constexpr std::string_view kTraceEnd =
    "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"end\",\"args\":{}}]\n";

// How many tensors of a rank have a track of their own in the viewer. Further tensors share tracks.
inline constexpr std::size_t kTraceTracksMax = 4096;

class TraceText {
 public:
  struct Rank {
    int rank = 0;
    int size = 1;
    std::int64_t pid = 0;
  };
  explicit TraceText(const Rank& rank) : rank_(rank) {}

  // Begins a file whose times count from `zero`. After about `bytes_max` bytes no new calls are
  // taken, but those that have begun are written to their end. `life` counts from 1 the writers
  // that this rank has had, because each may have written to the same file. `mark_cycles` writes
  // CYCLE_START whenever a call is submitted while none is in flight.
  void begin(TimePoint zero, std::size_t bytes_max, std::int64_t life, bool mark_cycles = false);
  // Leaves out the end of a call whose beginning is missing.
  void add(const TraceEvent& event);
  // Says that events are missing from this time on, of this many calls.
  void cut(TimePoint since, std::size_t calls);
  // The rank writes no more to this file. Ends the calls that are still open.
  void end(TimePoint now);

  bool is_full() const { return is_full_; }
  // The lines since the last call, all whole.
  std::string take() { return std::exchange(lines_, {}); }

 private:
  // A thread of the trace. Its events are nested, and their times never go back.
  struct Track {
    std::int64_t number = 0;  // number within this rank, from 1
    TimePoint last{};
    int known_in_file = 0;
    bool busy = false;
  };
  struct Call {
    Track* track = nullptr;
    Operation operation = Operation::kBarrier;
    bool running = false;
    std::string facts;  // arguments of the call's end event, for people
  };

  void submitted(const TraceEvent& event);
  void running(Call& call, TimePoint time);
  void finished(const Call& call, TimePoint time, std::string_view how);
  void end_all(TimePoint time, std::string_view how);
  Track& track_of(const TraceEvent& event);
  Track& shared_track();
  void introduce(Track& track, std::string_view name);
  std::int64_t thread_of(const Track& track) const;
  void describe(std::string_view what, std::int64_t thread, std::string_view arguments);
  void put(char phase, Track& track, TimePoint time, std::string_view name,
           std::string_view arguments);
  // An event that concerns the whole rank.
  void notice(TimePoint time, std::string_view name, std::string_view arguments);
  std::string time_text(TimePoint time) const;
  void write(std::string_view line);

  Rank rank_;
  std::map<GroupId, std::map<std::string, Track, std::less<>>> tracks_;
  std::deque<Track> shared_tracks_;
  std::size_t track_count_ = 0;
  std::map<Handle, Call> open_;
  TimePoint zero_{};
  std::int64_t life_ = 1;
  bool mark_cycles_ = false;
  std::size_t bytes_max_ = 0;
  std::size_t bytes_ = 0;
  int files_ = 0;
  bool is_full_ = false;
  std::size_t left_out_ = 0;
  std::string lines_;
};

}  // namespace farandole
