// RemoteStore: the job's Store, reached from any host over a sealed connection.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "network/link.h"
#include "network/tcp/endpoint.h"
#include "network/tcp/host_name.h"
#include "network/tcp/tls_session.h"
#include "rendezvous/store.h"
#include "rendezvous/store_client.h"

namespace farandole {

// Returns the link of a process to the process that serves the job's Store. The Store outlives
// formations, so its links have the epoch 0.
inline Link store_link(Party dialer) {
  return {.job = 0, .epoch = 0, .dialer = dialer, .listener = {Role::kLauncher, 0}};
}

// Parses Knobs::job_store, such as "fox:4711,10.0.0.1:4711,[fd00::1]:4711". Errors: kFixCall.
Result<std::vector<Endpoint>> parse_store_places(const std::string& text);

class RemoteStore final : public Store {
 public:
  struct Options {
    std::string places;  // see parse_store_places(); one of the places must work
    std::shared_ptr<const TlsContext> context;  // also owned by other connections of the process
    Party self;
    HostLookup look_up = look_up_host;
  };

  // Connects. Tries again until the limit, because the server may start later than this process, or
  // the server's name may not be known yet. Errors: kFixCall if the places cannot be parsed; kRetry
  // if interrupted; kRebuildGroup at the limit (the text has the places and the last error); kStop.
  static Result<std::unique_ptr<RemoteStore>> connect(const Options& options,
                                                      const WaitLimit& limit);

  // Every call may also return kStop if the connection has ended or the server does not answer.
  Status set(const std::string& key, Bytes value) override;
  Result<StoreValues> wait_for_all(const std::vector<std::string>& keys, const std::string& end_key,
                                   const WaitLimit& limit) override;
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override;
  Status remove_all(const std::vector<std::string>& keys) override;
  Status replace(const std::string& key, Bytes value, const WaitLimit& limit) override;
  Result<TimePoint> clock() override;

 private:
  RemoteStore(std::shared_ptr<const TlsContext> context, std::unique_ptr<StoreChannel> channel,
              std::string server);

  const std::shared_ptr<const TlsContext> context_;  // outlives the connection of client_
  StoreClient client_;
};

}  // namespace farandole
