#include "base/poller.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

namespace farandole {
namespace {

constexpr int kEventsMax = 1024;
constexpr std::int64_t kWaitMaxMs = 3'600'000;

}  // namespace

int poll_timeout_ms(std::optional<TimePoint> deadline) {
  if (!deadline) return -1;
  const auto time_left = *deadline - std::chrono::steady_clock::now();
  const std::int64_t ms = std::chrono::ceil<std::chrono::milliseconds>(time_left).count();
  return static_cast<int>(std::clamp<std::int64_t>(ms, 0, kWaitMaxMs));
}

Result<Poller> Poller::create() {
  Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid())
    return Status::stop(std::string("epoll_create1 failed: ") + std::strerror(errno));
  return Poller(std::move(epoll));
}

bool Poller::add(int descriptor, Interest interest, std::uint64_t tag) {
  epoll_event event{};
  event.events = interest == Interest::kReading ? EPOLLIN : EPOLLOUT;
  event.data.u64 = tag;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) == 0;
}

void Poller::remove(int descriptor) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
}

std::vector<std::uint64_t> Poller::wait(std::optional<TimePoint> deadline) {
  std::array<epoll_event, kEventsMax> events{};
  const int count =
      ::epoll_wait(epoll_.get(), events.data(), kEventsMax, poll_timeout_ms(deadline));
  std::vector<std::uint64_t> tags;
  for (int i = 0; i < count; ++i) tags.push_back(events[static_cast<std::size_t>(i)].data.u64);
  return tags;
}

}  // namespace farandole
