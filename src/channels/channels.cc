#include "channels/channels.h"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ranges>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/thread_setup.h"
#include "base/try.h"

namespace farandole {
namespace {

TimePoint time_now() { return std::chrono::steady_clock::now(); }

// Whether the peer's host has not yet acknowledged all sent bytes. If we closed the connection now
// and the peer still sent bytes, the kernel would reset the connection. Our bytes that are still on
// their way would then be lost.
bool has_unacknowledged_bytes(const Connection& connection) {
  int bytes = 0;
  return connection.descriptor() >= 0 && ::ioctl(connection.descriptor(), SIOCOUTQ, &bytes) == 0 &&
         bytes > 0;
}

// The interval at which wait_until_connected() calls `interrupted`.
constexpr std::chrono::milliseconds kInterruptCheckInterval(100);
// If the program computes, no thread of this rank receives. If frames wait for this time, the
// network thread reports them. The time must be much shorter than TcpOptions::silence_max. It must
// be longer than the time that most programs compute between two calls.
constexpr std::chrono::seconds kTrafficReportDelay(1);
// The longest time for which stop() sleeps before it checks its deadline again.
constexpr std::chrono::milliseconds kStopPollTimeout(20);

}  // namespace

Channels::Channels(const TlsContext& context, std::unique_ptr<TcpListener> listener,
                   Doorbells& doorbells, const Options& options)
    : context_(context), listener_(std::move(listener)), doorbells_(doorbells), options_(options) {}

Channels::~Channels() { stop({}); }

Status Channels::start() {
  stop_event_ = Descriptor::above_standard_streams(::eventfd(0, EFD_CLOEXEC));
  epoll_ = Descriptor::above_standard_streams(::epoll_create1(EPOLL_CLOEXEC));
  if (!stop_event_.valid() || !epoll_.valid())
    return Status::stop(format_text("cannot make an {} ({}); raise `ulimit -n`",
                                    stop_event_.valid() ? "epoll" : "eventfd",
                                    std::strerror(errno)));
  epoll_event interest{.events = EPOLLIN, .data = {.fd = stop_event_.get()}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stop_event_.get(), &interest) != 0)
    return Status::stop(
        format_text("cannot watch the network (epoll_ctl: {})", std::strerror(errno)));
  try {
    thread_ = std::thread(&Channels::run, this);
  } catch (const std::system_error& error) {
    return Status::stop(
        format_text("cannot start the network thread ({}); raise `ulimit -u` or the pids limit of "
                    "the container",
                    error.what()));
  }
  return {};
}

void Channels::report_traffic() {
  if (auto on_traffic = on_traffic_.lock(); *on_traffic) (*on_traffic)();
}

// After one event, the kernel reports no further event of the same socket until ring_on_arrival()
// watches it again. If no thread calls ring_on_arrival() within kTrafficReportDelay after an event,
// no other thread is making progress. In this case, this thread reports the traffic. This thread
// must not allocate memory, because it cannot report a failure.
void Channels::run() {
  set_up_own_thread("farandole-net");
  std::optional<TimePoint> next_report;
  std::uint64_t ring_calls_seen = 0;
  for (;;) {
    if (ring_on_arrival_calls_ != ring_calls_seen) next_report.reset();
    if (next_report && time_now() >= *next_report) {
      report_traffic();
      next_report = time_now() + kTrafficReportDelay;
    }
    epoll_event ready{};
    const int limit_ms =
        next_report ? static_cast<int>(kTrafficReportDelay / std::chrono::milliseconds(1)) : -1;
    const int count = ::epoll_wait(epoll_.get(), &ready, 1, limit_ms);
    CHECK(count >= 0 || errno == EINTR, "epoll_wait fails for no other reason");
    if (count != 1) continue;
    if (ready.data.fd == stop_event_.get()) return;
    if (ready.data.fd == listener_->descriptor()) {
      report_traffic();
    } else if (!next_report || ring_on_arrival_calls_ != ring_calls_seen) {
      ring_calls_seen = ring_on_arrival_calls_;
      next_report = time_now() + kTrafficReportDelay;
    }
    // Ring the bell last, because the thread that wakes must see what report_traffic() has told the
    // owner.
    doorbells_.ring_self();
  }
}

void Channels::stop(Duration limit) {
  const TimePoint deadline = time_now() + limit;
  const auto is_busy = [](const Entry& entry) {
    if (entry.failed) return false;
    if (entry.channel->wants_to_send()) return true;
    if (entry.channel->connection() == nullptr) return false;
    return !entry.channel->peer_said_goodbye() &&
           has_unacknowledged_bytes(*entry.channel->connection());
  };
  while (std::ranges::any_of(entries_ | std::views::values, is_busy) && time_now() < deadline) {
    request_receive_from_all();
    if (advance()) continue;
    std::vector<pollfd> sockets;
    for (const auto& [rank, entry] : entries_)
      if (is_busy(entry) && entry.channel->connection() != nullptr)
        sockets.push_back(
            {.fd = entry.channel->connection()->descriptor(), .events = POLLIN, .revents = 0});
    ::poll(sockets.data(), sockets.size(), static_cast<int>(kStopPollTimeout.count()));
  }
  for (auto& [rank, entry] : entries_)
    if (auto* const connection = entry.channel->connection()) connection->close();
  if (!thread_.joinable()) return;
  const std::uint64_t increment = 1;
  while (::write(stop_event_.get(), &increment, sizeof(increment)) != sizeof(increment))
    CHECK(errno == EINTR, "an eventfd can be incremented");
  thread_.join();
}

void Channels::watch_traffic(std::function<void()> on_traffic) {
  *on_traffic_.lock() = std::move(on_traffic);
  watch_once(listener_->descriptor(), EPOLLIN);
}

void Channels::request_accept_and_receive_all() {
  is_accepting_ = true;
  request_receive_from_all();
}

PeerChannel& Channels::channel_for_lane(int rank, TimePoint now) {
  const bool is_known = entries_.contains(rank);
  Entry& entry = entry_of(rank);
  const bool failed_before = entry.failed && entry.only_messages;
  entry.only_messages = false;
  if (failed_before) {
    Failure& failure = failures_.emplace_back();
    failure.rank = rank;
    failure.text = "it could not be reached before";
  }
  if (is_known) return *entry.channel;
  entry.connect_deadline = now + options_.connect_timeout;
  if (options_.rank < rank) dial(rank, entry, now);
  return *entry.channel;
}

PeerChannel& Channels::channel_for_messages(int rank, TimePoint now) {
  const bool is_known = entries_.contains(rank);
  Entry& entry = entry_of(rank);
  if (is_known) return *entry.channel;
  entry.only_messages = true;
  entry.connect_deadline = now + options_.connect_timeout;
  dial(rank, entry, now);
  return *entry.channel;
}

void Channels::dial(int rank, Entry& entry, TimePoint now) {
  const auto party_of = [](int party_rank) {
    return Party{Role::kWorker, static_cast<std::uint32_t>(party_rank)};
  };
  const DialOptions dial_options{.addresses = options_.addresses_of(rank),
                                 .link = {.job = options_.job,
                                          .epoch = options_.epoch,
                                          .dialer = party_of(options_.rank),
                                          .listener = party_of(rank),
                                          .seals_data = options_.seals_data},
                                 .tcp = options_.tcp};
  auto dialer = Dialer::start(context_, dial_options, now, entry.connect_deadline);
  if (dialer.ok())
    entry.dialer = *std::move(dialer);
  else
    fail(rank, entry, dialer.status().message());
}

Channels::Entry& Channels::entry_of(int rank) {
  const auto [position, is_new] = entries_.try_emplace(rank);
  Entry& entry = position->second;
  if (!is_new) return entry;
  entry.channel = std::make_unique<PeerChannel>(options_.epoch);
  ++connecting_;
  return entry;
}

bool Channels::advance() {
  bool progress = (is_connecting() || is_accepting_) && connect(time_now());
  const bool receives_all = std::exchange(receives_from_all_, false);
  auto next_entry = entries_.upper_bound(last_polled_rank_);
  if (next_entry == entries_.end()) next_entry = entries_.begin();
  if (next_entry != entries_.end()) last_polled_rank_ = next_entry->first;
  for (auto& [rank, entry] : entries_) {
    const bool receives =
        receives_all || rank == last_polled_rank_ || entry.channel->awaits_frames();
    progress |= advance_channel(rank, entry,
                                receives ? PeerChannel::Receive::kYes : PeerChannel::Receive::kNo);
  }
  return progress;
}

bool Channels::send() {
  bool progress = false;
  for (auto& [rank, entry] : entries_)
    if (entry.channel->wants_to_send())
      progress |= advance_channel(rank, entry, PeerChannel::Receive::kNo);
  return progress;
}

bool Channels::advance_channel(int rank, Entry& entry, PeerChannel::Receive receive) {
  if (entry.failed) return false;
  const auto moved = entry.channel->advance(receive);
  if (!moved.ok()) fail(rank, entry, moved.status().message());
  return !moved.ok() || *moved;
}

bool Channels::wants_to_send() const {
  return std::ranges::any_of(entries_ | std::views::values, [](const Entry& entry) {
    return !entry.failed && entry.channel->wants_to_send();
  });
}

bool Channels::connect(TimePoint now) {
  bool progress = accept(now);
  for (auto& [rank, entry] : entries_) {
    if (entry.failed || entry.channel->connection() != nullptr) continue;
    progress |= advance_dialer(rank, entry, now);
    if (!entry.failed && entry.channel->connection() == nullptr && !entry.dialer &&
        now >= entry.connect_deadline)
      fail(rank, entry,
           format_text(
               "rank {} has not connected to rank {} within {} s", rank, options_.rank,
               std::chrono::duration_cast<std::chrono::seconds>(options_.connect_timeout).count()));
  }
  return progress;
}

bool Channels::accept(TimePoint now) {
  bool progress = false;
  for (;;) {
    auto connection = listener_->try_accept(now);
    if (!connection.ok() || *connection == nullptr) break;
    progress = true;
    const Party& party = (*connection)->peer().party;
    const int rank = static_cast<int>(party.number);
    if (party.role != Role::kWorker || rank < 0 || rank >= doorbells_.size() ||
        rank == options_.rank)
      continue;  // only other workers of the job may dial us
    if (rank > options_.rank) {
      channel_for_messages(rank, now);
      continue;
    }
    // A rank may dial before we need the channel to it, for example for a group that we have not
    // made yet. We will need the channel soon, because both ranks make the group.
    Entry& entry = entry_of(rank);
    if (entry.channel->connection() == nullptr && !entry.failed)
      attach(entry, *std::move(connection));
  }
  if (is_accepting_ && listener_->next_deadline() == TimePoint::max()) {
    is_accepting_ = false;
    watch_once(listener_->descriptor(), EPOLLIN);
  }
  return progress;
}

bool Channels::advance_dialer(int rank, Entry& entry, TimePoint now) {
  if (!entry.dialer) return false;
  auto connection = entry.dialer->try_connect(now);
  if (!connection.ok()) {
    fail(rank, entry, connection.status().message());
    return true;
  }
  if (*connection == nullptr) return false;
  if (options_.rank > rank) {  // the lower rank has accepted our knock and will dial us
    entry.dialer.reset();
    return true;
  }
  attach(entry, *std::move(connection));
  return true;
}

void Channels::attach(Entry& entry, std::unique_ptr<Connection> connection) {
  watch_once(connection->descriptor(), EPOLLIN);
  entry.channel->attach(std::move(connection));
  entry.dialer.reset();
  --connecting_;
}

void Channels::fail(int rank, Entry& entry, std::string text) {
  if (entry.channel->connection() == nullptr) --connecting_;
  // If we have received nothing, the peer may be alive: a peer that leaves, or that has given up
  // this channel, accepts a connection and closes it without sending anything.
  const bool was_used = entry.channel->has_received();
  entry.failed = true;
  entry.channel->give_up();
  entry.dialer.reset();
  failures_.push_back({rank, std::move(text), entry.only_messages && !was_used});
}

// Tries EPOLL_CTL_MOD first, then EPOLL_CTL_ADD. We do not record which descriptors the epoll
// instance watches, because the kernel removes a closed descriptor, and a new descriptor may get
// the same number.
void Channels::watch_once(int descriptor, std::uint32_t events) const {
  if (descriptor < 0) return;
  epoll_event interest{.events = events | EPOLLONESHOT, .data = {.fd = descriptor}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, descriptor, &interest) == 0) return;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &interest);
}

void Channels::ring_on_arrival() {
  // Count this call before the sockets are watched again, so that run() recognizes the next event
  // of each socket as an event after this call.
  ++ring_on_arrival_calls_;
  request_receive_from_all();
  if (is_connecting() || is_accepting_) watch_once(listener_->descriptor(), EPOLLIN);
  for (const auto& [rank, entry] : entries_) {
    if (entry.failed) continue;
    if (entry.dialer) watch_once(entry.dialer->descriptor(), EPOLLIN);
    const auto* const connection = entry.channel->connection();
    const std::uint32_t events = (entry.channel->wants_to_receive() ? std::uint32_t{EPOLLIN} : 0U) |
                                 (entry.channel->wants_to_send() ? std::uint32_t{EPOLLOUT} : 0U);
    if (connection != nullptr && events != 0) watch_once(connection->descriptor(), events);
  }
}

TimePoint Channels::deadline() const {
  TimePoint earliest = TimePoint::max();
  if (!is_connecting() && !is_accepting_) return earliest;
  earliest = listener_->next_deadline();
  for (const auto& [rank, entry] : entries_) {
    if (entry.failed || entry.channel->connection() != nullptr) continue;
    earliest =
        std::min(earliest, entry.dialer ? entry.dialer->next_deadline() : entry.connect_deadline);
  }
  return earliest;
}

Status Channels::wait_until_connected(const std::function<bool()>& interrupted) {
  while (is_connecting()) {
    if (advance()) continue;
    if (!failures_.empty()) break;
    if (interrupted && interrupted()) return Status::retry("interrupted");
    const std::uint32_t ticket = doorbells_.prepare_sleep();
    ring_on_arrival();
    const Duration limit = std::min<Duration>(kInterruptCheckInterval, deadline() - time_now());
    doorbells_.sleep(ticket, std::max<Duration>(limit, Duration(0)));
  }
  if (failures_.empty()) return {};
  return Status::rebuild_group(format_text("rank {} cannot connect to rank {}: {}", options_.rank,
                                           failures_.front().rank, failures_.front().text));
}

// Closes only the descriptors, because Connection::close() would tell the peers of the parent that
// the stream ends. The child must close its copies of the descriptors. Otherwise the connections
// would stay open when the parent ends, and the peers would not see its end.
void Channels::abandon_after_fork() {
  stop_event_.reset();
  epoll_.reset();
  if (listener_) listener_->close_sockets();
  for (const auto& [rank, entry] : entries_) {
    const auto* const connection = entry.channel->connection();
    if (connection != nullptr && connection->descriptor() >= 0) ::close(connection->descriptor());
  }
}

}  // namespace farandole
