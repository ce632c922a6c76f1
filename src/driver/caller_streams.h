// The streams between the launchers on the hosts and the program that has started the job, and the
// numbers of these streams. The driver relays them.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "driver/stream_relay.h"
#include "launcher/job_options.h"

namespace farandole {

// The streams between the driver and one launcher.
inline constexpr std::uint32_t kInputStream = 0;   // to the launcher's standard input
inline constexpr std::uint32_t kOutputStream = 1;  // the launcher's standard output
inline constexpr std::uint32_t kReportStream = 2;  // the lines of CallerReport
// Each worker of the host has five streams: one for its channel (in both directions), one each for
// its standard output and standard error, and one each for the copies of these two.
constexpr std::uint32_t channel_stream(int local_rank) {
  return 3 + 5 * static_cast<std::uint32_t>(local_rank);
}
constexpr std::uint32_t output_stream(int local_rank, std::uint32_t stream) {
  return channel_stream(local_rank) + 1 + stream;
}
constexpr std::uint32_t copy_stream(int local_rank, std::uint32_t stream) {
  return channel_stream(local_rank) + 3 + stream;
}

// Opens the channels of a host's workers. Returns the streams of these workers and the stream of
// the launcher's report. `consume` gets the text of the report. The result takes over the caller's
// output streams, so call the function only once for each host. Errors: as open_channel(); kStop if
// there is no free descriptor.
Result<std::vector<RelayStream>> streams_of_host(const CallerDescriptors& caller, int first_rank,
                                                 int workers,
                                                 std::function<void(std::string_view)> consume);

}  // namespace farandole
