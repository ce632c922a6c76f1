#include "timeline/trace_text.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <utility>

#include "base/format.h"
#include "base/visible_text.h"

namespace farandole {
namespace {

constexpr std::string_view kHeadBegin =
    "[\n{\"ph\":\"M\",\"pid\":0,\"tid\":0,\"name\":\"start\",\"args\":{\"job\":\"";
constexpr std::string_view kHeadClock = "\",\"clock_ns\":";
constexpr std::string_view kHeadEpoch = ",\"start_time_since_epoch_in_micros\":";
constexpr std::string_view kHeadEnd = "}},\n";

// This number is larger than the number of tracks of one engine, so that the engines of a process
// give different numbers to their tracks.
constexpr std::int64_t kTracksPerEngine = 1 << 20;
// The tracks of different workers of an elastic job also need different numbers. This constant is
// larger than kTraceTracksMax plus the calls in flight, but still small, because Perfetto reads
// thread numbers as 32 bits.
constexpr std::int64_t kTracksPerWorker = 1 << 16;

// Escapes a text for use inside the quotes of a JSON string.
std::string json_escaped(std::string_view text) {
  std::string quoted;
  for (const char letter : escape_controls(text)) {
    if (letter == '"' || letter == '\\') quoted += '\\';
    quoted += letter;
  }
  return quoted;
}

std::string upper_case(std::string_view word) {
  std::string upper(word);
  std::ranges::transform(upper, upper.begin(), [](char letter) {
    return letter >= 'a' && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
  });
  return upper;
}

std::string arguments_of(const TraceEvent& event) {
  if (row_of(event.operation).output_rule == OutputRule::kNone) return {};
  auto bytes = static_cast<std::int64_t>(row_of(event.dtype).bytes);
  for (const std::int64_t dimension : event.shape) bytes *= dimension;
  return format_text(R"("dtype":"{}","shape":"[{}]","bytes":{})", row_of(event.dtype).name,
                     join_text(event.shape, ", "), bytes);
}

// A track's name begins with the operation. Automatic names of calls already begin with it.
std::string name_of_track(const TraceEvent& event) {
  const std::string begin = format_text("{}.", row_of(event.operation).name);
  return (event.name.starts_with(begin) ? "" : begin) + std::string(event.name);
}

// Removes `expected` from the front of `text`. False if `text` does not begin with `expected`.
bool skip(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

bool skip_number(std::string_view& text, std::int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}  // namespace

std::string TraceHead::text() const {
  return format_text("{}{}{}{}{}{}{}", kHeadBegin, job, kHeadClock,
                     zero.time_since_epoch() / std::chrono::nanoseconds(1), kHeadEpoch, epoch_us,
                     kHeadEnd);
}

std::optional<TraceHead> read_trace_head(std::string_view text) {
  TraceHead head;
  if (!skip(text, kHeadBegin)) return std::nullopt;
  head.job = text.substr(0, text.find('"'));
  std::int64_t clock_ns = 0;
  if (!skip(text, head.job) || !skip(text, kHeadClock) || !skip_number(text, clock_ns) ||
      !skip(text, kHeadEpoch) || !skip_number(text, head.epoch_us) || !skip(text, kHeadEnd))
    return std::nullopt;
  head.zero = TimePoint(std::chrono::nanoseconds(clock_ns));
  return head;
}

std::optional<int> rank_of_trace_line(std::string_view line) {
  constexpr std::string_view kTimeLetters = "0123456789.";
  if (std::ranges::any_of(line,
                          [](char letter) { return static_cast<unsigned char>(letter) < ' '; }) ||
      !line.ends_with("},") || !skip(line, "{\"ph\":\"") || line.empty())
    return std::nullopt;
  line.remove_prefix(1);
  if (!skip(line, "\",")) return std::nullopt;
  if (skip(line, "\"ts\":")) {
    line.remove_prefix(std::min(line.find_first_not_of(kTimeLetters), line.size()));
    if (!skip(line, ",")) return std::nullopt;
  }
  std::int64_t rank = 0;
  if (!skip(line, "\"pid\":") || !skip_number(line, rank) || !line.starts_with(",\"tid\":") ||
      rank < 0 || rank > std::numeric_limits<int>::max())
    return std::nullopt;
  return static_cast<int>(rank);
}

void TraceText::begin(TimePoint zero, std::size_t bytes_max, std::int64_t engine_number,
                      bool mark_cycles) {
  zero_ = zero;
  engine_number_ = engine_number;
  mark_cycles_ = mark_cycles;
  bytes_max_ = bytes_max;
  bytes_ = 0;
  ++files_begun_;
  is_full_ = false;
  dropped_calls_ = 0;
  open_calls_.clear();
  for (Track& track : shared_tracks_) track.is_busy = false;
  // Several processes of an elastic job use a slot, one after another. So the name of the slot
  // contains no pid.
  write_metadata("process_name", rank_.rank,
                 rank_.elastic_worker >= 0
                     ? format_text(R"_("name":"worker {}")_", rank_.rank)
                     : format_text(R"_("name":"rank {} (pid {})")_", rank_.rank, rank_.pid));
  write_metadata("process_sort_index", rank_.rank, format_text(R"("sort_index":{})", rank_.rank));
}

void TraceText::add_clock_error(Duration error) {
  write_metadata(
      "process_labels", rank_.rank,
      format_text(R"("labels":"clock ± {} µs")", error / std::chrono::microseconds(1) + 1));
}

void TraceText::add_group(const Group& group, TimePoint now) {
  write_instant(now, "GROUP",
                format_text(R"("epoch":{},"rank":{},"size":{},"pid":{})", group.epoch, group.rank,
                            group.size, rank_.pid));
}

void TraceText::add(const TraceEvent& event) {
  if (event.kind == TraceEvent::Kind::kSubmitted) return write_submitted(event);
  const auto call = open_calls_.find(event.handle);
  if (call == open_calls_.end()) return;
  if (event.kind == TraceEvent::Kind::kRunning) return write_running(call->second, event.time);
  const bool has_failed = event.kind == TraceEvent::Kind::kFailed;
  // A call that ends as soon as all ranks have submitted it has no "running" event, so add one.
  if (!has_failed) write_running(call->second, event.time);
  write_finished(call->second, event.time, has_failed ? R"("failed":true)" : "");
  open_calls_.erase(call);
}

void TraceText::mark_lost(TimePoint since, std::size_t calls) {
  end_open_calls(since, R"("unknown":true)");
  write_instant(
      since, "CALLS_LEFT_OUT",
      format_text(R"("calls":{},"reason":"they came faster than they can be written")", calls));
}

void TraceText::end(TimePoint now) {
  end_open_calls(now, R"("unfinished":true)");
  if (dropped_calls_ > 0)
    write_instant(now, "CALLS_LEFT_OUT",
                  format_text(R"("calls":{},"reason":"the timeline was full")", dropped_calls_));
}

void TraceText::write_submitted(const TraceEvent& event) {
  if (bytes_ >= bytes_max_) {
    if (!std::exchange(is_full_, true))
      write_instant(event.time, "TIMELINE_IS_FULL", format_text(R"("bytes":{})", bytes_));
    ++dropped_calls_;
    return;
  }
  if (mark_cycles_ && open_calls_.empty()) write_instant(event.time, "CYCLE_START", "");
  Call& call = open_calls_[event.handle];
  call.track = &find_or_add_track(event);
  call.operation = event.operation;
  call.arguments = arguments_of(event);
  if (call.track->is_busy)
    call.arguments += format_text(R"({}"tensor":"{}")", call.arguments.empty() ? "" : ",",
                                  json_escaped(event.name));
  const std::string name = "NEGOTIATE_" + upper_case(row_of(event.operation).name);
  write_event('B', *call.track, event.time, name, "");
}

void TraceText::write_running(Call& call, TimePoint time) {
  if (std::exchange(call.has_begun_running, true)) return;
  write_event('E', *call.track, time, "", "");
  write_event('B', *call.track, time, upper_case(row_of(call.operation).name), "");
}

void TraceText::write_finished(const Call& call, TimePoint time, std::string_view extra_arguments) {
  std::string arguments = call.arguments;
  if (!arguments.empty() && !extra_arguments.empty()) arguments += ',';
  arguments += extra_arguments;
  write_event('E', *call.track, time, "", arguments);
  call.track->is_busy = false;
}

void TraceText::end_open_calls(TimePoint time, std::string_view extra_arguments) {
  for (const auto& [handle, call] : std::exchange(open_calls_, {}))
    write_finished(call, time, extra_arguments);
}

TraceText::Track& TraceText::find_or_add_track(const TraceEvent& event) {
  auto& tracks_of_group = tracks_[event.group];
  const std::string name = name_of_track(event);
  const std::string group_suffix =
      event.group == kWorld ? std::string() : format_text(" (group {})", event.group);
  auto track = tracks_of_group.find(name);
  if (track == tracks_of_group.end()) {
    if (track_count_ >= kTraceTracksMax) {
      Track& shared_track = acquire_shared_track();
      write_track_name(shared_track, "further tensors");
      return shared_track;
    }
    track = tracks_of_group.emplace(name, Track{}).first;
    track->second.number = static_cast<std::int64_t>(++track_count_);
  }
  write_track_name(track->second, name + group_suffix);
  return track->second;
}

// Returns a shared track that was idle, and marks it as busy.
TraceText::Track& TraceText::acquire_shared_track() {
  auto track = std::ranges::find(shared_tracks_, false, &Track::is_busy);
  if (track == shared_tracks_.end()) {
    track = shared_tracks_.insert(track, Track{});
    track->number = static_cast<std::int64_t>(kTraceTracksMax + shared_tracks_.size());
  }
  track->is_busy = true;
  return *track;
}

// Returns a number that is unique in the file and differs from the process numbers. Some viewers
// identify threads by their number alone, and show a thread with the number of its process as the
// main thread.
std::int64_t TraceText::thread_of(const Track& track) const {
  if (rank_.elastic_worker >= 0)
    return (rank_.elastic_worker + 1) * kTracksPerWorker + track.number;
  return rank_.rank + rank_.size * (track.number + (engine_number_ - 1) * kTracksPerEngine);
}

void TraceText::write_track_name(Track& track, std::string_view name) {
  if (std::exchange(track.last_file_with_name, files_begun_) == files_begun_) return;
  write_metadata("thread_name", thread_of(track),
                 format_text(R"("name":"{}")", json_escaped(name)));
}

void TraceText::write_metadata(std::string_view name, std::int64_t thread,
                               std::string_view arguments) {
  write(format_text(R"({{"ph":"M","pid":{},"tid":{},"name":"{}","args":{{{}}}}},)", rank_.rank,
                    thread, name, arguments));
}

void TraceText::write_event(char phase, Track& track, TimePoint time, std::string_view name,
                            std::string_view arguments) {
  track.last_time = std::max(track.last_time, time);
  std::string line = format_text(R"({{"ph":"{}","ts":{},"pid":{},"tid":{})", phase,
                                 time_text(track.last_time), rank_.rank, thread_of(track));
  if (!name.empty()) line += format_text(R"(,"name":"{}")", name);
  if (!arguments.empty()) line += format_text(R"(,"args":{{{}}})", arguments);
  write(line + "},");
}

void TraceText::write_instant(TimePoint time, std::string_view name, std::string_view arguments) {
  write(format_text(R"({{"ph":"i","ts":{},"pid":{},"tid":{},"name":"{}","s":"p","args":{{{}}}}},)",
                    time_text(time), rank_.rank, rank_.rank, name, arguments));
}

// Returns the microseconds since the zero point of the file.
std::string TraceText::time_text(TimePoint time) const {
  const auto count = std::max<std::int64_t>(0, (time - zero_) / std::chrono::nanoseconds(1));
  return format_text("{}.{:03}", count / 1000, count % 1000);
}

void TraceText::write(std::string_view line) {
  lines_ += line;
  lines_ += '\n';
  bytes_ += line.size() + 1;
}

}  // namespace farandole
