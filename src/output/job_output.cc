#include "output/job_output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "base/try.h"
#include "output/colors.h"

namespace farandole {
namespace {

// If both descriptors lead to the same file, one Screen must handle both. Otherwise a line of one
// stream could be written into the middle of a line of the other stream.
bool lead_to_same_file(int descriptor_1, int descriptor_2) {
  struct stat file_1{};
  struct stat file_2{};
  return ::fstat(descriptor_1, &file_1) == 0 && ::fstat(descriptor_2, &file_2) == 0 &&
         file_1.st_dev == file_2.st_dev && file_1.st_ino == file_2.st_ino;
}

std::string own_host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

}  // namespace

JobOutput::JobOutput(Poller& poller, Tags tags, const OutputOptions& options)
    : poller_(poller), tags_(tags), options_(options), host_(own_host_name()) {
  for (const int number : {STDOUT_FILENO, STDERR_FILENO}) {
    if (number == STDERR_FILENO && lead_to_same_file(STDOUT_FILENO, STDERR_FILENO)) break;
    const bool is_terminal = ::isatty(number) == 1;
    const bool has_colors = options.always_has_colors || can_show_colors(number);
    targets_.push_back(
        {{.sink = OutputSink(number)}, Screen(is_terminal, has_colors), is_terminal, has_colors});
  }
}

JobOutput::Target& JobOutput::target_of(std::size_t number) {
  return targets_.at(std::min(number, targets_.size() - 1));
}

void JobOutput::begin(int first_rank, RankFiles files) {
  first_rank_ = first_rank;
  files_ = std::move(files);
}

void JobOutput::copy_to(const std::vector<int>& pipes) {
  for (const int pipe : pipes) copies_.push_back({.sink = OutputSink(pipe)});
}

Result<JobOutput::WorkerEnds> JobOutput::add_worker(int local_rank) {
  WorkerEnds ends;
  FARANDOLE_TRY(add_stream(local_rank, 0, ends));
  FARANDOLE_TRY(add_stream(local_rank, 1, ends));
  return ends;
}

Status JobOutput::add_stream(int local_rank, std::size_t target, WorkerEnds& worker_ends) {
  // Our own pid is a placeholder until the worker's pid is known. Both probably have the same
  // number of digits, so the prefix has the right width.
  Stream stream{.ours = {},
                .local_rank = local_rank,
                .pid = ::getpid(),
                .target = target,
                .is_terminal = options_.uses_terminals && target_of(target).is_terminal,
                .splitter = LineSplitter(options_.line_bytes_max)};
  auto new_ends = stream.is_terminal ? WorkerStream::make_terminal(window_of(stream))
                                     : WorkerStream::make_pipe();
  FARANDOLE_TRY_ASSIGN(WorkerStream ends, std::move(new_ends));
  Stream& destination = find_or_add_stream(local_rank, target);
  const auto index = static_cast<std::uint64_t>(&destination - streams_.data());
  if (!is_paused_ &&
      !poller_.add(ends.ours.get(), Poller::Interest::kReading, tags_.streams + index))
    return Status::stop("cannot watch the output of rank " + std::to_string(rank_of(stream)) +
                        "; the limit is in /proc/sys/fs/epoll/max_user_watches");
  worker_ends.ours.push_back(ends.ours.get());
  (target == 0 ? worker_ends.standard_output : worker_ends.standard_error) = std::move(ends.theirs);
  stream.ours = std::move(ends.ours);
  destination = std::move(stream);
  return {};
}

// Returns an ended stream of an earlier worker, or a new one. A stream that has not ended is not
// used again, because a process that the worker has left behind may still write to the stream.
JobOutput::Stream& JobOutput::find_or_add_stream(int local_rank, std::size_t target) {
  for (Stream& stream : streams_)
    if (stream.local_rank == local_rank && stream.target == target && !stream.ours.valid())
      return stream;
  return streams_.emplace_back();
}

void JobOutput::set_worker_pid(int local_rank, pid_t pid) {
  for (auto& stream : streams_)
    if (stream.local_rank == local_rank) stream.pid = pid;
}

LineOrigin JobOutput::origin_of(const Stream& stream) const {
  return {.rank = rank_of(stream),
          .local_rank = stream.local_rank,
          .host = host_,
          .pid = stream.pid,
          .stream = stream.target == 0 ? "stdout" : "stderr",
          .time = std::chrono::system_clock::now()};
}

std::string JobOutput::prefix_of(const Stream& stream, const Target& target) const {
  std::string text = options_.prefix.text(origin_of(stream));
  return target.has_colors ? in_color_of_rank(text, rank_of(stream)) : text;
}

winsize JobOutput::window_of(const Stream& stream) {
  return worker_window(target_of(stream.target).sink.descriptor(),
                       options_.prefix.columns(origin_of(stream)));
}

void JobOutput::stream_readable(std::size_t index) {
  Stream& stream = streams_.at(index);
  if (!stream.ours.valid() || is_paused_) return;
  const StreamRead read = read_available(stream.ours);
  forward_bytes(stream, read.bytes);
  if (read.ended) end_stream(stream);
  watch_full_sinks();
}

void JobOutput::read_rest(int local_rank) {
  for (Stream& stream : streams_)
    if (stream.local_rank == local_rank) read_rest_of(stream);
  watch_full_sinks();
}

void JobOutput::read_rest_of(Stream& stream) {
  if (!stream.ours.valid()) return;
  const std::size_t bytes_max = capacity_of(stream.ours);
  for (std::size_t count = 0; count < bytes_max;) {
    const StreamRead read = read_available(stream.ours);
    forward_bytes(stream, read.bytes);
    if (read.ended) end_stream(stream);
    if (read.ended || read.bytes.empty()) break;
    count += read.bytes.size();
  }
}

Descriptor JobOutput::replace_stream(int ours, Descriptor other) {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    Descriptor& current = streams_[i].ours;
    if (!current.valid() || current.get() != ours) continue;
    poller_.remove(ours);
    if (!is_paused_) poller_.add(other.get(), Poller::Interest::kReading, tags_.streams + i);
    return std::exchange(current, std::move(other));
  }
  return {};
}

void JobOutput::forward_bytes(Stream& stream, std::string_view bytes) {
  show(stream, stream.splitter.push(bytes));
  if (!copies_.empty())
    copies_.at(2 * static_cast<std::size_t>(stream.local_rank) + stream.target)
        .sink.write(bytes, drops_when_full_);
  if (const auto failure_text = files_.write(stream.local_rank, stream.target, bytes))
    show_error(*failure_text);
}

void JobOutput::end_stream(Stream& stream) {
  show(stream, stream.splitter.finish());
  poller_.remove(stream.ours.get());
  stream.ours.reset();
}

void JobOutput::show(Stream& stream, const std::vector<OutputPiece>& pieces) {
  if (pieces.empty()) return;
  if (!options_.shown_ranks.empty() && !options_.shown_ranks.contains(rank_of(stream))) return;
  Target& target = target_of(stream.target);
  const int source = stream.local_rank * 2 + static_cast<int>(stream.target);
  const std::string prefix = prefix_of(stream, target);
  std::string bytes;
  for (const auto& piece : pieces) {
    if (consumer_ && piece.finished && consumer_(stream.local_rank, stream.target, piece.text))
      continue;
    bytes += target.screen.show(source, prefix, piece);
  }
  target.sink.write(bytes, drops_when_full_);
}

void JobOutput::show_notice(std::string_view text) {
  Target& target = target_of(1);
  target.sink.write(target.screen.show_notice(text));
  watch_full_sinks();
}

void JobOutput::show_error(std::string_view text) {
  Target& target = target_of(1);
  target.sink.write(target.screen.show_error(text));
  watch_full_sinks();
}

int JobOutput::box_columns() {
  const Target& target = target_of(1);
  const int width = target.is_terminal ? worker_window(target.sink.descriptor(), 0).ws_col : 0;
  return width > 0 ? width : options_.box_columns;
}

void JobOutput::show_lines(const std::vector<std::string>& lines) {
  Target& target = target_of(1);
  for (const auto& line : lines) target.sink.write(target.screen.show_line(line));
  watch_full_sinks();
}

void JobOutput::write_to_driver(std::string_view line) {
  targets_.front().sink.write(std::string(line).append("\n"));
  watch_full_sinks();
}

void JobOutput::sink_writable() {
  for (Sink* sink : all_sinks()) sink->sink.flush();
  watch_full_sinks();
}

std::vector<JobOutput::Sink*> JobOutput::all_sinks() {
  std::vector<Sink*> sinks;
  for (Sink& target : targets_) sinks.push_back(&target);
  for (Sink& copy : copies_) sinks.push_back(&copy);
  return sinks;
}

void JobOutput::watch_full_sinks() {
  bool is_full = false;
  std::uint64_t tag = tags_.sinks;
  for (Sink* sink : all_sinks()) {
    is_full = is_full || sink->sink.full();
    const bool is_needed = !sink->sink.empty();
    const std::uint64_t own_tag = tag++;
    if (is_needed == std::exchange(sink->is_watched, is_needed)) continue;
    if (is_needed)
      poller_.add(sink->sink.descriptor(), Poller::Interest::kWriting, own_tag);
    else
      poller_.remove(sink->sink.descriptor());
  }
  pause_reading(is_full && !drops_when_full_);
}

void JobOutput::drop_when_full() {
  drops_when_full_ = true;
  watch_full_sinks();
}

// If the reader of our output is slow, we stop reading from the workers. Then the workers block in
// their writes instead of the launcher.
void JobOutput::pause_reading(bool pause) {
  if (pause == is_paused_) return;
  is_paused_ = pause;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (!streams_[i].ours.valid()) continue;
    const int descriptor = streams_[i].ours.get();
    if (pause)
      poller_.remove(descriptor);
    else
      poller_.add(descriptor, Poller::Interest::kReading, tags_.streams + i);
  }
}

void JobOutput::window_changed() {
  for (const auto& stream : streams_) {
    if (!stream.is_terminal || !stream.ours.valid()) continue;
    set_window(stream.ours, window_of(stream));
  }
}

bool JobOutput::is_closed() const {
  return std::any_of(targets_.begin(), targets_.end(),
                     [](const Target& target) { return target.sink.is_closed(); });
}

void JobOutput::read_remaining() {
  for (Stream& stream : streams_) {
    read_rest_of(stream);
    if (stream.ours.valid()) end_stream(stream);
  }
  watch_full_sinks();
}

void JobOutput::close() {
  for (auto& target : targets_) target.sink.write(target.screen.end_progress_line());
  watch_full_sinks();
}

std::optional<std::string> JobOutput::lost_output() const {
  for (std::size_t i = 0; i < targets_.size(); ++i)
    if (const int failure = targets_[i].sink.failure(); failure != 0)
      return std::string(i == 0 ? "the standard output" : "the standard error") +
             " could not be written (" + std::strerror(failure) + "); lines are missing there";
  return std::nullopt;
}

bool JobOutput::everything_is_written() const {
  const auto is_empty = [](const Sink& sink) { return sink.sink.empty(); };
  return std::ranges::all_of(targets_, is_empty) && std::ranges::all_of(copies_, is_empty);
}

}  // namespace farandole
