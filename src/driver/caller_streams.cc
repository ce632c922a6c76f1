#include "driver/caller_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/descriptor.h"
#include "base/descriptor_limit.h"
#include "base/format.h"
#include "base/try.h"
#include "launcher/channel_door.h"

namespace farandole {

Result<std::vector<RelayStream>> streams_of_host(const CallerDescriptors& caller, int first_rank,
                                                 int workers,
                                                 std::function<void(std::string_view)> consume) {
  std::vector<RelayStream> streams;
  streams.push_back({.id = kReportStream, .consume = std::move(consume), .follows_others = true});
  for (int worker = 0; worker < workers; ++worker) {
    const auto rank = static_cast<std::size_t>(first_rank) + static_cast<std::size_t>(worker);
    if (caller.door >= 0) {
      FARANDOLE_TRY_ASSIGN(Descriptor channel, open_channel(caller.door, first_rank + worker));
      Descriptor source(::fcntl(channel.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
      if (!source.valid()) {
        return Status::stop(format_text("cannot relay the channel of rank {}: fcntl: {} ({})", rank,
                                        std::strerror(errno), descriptor_advice()));
      }
      streams.push_back(
          {.id = channel_stream(worker), .source = std::move(source), .sink = std::move(channel)});
    }
    if (caller.streams.empty()) continue;
    for (const std::uint32_t stream : {0U, 1U})
      streams.push_back({.id = output_stream(worker, stream),
                         .sink = Descriptor(caller.streams.at(2 * rank + stream))});
  }
  return streams;
}

}  // namespace farandole
