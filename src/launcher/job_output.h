// JobOutput: from the workers' streams to our own standard output and error, line by line, and to
// the files of the ranks. If our own one is a terminal, so is the worker's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/descriptor.h"
#include "diagnosis/failure_box.h"
#include "farandole/status.h"
#include "launcher/job_options.h"
#include "launcher/line_splitter.h"
#include "launcher/output_sink.h"
#include "launcher/poller.h"
#include "launcher/rank_files.h"
#include "launcher/screen.h"
#include "launcher/worker_stream.h"

namespace farandole {

// One thread. Nothing blocks but the files of the ranks.
class JobOutput {
 public:
  // How the poller calls us: a stream is `streams` + its index, room for our output `room` + 0
  // or 1.
  struct Tags {
    std::uint64_t streams;
    std::uint64_t room;
  };
  // `poller` and `options` must outlive this.
  JobOutput(Poller& poller, Tags tags, const OutputOptions& options, RankFiles files);

  struct WorkerEnds {
    Descriptor standard_output;
    Descriptor standard_error;
  };
  // The ends for the next rank. Errors: kStop.
  Result<WorkerEnds> add_worker();

  // Of this machine.
  const std::string& host() const { return host_; }
  // The rank whose ends were made last runs as this process.
  void worker_started(pid_t pid);

  void stream_ready(std::size_t index);
  void room_ready();
  // Lines of the launcher's own; these are always shown.
  void notice(std::string_view text);
  void error(std::string_view text);
  // The end of a failed job, on standard error.
  void show(const Failure& failure);
  void window_changed();
  // Nobody reads what we write any more.
  bool closed() const;

  // After the last writer is gone: whatever is still in the streams.
  void read_the_rest();
  // The last line is complete; from here on only room_ready() until everything_is_written().
  void close();
  bool everything_is_written() const;
  // What of all this was lost, and why; nothing if all was written.
  std::optional<std::string> loss() const;

 private:
  struct Stream {
    Descriptor ours;
    int rank = 0;
    pid_t pid = 0;
    std::size_t target = 0;  // 0: our standard output, 1: our standard error
    bool is_terminal = false;
    LineSplitter splitter;
  };
  struct Target {
    OutputSink sink;
    Screen screen;
    bool is_terminal = false;
    bool has_colors = false;
    bool waits_for_room = false;
  };

  Result<Descriptor> add_stream(int rank, std::size_t target);
  Target& target_of(std::size_t number);
  LineOrigin origin_of(const Stream& stream) const;
  std::string prefix_of(const Stream& stream, const Target& target) const;
  winsize window_of(const Stream& stream);
  void take(Stream& stream, std::string_view bytes);
  void show(Stream& stream, const std::vector<OutputPiece>& pieces);
  void end_stream(Stream& stream);
  void watch_for_room();
  void pause_reading(bool pause);

  Poller& poller_;
  Tags tags_;
  const OutputOptions& options_;
  RankFiles files_;
  std::string host_;
  std::vector<Target> targets_;  // one or two
  std::vector<Stream> streams_;
  bool paused_ = false;
};

}  // namespace farandole
