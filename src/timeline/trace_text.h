// TraceText: the events of one rank as lines of a Chrome trace, which Perfetto and
// chrome://tracing open. No file and no clock in here.
//
// The file is a JSON array with one object in a line: the head, what all ranks write, the end. Each
// rank is a process of the trace, each tensor one of its threads, `allreduce.<its name>`. A call is
// NEGOTIATE_ALLREDUCE from submit until all have it, then ALLREDUCE until it is done: the names and
// the phases (B, E) are Horovod's. Control characters become visible text rather than \u escapes,
// and each object begins with its phase and its time: Perfetto's tokenizer does not understand it
// otherwise.
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

// The first lines of a file, by whoever opens it first.
struct TraceHead {
  std::string job;            // the same on all ranks of a job, and on no others; without quotes
  TimePoint zero{};           // where the times of the file count from, on this host
  std::int64_t epoch_us = 0;  // the same moment in microseconds since 1970, for people

  std::string text() const;
};
inline constexpr std::size_t kTraceHeadBytesMax = 512;
// From the beginning of a file; nothing if that is no trace of ours.
std::optional<TraceHead> read_trace_head(std::string_view text);

// The last line. Where whoever wrote last was killed meanwhile, a file may lack it; viewers do not
// need it.
inline constexpr std::string_view kTraceEnd =
    "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"end\",\"args\":{}}]\n";

// How many tensors of a rank have a line of their own in the viewer; further ones share some.
inline constexpr std::size_t kTraceTracksMax = 4096;

class TraceText {
 public:
  struct Rank {
    int rank = 0;
    int size = 1;
    std::int64_t pid = 0;
  };
  explicit TraceText(const Rank& rank) : rank_(rank) {}

  // From here on for a file whose times count from `zero`. After about `bytes_max` bytes no more
  // calls are taken, but those that have begun are told to their end. `life`: from 1, counts the
  // writers that this rank has had, each of which may have written into the same file.
  // `mark_cycles`: CYCLE_START wherever a call is submitted while none is in flight.
  void begin(TimePoint zero, std::size_t bytes_max, std::int64_t life, bool mark_cycles = false);
  // Ends of calls whose beginning is not known are left out.
  void add(const TraceEvent& event);
  // From a moment on some are missing; so many calls began in there.
  void cut(TimePoint since, std::size_t calls);
  // The rank is done with the file; ends what has not ended.
  void end(TimePoint now);

  bool is_full() const { return is_full_; }
  // What has come since the last time: whole lines.
  std::string take() { return std::exchange(lines_, {}); }

 private:
  // A thread of the trace. What is on it nests: times never go back.
  struct Track {
    std::int64_t number = 0;  // of this rank, from 1
    TimePoint last{};
    int known_in_file = 0;
    bool busy = false;
  };
  struct Call {
    Track* track = nullptr;
    Operation operation = Operation::kBarrier;
    bool running = false;
    std::string facts;  // for people: arguments of the call's end
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
  // Something that concerns the whole rank.
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
