#include "rendezvous/remote_store.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/format.h"
#include "base/try.h"
#include "network/tcp/dialer.h"
#include "rendezvous/frame_channel.h"
#include "rendezvous/waiting.h"

namespace farandole {
namespace {

// The shortest and the longest pause between two rounds of attempts. A round tries all places.
constexpr std::chrono::milliseconds kRoundPauseMin{50};
constexpr std::chrono::milliseconds kRoundPauseMax{1000};

std::string name_of_server(const std::string& addresses) {
  return format_text("the process that serves the rendezvous of this job ({})", addresses);
}

// Waits until the dialer has something to do, or until it is time to check the limit.
void wait_for_dialer(const Dialer& dialer, const WaitLimit& limit) {
  const TimePoint wake_time = std::min(dialer.next_deadline(), next_slice_end(limit));
  const auto time_left =
      std::chrono::ceil<std::chrono::milliseconds>(wake_time - std::chrono::steady_clock::now());
  pollfd entry{dialer.descriptor(), POLLIN, 0};
  ::poll(&entry, 1, static_cast<int>(std::max<std::int64_t>(time_left.count(), 0)));
}

Result<std::unique_ptr<Connection>> dial(const RemoteStore::Options& options,
                                         std::vector<SocketAddress> addresses,
                                         const WaitLimit& limit) {
  const DialOptions dial_options{
      .addresses = std::move(addresses), .link = store_link(options.self), .rounds = 1};
  FARANDOLE_TRY_ASSIGN(const auto dialer,
                       Dialer::start(*options.context, dial_options,
                                     std::chrono::steady_clock::now(), limit.deadline));
  for (;;) {
    auto connection = dialer->try_connect(std::chrono::steady_clock::now());
    if (!connection.ok() || *connection) return connection;
    if (limit.interrupted && limit.interrupted()) return Status::retry("interrupted");
    wait_for_dialer(*dialer, limit);
  }
}

// Looks up all names once, and returns the addresses of the known names. If no name is known,
// returns the error of the last look-up.
Result<std::vector<SocketAddress>> look_up_all(const std::vector<Endpoint>& places,
                                               const HostLookup& look_up) {
  std::vector<SocketAddress> addresses;
  Status last_error;
  for (const Endpoint& place : places) {
    const auto name_addresses = look_up(place.host, place.port);
    if (name_addresses.ok())
      addresses.insert(addresses.end(), name_addresses->begin(), name_addresses->end());
    else
      last_error = name_addresses.status();
  }
  if (addresses.empty()) return last_error;
  return addresses;
}

Result<std::unique_ptr<Connection>> try_once(const RemoteStore::Options& options,
                                             const std::vector<Endpoint>& places,
                                             const WaitLimit& limit) {
  FARANDOLE_TRY_ASSIGN(auto addresses, look_up_all(places, options.look_up));
  return dial(options, std::move(addresses), limit);
}

}  // namespace

Result<std::vector<Endpoint>> parse_store_places(const std::string& text) {
  std::vector<Endpoint> places;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    auto place = Endpoint::parse(text.substr(begin, end - begin));
    if (!place.ok())
      return Status::fix_call(format_text("FARANDOLE_JOB_STORE: {}", place.status().message()));
    places.push_back(*std::move(place));
    begin = end + 1;
  }
  return places;
}

Result<std::unique_ptr<RemoteStore>> RemoteStore::connect(const Options& options,
                                                          const WaitLimit& limit) {
  FARANDOLE_TRY_ASSIGN(const auto places, parse_store_places(options.places));
  const TimePoint begin = std::chrono::steady_clock::now();
  const std::string server_text = format_text("the rendezvous of the job at {}", options.places);
  Status last_error;
  for (auto pause = kRoundPauseMin;; pause = std::min(2 * pause, kRoundPauseMax)) {
    auto connection = try_once(options, places, limit);
    if (connection.ok()) {
      std::string server = name_of_server((*connection)->peer().addresses);
      auto channel = std::make_unique<FrameChannel>(*std::move(connection));
      return std::unique_ptr<RemoteStore>(
          new RemoteStore(options.context, std::move(channel), std::move(server)));
    }
    if (limit.interrupted && limit.interrupted())
      return Status::retry(format_text("interrupted while connecting to {}", server_text));
    const TimePoint now = std::chrono::steady_clock::now();
    // The last attempt had less time than the others. So the error of the attempt before it is more
    // useful.
    if (now < limit.deadline || last_error.ok()) last_error = connection.status();
    if (now >= limit.deadline)
      return Status::rebuild_group(format_text(
          "could not connect to {} in {} s: {}. Does the launcher or rank 0 run there, with the "
          "secret of this job, and do firewalls allow the port? A slow start can be given more "
          "time with "
          "FARANDOLE_START_TIMEOUT (seconds)",
          server_text, std::chrono::duration_cast<std::chrono::seconds>(now - begin).count(),
          last_error.message()));
    const auto time_left = std::chrono::ceil<std::chrono::milliseconds>(limit.deadline - now);
    ::poll(nullptr, 0, static_cast<int>(std::min(time_left, pause).count()));
  }
}

RemoteStore::RemoteStore(std::shared_ptr<const TlsContext> context,
                         std::unique_ptr<StoreChannel> channel, std::string server)
    : context_(std::move(context)), client_(std::move(channel), std::move(server)) {}

Status RemoteStore::set(const std::string& key, Bytes value) {
  return client_.set(key, std::move(value));
}

Result<StoreValues> RemoteStore::wait_for_all(const std::vector<std::string>& keys,
                                              const std::string& end_key, const WaitLimit& limit) {
  return client_.wait_for_all(keys, end_key, limit);
}

Result<std::int64_t> RemoteStore::add(const std::string& key, std::int64_t delta) {
  return client_.add(key, delta);
}

Result<TimePoint> RemoteStore::clock() { return client_.clock(); }

Status RemoteStore::replace(const std::string& key, Bytes value, const WaitLimit& limit) {
  return client_.replace(key, std::move(value), limit);
}

Status RemoteStore::remove_all(const std::vector<std::string>& keys) {
  return client_.remove_all(keys);
}

}  // namespace farandole
