#include "network/tcp/event_set.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/descriptor_limit.h"
#include "base/format.h"

namespace farandole {
namespace {

Status event_error(std::string_view call) {
  const int error = errno;
  return Status::stop(format_text("cannot watch TCP sockets: {}: {} ({})", call,
                                  std::strerror(error), descriptor_advice()));
}

}  // namespace

Result<EventSet> EventSet::make() {
  Descriptor epoll = Descriptor::above_standard_streams(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return event_error("epoll_create1");
  return EventSet(std::move(epoll));
}

Status EventSet::control(int operation, int descriptor, std::uint64_t id, bool to_send) {
  epoll_event event{};
  event.events = EPOLLIN | (to_send ? EPOLLOUT : 0U);
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), operation, descriptor, &event) == 0) return {};
  return event_error("epoll_ctl");
}

Status EventSet::add(int descriptor, std::uint64_t id, bool to_send) {
  return control(EPOLL_CTL_ADD, descriptor, id, to_send);
}

Status EventSet::change(int descriptor, std::uint64_t id, bool to_send) {
  return control(EPOLL_CTL_MOD, descriptor, id, to_send);
}

void EventSet::remove(int descriptor) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, descriptor, nullptr);
}

Result<std::vector<std::uint64_t>> EventSet::ready_ids() const {
  std::array<epoll_event, 64> events{};
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  if (count < 0 && errno != EINTR) return event_error("epoll_wait");
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < count; ++i) ids.push_back(events[static_cast<std::size_t>(i)].data.u64);
  return ids;
}

}  // namespace farandole
