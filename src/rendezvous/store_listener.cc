#include "rendezvous/store_listener.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/format.h"
#include "base/try.h"
#include "rendezvous/remote_store.h"

namespace farandole {

Result<std::unique_ptr<StoreListener>> StoreListener::open(const TlsContext& context,
                                                           ListenOptions options,
                                                           StoreServer& server) {
  const Link link = store_link({});
  options.acceptance = {
      .job = link.job, .epoch = link.epoch, .self = link.listener, .seals_data = true};
  FARANDOLE_TRY_ASSIGN(auto listener, TcpListener::open(context, options));
  FARANDOLE_TRY_ASSIGN(auto events, EventSet::make());
  Descriptor timer(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer.valid())
    return Status::stop(std::string("timerfd_create failed: ") + std::strerror(errno));
  FARANDOLE_TRY(events.add(listener->descriptor(), 0, false));
  FARANDOLE_TRY(events.add(timer.get(), 1, false));
  return std::unique_ptr<StoreListener>(
      new StoreListener(std::move(listener), std::move(events), std::move(timer), server));
}

std::vector<std::string> StoreListener::serve_ready() {
  std::vector<std::string> lines;
  std::uint64_t expirations = 0;
  while (::read(timer_.get(), &expirations, sizeof(expirations)) > 0) continue;
  for (;;) {
    auto connection = listener_->try_accept(std::chrono::steady_clock::now());
    if (!connection.ok()) {
      lines.push_back("the rendezvous cannot accept clients: " + connection.status().message());
      break;
    }
    if (!*connection) break;
    const ConnectionPeer& peer = (*connection)->peer();
    const std::string name = format_text("{} ({})", name_of(peer.party), peer.addresses);
    const Status adopt_status = server_.adopt_remote_client(name, *std::move(connection));
    if (!adopt_status.ok())
      lines.push_back(name + " could not be accepted: " + adopt_status.message());
  }
  set_timer();
  return lines;
}

void StoreListener::set_timer() {
  const TimePoint deadline = listener_->next_deadline();
  itimerspec expiration{};
  if (deadline != TimePoint::max()) {
    const auto since_start = deadline.time_since_epoch();
    const auto seconds = std::chrono::floor<std::chrono::seconds>(since_start);
    expiration.it_value.tv_sec = static_cast<time_t>(seconds.count());
    expiration.it_value.tv_nsec =
        static_cast<long>(std::chrono::nanoseconds(since_start - seconds).count());
  }
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &expiration, nullptr);
}

}  // namespace farandole
