// HostNetwork: prepares the channels of this rank to ranks on other hosts. It begins to listen
// before the formation, because the formation publishes this rank's addresses. It makes the
// channels after the formation, because they need the addresses of the other ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "channels/channels.h"
#include "formation/formation.h"
#include "network/tcp/interfaces.h"
#include "network/tcp/tls_session.h"

namespace farandole {

// Returns the job number for the links of an engine. Engines with different numbers never accept
// each other's connections. The number depends on the name of the job (see job_name.h) and on
// `engine`. If an engine has only some ranks of a job, `engine` is a text that identifies the
// engine. If an engine has all ranks, `engine` is empty.
std::uint64_t job_number(const std::string& job_name, const std::string& engine);

class HostNetwork {
 public:
  struct Options {
    std::uint64_t job = 0;         // see job_number(); the same on all ranks
    InterfaceChoice interfaces{};  // chooses the addresses at which to listen
    std::uint16_t port_first = 0;  // if both ports are 0: any free port
    std::uint16_t port_last = 0;
    bool seals_data = true;  // the same on all ranks
    TcpOptions tcp{};
  };

  // The context holds the job's secret. Engines of one process may share the context.
  HostNetwork(std::shared_ptr<const TlsContext> context, Options options)
      : context_(std::move(context)), options_(std::move(options)) {}

  // Begins to listen, for links of this epoch only. Returns the addresses, with ports, at which the
  // other ranks reach this rank. Errors: kFixCall for a wrong choice of interfaces; kStop.
  Result<std::vector<std::string>> listen(int rank, std::int64_t epoch);
  // Makes the channels of a formation. The formation must outlive the channels. Call listen()
  // first. `start_timeout` is the limit for each connection. Errors: kStop.
  Result<std::unique_ptr<Channels>> make_channels(const Formation& formation,
                                                  std::chrono::milliseconds start_timeout);

 private:
  std::shared_ptr<const TlsContext> context_;
  Options options_;
  std::unique_ptr<TcpListener> listener_;
};

}  // namespace farandole
