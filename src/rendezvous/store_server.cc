#include "rendezvous/store_server.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/try.h"
#include "rendezvous/frame_channel.h"
#include "rendezvous/keys.h"

namespace farandole {
namespace {

constexpr int kEventsPerCall = 64;
constexpr int kRequestsPerTurn = 16;  // requests that are served before another client's turn
constexpr std::size_t kWaitsPerClientMax = 1024;
// An upper bound for the size of a reply without its values.
constexpr std::size_t kReplyHeadBytesMax = 64;
// An upper bound for the bytes that a reply needs for a value, in addition to the bytes of the
// value.
constexpr std::size_t kValueHeadBytesMax = 16;
// The limit for the bytes of answers that wait for a client of another host.
constexpr std::size_t kOutboxBytesMax = std::size_t{4} << 20;

// Returns the events for which epoll watches a client. While answers are unsent, the server reads
// no requests. If the channel already holds the client's next request, epoll must report the client
// although its socket has no bytes to read. So epoll then also watches for room to send, which a
// socket nearly always has.
std::uint32_t epoll_events_for(bool all_sent, bool has_received) {
  if (!all_sent) return EPOLLOUT;
  return has_received ? EPOLLIN | EPOLLOUT : EPOLLIN;
}

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::create(std::string name) {
  Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid())
    return Status::stop(std::string("epoll_create1 failed: ") + std::strerror(errno));
  std::unique_ptr<StoreServer> server(new StoreServer(std::move(name), std::move(epoll)));
  FARANDOLE_TRY(server->set(keys::host_token(), new_host_token()));
  return server;
}

Result<Descriptor> StoreServer::add_client(std::string name) {
  FARANDOLE_TRY_ASSIGN(auto sockets, UnixSocket::make_pair());
  FARANDOLE_TRY(add_connection({.name = std::move(name),
                                .channel = std::make_unique<UnixChannel>(std::move(sockets.first)),
                                .outbox = {},
                                .complaint = {}}));
  return sockets.second.take_descriptor();
}

Status StoreServer::adopt_client(std::string name, UnixSocket socket) {
  return add_connection({.name = std::move(name),
                         .channel = std::make_unique<UnixChannel>(std::move(socket)),
                         .outbox = {},
                         .connected_by_itself = true,
                         .complaint = {}});
}

Status StoreServer::adopt_remote_client(std::string name, std::unique_ptr<Connection> connection) {
  return add_connection({.name = std::move(name),
                         .channel = std::make_unique<FrameChannel>(std::move(connection)),
                         .outbox = {},
                         .complaint = {}});
}

Status StoreServer::add_connection(Client client) {
  const std::uint64_t id = next_client_++;
  client.watched_events = epoll_events_for(client.outbox.empty(), client.channel->has_received());
  epoll_event watched_events{};
  watched_events.events = client.watched_events;
  watched_events.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, client.channel->descriptor(), &watched_events) != 0)
    return Status::stop(std::string("epoll_ctl failed: ") + std::strerror(errno));
  clients_.emplace(id, std::move(client));
  return {};
}

Status StoreServer::set(const std::string& key, Bytes value) {
  const Status status = table_.set(key, LocalValue{std::move(value), {}});
  answer_waiters(key);
  return status;
}

Result<std::int64_t> StoreServer::add(const std::string& key, std::int64_t delta) {
  const auto sum = table_.add(key, delta);
  answer_waiters(key);
  return sum;
}

// `read` gets a ByteReader of the value.
template <class Value, class Read>
std::optional<Value> StoreServer::value_at(const std::string& key, const Read& read) const {
  const auto stored_value = table_.find(key);
  if (!stored_value.ok() || *stored_value == nullptr) return {};
  ByteReader reader((*stored_value)->bytes);
  Value value = read(reader);
  return reader.ok() ? std::optional(std::move(value)) : std::nullopt;
}

std::optional<std::int64_t> StoreServer::number_at(const std::string& key) const {
  return value_at<std::int64_t>(key, [](ByteReader& reader) { return reader.get<std::int64_t>(); });
}

std::optional<Bytes> StoreServer::bytes_at(const std::string& key) const {
  const auto stored_value = table_.find(key);
  if (!stored_value.ok() || *stored_value == nullptr) return std::nullopt;
  return (*stored_value)->bytes;
}

std::optional<std::string> StoreServer::text_at(const std::string& key) const {
  return value_at<std::string>(key, [](ByteReader& reader) { return reader.get_text(); });
}

std::vector<std::string> StoreServer::serve_ready() {
  std::array<epoll_event, kEventsPerCall> events{};
  const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsPerCall, 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
    const auto client = clients_.find(id);
    if (client == clients_.end()) continue;
    flush(client->second);
    read_requests(id);
    update_watched_events(id, client->second);
  }
  return drop_disconnected_clients();
}

void StoreServer::read_requests(std::uint64_t id) {
  Client& client = clients_.at(id);
  for (int i = 0; i < kRequestsPerTurn && client.outbox.empty() && !client.disconnected; ++i) {
    auto message = client.channel->try_receive();
    if (!message.ok()) {
      const Status status = message.status();
      if (status.code() == StatusCode::kRetry) return;
      client.disconnected = true;
      if (status.code() != StatusCode::kRebuildGroup) client.complaint = status.message();
      return;
    }
    auto request = StoreRequest::decode(message->bytes);
    if (!request) {
      client.disconnected = true;
      client.complaint = "it sent a malformed message of " + std::to_string(message->bytes.size()) +
                         " bytes; do it and " + name_ + " run the same version of Farandole?";
      return;
    }
    if (message->descriptor_status.ok()) {
      serve(id, *std::move(request), std::move(message->descriptors));
      continue;
    }
    reject(id, request->number, Status::stop(name_ + " " + message->descriptor_status.message()));
  }
}

void StoreServer::serve(std::uint64_t id, StoreRequest request,
                        std::vector<Descriptor> descriptors) {
  const std::string key = request.keys.front();
  StoreReply answer;
  answer.number = request.number;
  switch (request.kind) {
    case StoreRequestKind::kSet:
      answer.status = table_.set(key, LocalValue{std::move(request.value), std::move(descriptors)});
      if (end_watcher_ && answer.status.ok()) remember_key(clients_.at(id), key);
      reply(id, answer, {});
      return answer_waiters(key);
    case StoreRequestKind::kAdd: {
      const auto sum = table_.add(key, request.delta);
      answer.status = sum.status();
      if (sum.ok()) answer.sum = *sum;
      reply(id, answer, {});
      return answer_waiters(key);
    }
    case StoreRequestKind::kRemove:
      answer.status = table_.remove_all(request.keys);
      return reply(id, answer, {});
    case StoreRequestKind::kClock:
      answer.sum = nanoseconds_of(std::chrono::steady_clock::now());
      return reply(id, answer, {});
    case StoreRequestKind::kWait:
      return begin_wait(id, std::move(request));
    case StoreRequestKind::kCancel:
      return cancel_wait(id, request.number);
  }
}

void StoreServer::begin_wait(std::uint64_t id, StoreRequest request) {
  Waiter waiter{id, request.number, {std::move(request.keys), std::move(request.end_key)}};
  if (table_.is_over(waiter.wait)) return answer_with_values(waiter);
  Client& client = clients_.at(id);
  if (client.wait_count >= kWaitsPerClientMax)
    return reject(id, request.number,
                  Status::fix_call("more than " + std::to_string(kWaitsPerClientMax) +
                                   " waits at the same time in one worker"));
  ++client.wait_count;
  waiters_.push_back(std::move(waiter));
}

void StoreServer::cancel_wait(std::uint64_t id, std::uint64_t number) {
  const auto cancelled = std::ranges::find_if(waiters_, [&](const Waiter& waiter) {
    return waiter.client == id && waiter.number == number;
  });
  if (cancelled == waiters_.end()) return;
  waiters_.erase(cancelled);
  --clients_.at(id).wait_count;
  reject(id, number, Status::retry("cancelled"));
}

void StoreServer::answer_waiters(const std::string& key) {
  for (auto waiter = waiters_.begin(); waiter != waiters_.end();) {
    const auto next_waiter = std::next(waiter);
    if (waiter->wait.awaits(key) && table_.is_over(waiter->wait)) {
      --clients_.at(waiter->client).wait_count;
      answer_with_values(*waiter);
      waiters_.erase(waiter);
    }
    waiter = next_waiter;
  }
}

// The client sends another request for the values that do not fit into this message.
void StoreServer::answer_with_values(const Waiter& waiter) {
  StoreReply answer;
  answer.number = waiter.number;
  std::vector<SharedStoreValue> values;
  const bool passes_descriptors = clients_.at(waiter.client).channel->passes_descriptors();
  std::size_t bytes = kReplyHeadBytesMax;
  std::size_t descriptors = 0;
  for (const auto& key : waiter.wait.keys) {
    const auto found = table_.find(key);
    if (!found.ok()) return reject(waiter.client, waiter.number, found.status());
    static const LocalValue missing_value;
    const LocalValue& value = *found != nullptr ? **found : missing_value;
    const auto count = static_cast<std::uint32_t>(value.descriptors.size());
    bytes += kValueHeadBytesMax + value.bytes.size();
    descriptors += count;
    if (bytes > kStoreMessageBytesMax || descriptors > kUnixMessageDescriptorsMax) break;
    answer.values.emplace_back();
    if (*found == nullptr) continue;
    answer.values.back() = {value.bytes, passes_descriptors ? count : 0};
    if (passes_descriptors) values.push_back(*found);
  }
  reply(waiter.client, answer, std::move(values));
}

void StoreServer::reject(std::uint64_t id, std::uint64_t number, Status status) {
  StoreReply answer;
  answer.number = number;
  answer.status = std::move(status);
  reply(id, answer, {});
}

void StoreServer::reply(std::uint64_t id, const StoreReply& reply,
                        std::vector<SharedStoreValue> values) {
  Client& client = clients_.at(id);
  send_answer(client, {reply.encode(), std::move(values)});
  update_watched_events(id, client);
}

void StoreServer::send_answer(Client& client, Answer answer) {
  client.outbox_bytes += answer.bytes.size();
  client.outbox.push_back(std::move(answer));
  flush(client);
  if (client.channel->passes_descriptors() || client.outbox_bytes <= kOutboxBytesMax) return;
  client.disconnected = true;
  client.complaint = "it does not read its answers, of which " +
                     std::to_string(client.outbox_bytes) + " bytes wait";
}

void StoreServer::flush(Client& client) {
  while (!client.outbox.empty() && !client.disconnected) {
    const Answer& answer = client.outbox.front();
    std::vector<int> descriptor_numbers;
    for (const auto& value : answer.values)
      for (const auto& descriptor : value->descriptors)
        descriptor_numbers.push_back(descriptor.get());
    const Status send_status = client.channel->try_send(answer.bytes, descriptor_numbers);
    if (send_status.code() == StatusCode::kRetry) return;
    if (!send_status.ok()) {
      client.disconnected = true;
      if (send_status.code() != StatusCode::kRebuildGroup) client.complaint = send_status.message();
      return;
    }
    client.outbox_bytes -= answer.bytes.size();
    client.outbox.pop_front();
  }
}

bool StoreServer::has_unsent_descriptors() const {
  return std::ranges::any_of(clients_, [](const auto& entry) {
    const auto& outbox = entry.second.outbox;
    return !outbox.empty() && !outbox.front().values.empty();
  });
}

void StoreServer::update_watched_events(std::uint64_t id, Client& client) {
  const auto events = epoll_events_for(client.outbox.empty(), client.channel->has_received());
  if (events == client.watched_events) return;
  client.watched_events = events;
  epoll_event watched_events{};
  watched_events.events = events;
  watched_events.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.channel->descriptor(), &watched_events) == 0)
    return;
  client.disconnected = true;
  client.complaint = std::string("epoll_ctl failed: ") + std::strerror(errno);
}

// Remembers a key that the client has set. If the list of these keys is long, first drops the keys
// that were removed from the Store, so that the list stays short even after many formations.
void StoreServer::remember_key(Client& client, const std::string& key) const {
  constexpr std::size_t kKeysUntilCleanup = 64;
  if (client.keys.size() >= kKeysUntilCleanup) erase_missing_keys(client.keys);
  client.keys.push_back(key);
}

void StoreServer::erase_missing_keys(std::vector<std::string>& keys) const {
  std::erase_if(keys, [&](const std::string& key) {
    const auto found = table_.find(key);
    return found.ok() && *found == nullptr;
  });
}

std::vector<std::string> StoreServer::drop_disconnected_clients() {
  std::vector<std::string> complaints;
  std::vector<std::pair<std::string, std::vector<std::string>>> ended_clients;
  for (auto entry = clients_.begin(); entry != clients_.end();) {
    if (!entry->second.disconnected) {
      ++entry;
      continue;
    }
    if (!entry->second.complaint.empty())
      complaints.push_back(entry->second.name +
                           " was cut off from the rendezvous: " + entry->second.complaint);
    else if (entry->second.connected_by_itself)
      complaints.push_back(entry->second.name + " has ended");
    std::erase_if(waiters_, [&](const Waiter& waiter) { return waiter.client == entry->first; });
    // Remove the socket from the epoll instance explicitly. Closing the socket does not remove it
    // if a child process that is just being started has a copy.
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry->second.channel->descriptor(), nullptr);
    if (end_watcher_) ended_clients.emplace_back(entry->second.name, std::move(entry->second.keys));
    entry = clients_.erase(entry);
  }
  for (auto& [name, keys] : ended_clients) {
    erase_missing_keys(keys);
    end_watcher_(name, keys);
  }
  return complaints;
}

}  // namespace farandole
