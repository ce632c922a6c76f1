#include "rendezvous/store_server.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/try.h"

namespace farandole {
namespace {

constexpr int kEventsPerCall = 64;
constexpr int kRequestsPerTurn = 16;  // after these, another client gets its turn
constexpr std::size_t kWaitsPerClientMax = 1024;

}  // namespace

Result<std::unique_ptr<StoreServer>> StoreServer::create(std::string name) {
  Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid())
    return Status::stop(std::string("epoll_create1 failed: ") + std::strerror(errno));
  return std::unique_ptr<StoreServer>(new StoreServer(std::move(name), std::move(epoll)));
}

Result<Descriptor> StoreServer::add_client(std::string name) {
  FARANDOLE_TRY_ASSIGN(auto ends, UnixSocket::make_pair());
  FARANDOLE_TRY(add(
      {.name = std::move(name), .socket = std::move(ends.first), .outbox = {}, .complaint = {}}));
  return ends.second.take_descriptor();
}

Status StoreServer::adopt_client(std::string name, UnixSocket socket) {
  return add({.name = std::move(name),
              .socket = std::move(socket),
              .outbox = {},
              .connected_by_itself = true,
              .complaint = {}});
}

Status StoreServer::add(Client client) {
  const std::uint64_t id = next_client_++;
  epoll_event interest{};
  interest.events = EPOLLIN;
  interest.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, client.socket.descriptor().get(), &interest) != 0)
    return Status::stop(std::string("epoll_ctl failed: ") + std::strerror(errno));
  clients_.emplace(id, std::move(client));
  return {};
}

Status StoreServer::set(const std::string& key, Bytes value) {
  const Status status = table_.set(key, StoreValue{std::move(value), {}});
  answer_waiters(key);
  return status;
}

Result<std::int64_t> StoreServer::add(const std::string& key, std::int64_t delta) {
  const auto sum = table_.add(key, delta);
  answer_waiters(key);
  return sum;
}

std::vector<std::string> StoreServer::serve_ready() {
  std::array<epoll_event, kEventsPerCall> events{};
  const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsPerCall, 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t id = events[static_cast<std::size_t>(i)].data.u64;
    const auto found = clients_.find(id);
    if (found == clients_.end()) continue;
    flush(found->second);
    read_requests(id);
    update_interest(id, found->second);
  }
  return drop_closed();
}

void StoreServer::read_requests(std::uint64_t id) {
  Client& client = clients_.at(id);
  for (int i = 0; i < kRequestsPerTurn && client.outbox.empty() && !client.gone; ++i) {
    auto message = client.socket.try_receive();
    if (!message.ok()) {
      const Status status = message.status();
      if (status.code() == StatusCode::kRetry) return;
      client.gone = true;
      if (status.code() != StatusCode::kRebuildGroup) client.complaint = status.message();
      return;
    }
    auto request = StoreRequest::decode(message->bytes);
    if (!request) {
      client.gone = true;
      client.complaint = "it sent a malformed message of " + std::to_string(message->bytes.size()) +
                         " bytes; do it and " + name_ + " run the same version of Farandole?";
      return;
    }
    if (message->complete.ok()) {
      serve(id, *std::move(request), std::move(message->descriptors));
      continue;
    }
    StoreReply rejection;
    rejection.number = request->number;
    rejection.status = Status::stop(name_ + " " + message->complete.message());
    reply(id, std::move(rejection), {});
  }
}

void StoreServer::serve(std::uint64_t id, StoreRequest request,
                        std::vector<Descriptor> descriptors) {
  StoreReply answer;
  answer.number = request.number;
  switch (request.kind) {
    case StoreRequestKind::kSet:
      answer.status =
          table_.set(request.key, StoreValue{std::move(request.value), std::move(descriptors)});
      reply(id, std::move(answer), {});
      return answer_waiters(request.key);
    case StoreRequestKind::kAdd: {
      const auto sum = table_.add(request.key, request.delta);
      answer.status = sum.status();
      if (sum.ok()) answer.sum = *sum;
      reply(id, std::move(answer), {});
      return answer_waiters(request.key);
    }
    case StoreRequestKind::kRemove:
      answer.status = table_.remove(request.key);
      return reply(id, std::move(answer), {});
    case StoreRequestKind::kWait:
      return begin_wait(id, request);
    case StoreRequestKind::kCancel:
      return cancel_wait(id, request);
  }
}

void StoreServer::begin_wait(std::uint64_t id, const StoreRequest& request) {
  const Waiter waiter{id, request.number};
  auto found = table_.find(request.key);
  if (found.status().code() != StatusCode::kRetry)
    return answer_with_value(waiter, std::move(found));
  Client& client = clients_.at(id);
  if (client.waits >= kWaitsPerClientMax)
    return answer_with_value(waiter,
                             Status::fix_call("more than " + std::to_string(kWaitsPerClientMax) +
                                              " waits at the same time in one worker"));
  ++client.waits;
  waiters_[request.key].push_back(waiter);
}

void StoreServer::cancel_wait(std::uint64_t id, const StoreRequest& request) {
  const auto waiting = waiters_.find(request.key);
  if (waiting == waiters_.end()) return;
  auto& list = waiting->second;
  const auto mine = std::find_if(list.begin(), list.end(), [&](const Waiter& waiter) {
    return waiter.client == id && waiter.number == request.number;
  });
  if (mine == list.end()) return;
  list.erase(mine);
  if (list.empty()) waiters_.erase(waiting);
  --clients_.at(id).waits;
  answer_with_value({id, request.number}, Status::retry("cancelled"));
}

void StoreServer::answer_waiters(const std::string& key) {
  const auto waiting = waiters_.find(key);
  if (waiting == waiters_.end()) return;
  if (table_.find(key).status().code() == StatusCode::kRetry) return;
  const std::vector<Waiter> list = std::move(waiting->second);
  waiters_.erase(waiting);
  for (const Waiter& waiter : list) {
    --clients_.at(waiter.client).waits;
    answer_with_value(waiter, table_.find(key));
  }
}

void StoreServer::answer_with_value(const Waiter& waiter, Result<StoreValue> value) {
  StoreReply answer;
  answer.number = waiter.number;
  answer.status = value.status();
  if (!value.ok()) return reply(waiter.client, std::move(answer), {});
  answer.value = std::move(value->bytes);
  reply(waiter.client, std::move(answer), std::move(value->descriptors));
}

void StoreServer::reply(std::uint64_t id, StoreReply reply, std::vector<Descriptor> descriptors) {
  Client& client = clients_.at(id);
  client.outbox.push_back({reply.encode(), std::move(descriptors)});
  flush(client);
  update_interest(id, client);
}

void StoreServer::flush(Client& client) {
  while (!client.outbox.empty() && !client.gone) {
    const Outgoing& next = client.outbox.front();
    std::vector<int> numbers;
    for (const auto& descriptor : next.descriptors) numbers.push_back(descriptor.get());
    const Status sent = client.socket.try_send(next.bytes, numbers);
    if (sent.code() == StatusCode::kRetry) return;
    if (!sent.ok()) {
      client.gone = true;
      if (sent.code() != StatusCode::kRebuildGroup) client.complaint = sent.message();
      return;
    }
    client.outbox.pop_front();
  }
}

void StoreServer::update_interest(std::uint64_t id, Client& client) {
  const bool wants_room = !client.outbox.empty();
  if (wants_room == client.listens_for_room) return;
  client.listens_for_room = wants_room;
  epoll_event interest{};
  interest.events = wants_room ? EPOLLOUT : EPOLLIN;
  interest.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, client.socket.descriptor().get(), &interest) == 0)
    return;
  client.gone = true;
  client.complaint = std::string("epoll_ctl failed: ") + std::strerror(errno);
}

std::vector<std::string> StoreServer::drop_closed() {
  std::vector<std::string> complaints;
  for (auto entry = clients_.begin(); entry != clients_.end();) {
    if (!entry->second.gone) {
      ++entry;
      continue;
    }
    if (!entry->second.complaint.empty())
      complaints.push_back(entry->second.name +
                           " was cut off from the rendezvous: " + entry->second.complaint);
    else if (entry->second.connected_by_itself)
      complaints.push_back(entry->second.name + " has ended");
    for (auto& [key, list] : waiters_)
      std::erase_if(list, [&](const Waiter& waiter) { return waiter.client == entry->first; });
    std::erase_if(waiters_, [](const auto& waiting) { return waiting.second.empty(); });
    // Remove the socket from epoll explicitly: closing it does not, if a child that is just being
    // started has a copy.
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, entry->second.socket.descriptor().get(), nullptr);
    entry = clients_.erase(entry);
  }
  return complaints;
}

}  // namespace farandole
