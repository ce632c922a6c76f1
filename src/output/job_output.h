// JobOutput: copies the workers' output line by line to our standard output and error, and
// unchanged to the files of the ranks. If our stream is a terminal, the workers write to terminals,
// too.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/poller.h"
#include "farandole/status.h"
#include "output/line_splitter.h"
#include "output/output_options.h"
#include "output/output_sink.h"
#include "output/rank_files.h"
#include "output/screen.h"
#include "output/worker_stream.h"

namespace farandole {

// Only one thread may use it. It blocks only in writes to the files of the ranks.
class JobOutput {
 public:
  // The poller reports our descriptors under two series of tags, and this struct has the first tag
  // of each series. Tag `streams` + i says that we can read stream i of the workers. Tag `sinks`
  // and the tags after it say that we can write to our standard output, to our standard error, or
  // to a copy of a stream.
  struct Tags {
    std::uint64_t streams;
    std::uint64_t sinks;
  };
  // `poller` and `options` must outlive this object.
  JobOutput(Poller& poller, Tags tags, const OutputOptions& options);

  // Gets each finished line of a worker's standard output (0) or error (1) before it is shown, and
  // returns whether it has taken the line. A line that is taken is not shown.
  using LineConsumer =
      std::function<bool(int local_rank, std::size_t stream, const std::string& line)>;
  void set_line_consumer(LineConsumer consumer) { consumer_ = std::move(consumer); }

  // Call it before add_worker(), when the rank of this node's first worker is known. `files` has
  // the files of this node's workers.
  void begin(int first_rank, RankFiles files);
  // Also writes each stream, unchanged, to a pipe. `pipes` has two descriptors for each worker,
  // which are borrowed. If the reader of a pipe is slow, we stop reading from the workers.
  void copy_to(const std::vector<int>& pipes);

  struct WorkerEnds {
    Descriptor standard_output;
    Descriptor standard_error;
    std::vector<int> ours;  // our ends of the two streams; borrowed
  };
  // Creates the streams of a worker and returns the ends for the worker. If a worker with this
  // number has ended, its streams are replaced. Errors: kStop.
  Result<WorkerEnds> add_worker(int local_rank);

  // The name of the host that this process runs on.
  const std::string& host() const { return host_; }
  // Sets the process id of a worker after add_worker().
  void set_worker_pid(int local_rank, pid_t pid);

  void stream_readable(std::size_t index);
  // Reads what an ended worker has written to its streams. If the reader of our output is slow, we
  // stop reading from all other workers, but this function still reads. It reads no more than the
  // streams can hold, because another process may continue to write to them.
  void read_rest(int local_rank);
  // Replaces our end of a stream: from now on, the stream is read from `other`. `ours` is one of
  // WorkerEnds::ours. Returns the descriptor `ours`; an invalid one if the stream has ended.
  Descriptor replace_stream(int ours, Descriptor other);
  void sink_writable();
  // From now on, drops output while too many bytes wait to be written. So workers do not wait for
  // the reader of our output.
  void drop_when_full();
  // These two functions write a line of the launcher itself. Such a line is shown even if only some
  // ranks are shown.
  void show_notice(std::string_view text);
  void show_error(std::string_view text);
  // Writes the lines of the failure box to standard error. box_columns() and box_has_colors() say
  // how the box should be made.
  void show_lines(const std::vector<std::string>& lines);
  int box_columns();
  bool box_has_colors() { return target_of(1).has_colors; }
  void window_changed();
  // Writes a line to our standard output, without a prefix.
  void write_to_driver(std::string_view line);
  // True if the reader of our output has closed the pipe.
  bool is_closed() const;

  // Does the same as read_rest() for all streams, and closes the streams. Call it when all workers
  // have ended.
  void read_remaining();
  // Completes the last line. After close(), call only sink_writable() until
  // everything_is_written().
  void close();
  bool everything_is_written() const;
  // Says which output could not be written, and why. Empty if everything was written.
  std::optional<std::string> lost_output() const;

 private:
  struct Stream {
    Descriptor ours;
    int local_rank = 0;
    pid_t pid = 0;
    std::size_t target = 0;  // 0: our standard output, 1: our standard error
    bool is_terminal = false;
    LineSplitter splitter;
  };
  struct Sink {
    OutputSink sink;
    bool is_watched = false;  // the poller reports when the sink has room
  };
  struct Target : Sink {
    Screen screen;
    bool is_terminal = false;
    bool has_colors = false;
  };

  Status add_stream(int local_rank, std::size_t target, WorkerEnds& ends);
  Stream& find_or_add_stream(int local_rank, std::size_t target);
  int rank_of(const Stream& stream) const { return first_rank_ + stream.local_rank; }
  Target& target_of(std::size_t number);
  LineOrigin origin_of(const Stream& stream) const;
  std::string prefix_of(const Stream& stream, const Target& target) const;
  winsize window_of(const Stream& stream);
  void forward_bytes(Stream& stream, std::string_view bytes);
  void show(Stream& stream, const std::vector<OutputPiece>& pieces);
  void read_rest_of(Stream& stream);
  void end_stream(Stream& stream);
  std::vector<Sink*> all_sinks();
  void watch_full_sinks();
  void pause_reading(bool pause);

  Poller& poller_;
  Tags tags_;
  const OutputOptions& options_;
  RankFiles files_;
  int first_rank_ = 0;
  std::string host_;
  std::vector<Target> targets_;  // one if both streams are the same file, else two
  std::vector<Stream> streams_;
  std::vector<Sink> copies_;  // one for each stream, or empty
  bool is_paused_ = false;
  bool drops_when_full_ = false;
  LineConsumer consumer_;
};

}  // namespace farandole
