#include "rendezvous/hosted_store.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/format.h"
#include "base/try.h"
#include "network/tcp/endpoint.h"
#include "rendezvous/keys.h"
#include "rendezvous/store_owner.h"
#include "rendezvous/waiting.h"

namespace farandole {
namespace {

constexpr std::chrono::milliseconds kLookUpPause{200};
constexpr std::chrono::seconds kBusyPortTime{10};

Result<std::vector<SocketAddress>> look_up_until(const RemoteStore::Options& options,
                                                 const Endpoint& place, const WaitLimit& limit) {
  for (;;) {
    auto addresses = options.look_up(place.host, place.port);
    if (addresses.ok()) return addresses;
    const Status limit_status = check_limit({&place.host, 1}, limit);
    if (limit.interrupted && limit.interrupted()) return limit_status;
    if (!limit_status.ok() || addresses.status().code() != StatusCode::kRetry) {
      return Status::stop(format_text("rank 0 cannot listen at {} (FARANDOLE_JOB_STORE): {}",
                                      place.text(), addresses.status().message()));
    }
    const auto time_left = std::chrono::ceil<std::chrono::milliseconds>(
        limit.deadline - std::chrono::steady_clock::now());
    ::poll(nullptr, 0, static_cast<int>(std::clamp(time_left, {}, kLookUpPause).count()));
  }
}

Result<std::vector<SocketAddress>> addresses_of(const RemoteStore::Options& options,
                                                const Endpoint& place,
                                                const InterfaceChoice& interfaces,
                                                const WaitLimit& limit) {
  FARANDOLE_TRY_ASSIGN(const auto place_addresses, look_up_until(options, place, limit));
  FARANDOLE_TRY_ASSIGN(const auto host_addresses, list_interface_addresses());
  FARANDOLE_TRY_ASSIGN(auto listen_addresses,
                       own_addresses(place, place_addresses, host_addresses, "rank 0"));
  if (!is_only_loopback(place, listen_addresses)) return listen_addresses;
  return choose_addresses(host_addresses, interfaces);
}

// If the previous job was killed, its forked children may keep the port open for a moment.
Result<std::unique_ptr<StoreOwner>> open_owner(const RemoteStore::Options& options,
                                               const ListenOptions& listen_options,
                                               const WaitLimit& limit) {
  const TimePoint give_up_time =
      std::min<TimePoint>(limit.deadline, std::chrono::steady_clock::now() + kBusyPortTime);
  for (;;) {
    auto owner = StoreOwner::open(options.context, listen_options);
    const bool was_interrupted = limit.interrupted && limit.interrupted();
    if (owner.ok() || was_interrupted || std::chrono::steady_clock::now() >= give_up_time)
      return owner;
    ::poll(nullptr, 0, static_cast<int>(kLookUpPause.count()));
  }
}

}  // namespace

Result<std::shared_ptr<Store>> open_hosted_store(const RemoteStore::Options& options,
                                                 const InterfaceChoice& interfaces,
                                                 const WaitLimit& limit) {
  FARANDOLE_TRY_ASSIGN(const auto places, parse_store_places(options.places));
  ListenOptions listen_options{.port_first = places.front().port, .port_last = places.front().port};
  for (const Endpoint& place : places) {
    if (place.port != places.front().port) {
      return Status::fix_call(format_text(
          "FARANDOLE_JOB_STORE is \"{}\": rank 0 listens at one port only; give the same port for "
          "each address",
          options.places));
    }
    FARANDOLE_TRY_ASSIGN(const auto addresses, addresses_of(options, place, interfaces, limit));
    listen_options.addresses.insert(listen_options.addresses.end(), addresses.begin(),
                                    addresses.end());
  }
  auto owner = open_owner(options, listen_options, limit);
  if (!owner.ok()) {
    return Status::stop(format_text(
        "rank 0 cannot serve the rendezvous of the job at {} (FARANDOLE_JOB_STORE): {}; if another "
        "program uses this port, set FARANDOLE_JOB_STORE to another one for all ranks",
        options.places, owner.status().message()));
  }
  FARANDOLE_TRY_ASSIGN(std::shared_ptr<Store> store, start_and_connect(*std::move(owner)));
  return store;
}

Status wait_for_other_ranks(Store& store, const std::function<bool()>& interrupted) {
  return store.wait(keys::others_have_left(), {TimePoint::max(), interrupted}).status();
}

}  // namespace farandole
