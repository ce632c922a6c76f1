// TraceText: formats the events of one rank as lines of a Chrome trace, which Perfetto and
// chrome://tracing open. It uses no file and no clock.
//
// The file is a JSON array with one object per line: the head, the lines of all ranks, and the end.
// In the trace, each rank is a process, and each tensor is a thread of this process, called
// `allreduce.<tensor name>`. A call is shown as NEGOTIATE_ALLREDUCE from its submission until all
// ranks have submitted it, and then as ALLREDUCE until it is done. The names and the phases (B, E)
// are those of Horovod. Perfetto's tokenizer knows no \u escapes, so control characters become
// visible text. The tokenizer also needs the phase and the time first in each object.
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

// The first lines of a file. The rank that opens the file first writes them.
struct TraceHead {
  // Identifies the job: the same on all ranks of a job, and different in every other job. Has no
  // quotes.
  std::string job;
  TimePoint zero{};  // the zero point of the times in the file, on the clock of one host of the job
  std::int64_t epoch_us = 0;  // the zero point in microseconds since 1970, for people

  std::string text() const;
};
inline constexpr std::size_t kTraceHeadBytesMax = 512;
// Reads the head from the beginning of a file. Empty if the file is not one of our traces.
std::optional<TraceHead> read_trace_head(std::string_view text);
// Longer than any line, even a line with the longest name that ranks can exchange.
inline constexpr std::size_t kTraceLineBytesMax = 256 * 1024;
// Returns the rank of an event, from its line without the line break. Empty if the text is not such
// a line: it is blank, has control characters, or is the end mark.
std::optional<int> rank_of_trace_line(std::string_view line);

// The last line. It may be missing if the last writer was killed while it wrote; viewers do not
// need it.
inline constexpr std::string_view kTraceEnd =
    "{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"end\",\"args\":{}}]\n";

// How many tensors of a rank get a track of their own in the viewer. All other tensors share
// tracks.
inline constexpr std::size_t kTraceTracksMax = 4096;

class TraceText {
 public:
  struct Rank {
    int rank = 0;  // in an elastic job: the worker's slot, because its rank changes
    int size = 1;
    std::int64_t pid = 0;
    int elastic_worker = -1;  // in an elastic job: the worker's number, unique in the job
  };
  // The group that an elastic job has formed.
  struct Group {
    std::int64_t epoch = 0;
    int rank = 0;
    int size = 1;
  };
  explicit TraceText(const Rank& rank) : rank_(rank) {}

  // Begins a file whose times count from `zero`. After about `bytes_max` bytes, new calls are
  // dropped, but the calls that have begun are written to their end. `engine_number` is 1 for the
  // first engine of this process, 2 for the second, and so on, because all of them may write to the
  // same file. `mark_cycles` adds CYCLE_START whenever a call is submitted while none is in flight.
  void begin(TimePoint zero, std::size_t bytes_max, std::int64_t engine_number,
             bool mark_cycles = false);
  // Writes the largest possible error of this rank's times. The error comes from the comparison of
  // this host's clock with the clock of the file. Call it after begin().
  void add_clock_error(Duration error);
  // Marks that the worker is now a member of this group. Call it after begin().
  void add_group(const Group& group, TimePoint now);
  // Adds an event. Drops the event if the beginning of its call is missing.
  void add(const TraceEvent& event);
  // Writes that the events of `calls` calls are missing since the time `since`. Ends all open
  // calls.
  void mark_lost(TimePoint since, std::size_t calls);
  // Ends the calls that are still open. This rank adds nothing more to the file.
  void end(TimePoint now);

  bool is_full() const { return is_full_; }
  // Returns the lines that were added since the last call of this function.
  std::string take() { return std::exchange(lines_, {}); }

 private:
  // A thread of the trace. Its events are nested, and their times never decrease.
  struct Track {
    std::int64_t number = 0;  // number within this rank, from 1
    TimePoint last_time{};
    // The value of files_begun_ when the track's name was last written.
    int last_file_with_name = 0;
    bool is_busy = false;
  };
  struct Call {
    Track* track = nullptr;
    Operation operation = Operation::kBarrier;
    bool has_begun_running = false;
    std::string arguments;  // arguments of the end event of the call
  };

  void write_submitted(const TraceEvent& event);
  void write_running(Call& call, TimePoint time);
  void write_finished(const Call& call, TimePoint time, std::string_view extra_arguments);
  void end_open_calls(TimePoint time, std::string_view extra_arguments);
  Track& find_or_add_track(const TraceEvent& event);
  Track& acquire_shared_track();
  void write_track_name(Track& track, std::string_view name);
  std::int64_t thread_of(const Track& track) const;
  void write_metadata(std::string_view name, std::int64_t thread, std::string_view arguments);
  void write_event(char phase, Track& track, TimePoint time, std::string_view name,
                   std::string_view arguments);
  // Writes an event that concerns the whole rank.
  void write_instant(TimePoint time, std::string_view name, std::string_view arguments);
  std::string time_text(TimePoint time) const;
  void write(std::string_view line);

  Rank rank_;
  std::map<GroupId, std::map<std::string, Track, std::less<>>> tracks_;
  std::deque<Track> shared_tracks_;
  std::size_t track_count_ = 0;
  std::map<Handle, Call> open_calls_;
  TimePoint zero_{};
  std::int64_t engine_number_ = 1;
  bool mark_cycles_ = false;
  std::size_t bytes_max_ = 0;
  std::size_t bytes_ = 0;
  int files_begun_ = 0;  // how often begin() was called
  bool is_full_ = false;
  std::size_t dropped_calls_ = 0;
  std::string lines_;
};

}  // namespace farandole
