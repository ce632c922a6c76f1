#include "driver/host_relays.h"

#include <memory>
#include <string>
#include <utility>

#include "base/descriptor.h"
#include "base/try.h"
#include "driver/caller_streams.h"
#include "driver/stream_relay.h"
#include "remote/pipe.h"

namespace farandole {

std::optional<RelayedParts> HostRelays::relayed_parts() const {
  const RelayedParts relayed{.has_channels = caller_.door >= 0,
                             .has_streams = !caller_.streams.empty(),
                             .has_copies = files_.has_value()};
  const bool has_any = caller_.report >= 0 || relayed != RelayedParts();
  return has_any ? std::optional(relayed) : std::nullopt;
}

Status HostRelays::begin_relay(HostProcess& process, std::uint64_t tag) {
  FARANDOLE_TRY_ASSIGN(Pipe input, make_pipe());
  FARANDOLE_TRY_ASSIGN(Pipe output, make_pipe());
  RemoteProcess::Input launcher_input = process.remote.replace_input(std::move(input.write_end));
  Descriptor launcher_output = output_.replace_stream(process.output, std::move(output.read_end));
  FARANDOLE_TRY_ASSIGN(std::vector<RelayStream> streams,
                       streams_of_host(caller_, process.first_rank, process.remote.host().slots,
                                       [this, &process](std::string_view bytes) {
                                         receive_report(process, bytes);
                                       }));
  if (files_) add_copies(process, streams);
  streams.push_back({.id = kInputStream, .source = std::move(input.read_end)});
  streams.push_back({.id = kOutputStream, .sink = std::move(output.write_end)});
  FARANDOLE_TRY_ASSIGN(
      StreamRelay relay,
      StreamRelay::create(std::move(launcher_output), std::move(launcher_input.descriptor),
                          std::move(streams), launcher_input.unsent));
  process.relay = std::make_unique<StreamRelay>(std::move(relay));
  if (poller_.add(process.relay->descriptor(), Poller::Interest::kReading, tag)) return {};
  process.relay.reset();  // closes the launcher's input, so that it ends
  return Status::stop("it cannot be watched; the limit is in /proc/sys/fs/epoll/max_user_watches");
}

// Writes the copies of the output of a host's workers to the files of these ranks.
void HostRelays::add_copies(const HostProcess& process, std::vector<RelayStream>& streams) {
  for (int worker = 0; worker < process.remote.host().slots; ++worker) {
    for (const std::uint32_t stream : {0U, 1U}) {
      const int rank = process.first_rank + worker;
      const auto write = [this, rank, stream](std::string_view bytes) {
        if (const auto complaint = files_->write(rank, stream, bytes))
          output_.show_error(*complaint);
      };
      streams.push_back({.id = copy_stream(worker, stream), .consume = write});
    }
  }
}

bool HostRelays::serve(HostProcess& process) {
  const bool was_ok = process.relay->failure().ok();
  process.relay->serve();
  if (was_ok && !process.relay->failure().ok())
    output_.show_error(process.name() + ": " + process.relay->failure().message());
  if (!process.relay->has_written_everything()) return false;
  poller_.remove(process.relay->descriptor());
  return true;
}

// The lines of all launchers go to one descriptor, so only whole lines are passed on.
void HostRelays::receive_report(HostProcess& process, std::string_view bytes) {
  std::string& incomplete_line = process.incomplete_report_line;
  incomplete_line += bytes;
  for (auto end = incomplete_line.find('\n'); end != std::string::npos;
       end = incomplete_line.find('\n')) {
    const std::string_view line = std::string_view(incomplete_line).substr(0, end + 1);
    // If the launchers could not tell each other which failure was the first, several of them name
    // a cause. Then only the first line counts.
    const bool is_cause = line.starts_with(kCauseLineBeginning);
    if (!is_cause || !std::exchange(has_reported_cause_, true)) caller_report_.pass_on(line);
    incomplete_line.erase(0, end + 1);
  }
}

}  // namespace farandole
