#include "engine/watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/check.h"

namespace farandole {

Watch::Watch(Doorbells& doorbells, std::vector<Process> processes, const Log& log)
    : doorbells_(doorbells), log_(log), processes_(std::move(processes)) {}

Watch::~Watch() { stop(); }

Status Watch::start() {
  stop_event_ = Descriptor(::eventfd(0, EFD_CLOEXEC));
  if (!stop_event_.valid())
    return Status::stop(
        fmt::format("cannot make an eventfd ({}); raise `ulimit -n`", std::strerror(errno)));
  try {
    thread_ = std::thread(&Watch::run, this);
  } catch (const std::system_error& error) {
    return Status::stop(fmt::format(
        "cannot start the watch thread ({}); raise `ulimit -u` or the pids limit of the container",
        error.what()));
  }
  return {};
}

void Watch::stop() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  CHECK(::write(stop_event_.get(), &one, sizeof(one)) == sizeof(one), "an eventfd takes one more");
  thread_.join();
  stop_event_.reset();
}

void Watch::run() {
  ::pthread_setname_np(::pthread_self(), "farandole-watch");
  for (;;) {
    std::vector<pollfd> polled;
    for (const auto& process : processes_) polled.push_back({process.descriptor, POLLIN, 0});
    polled.push_back({stop_event_.get(), POLLIN, 0});
    if (::poll(polled.data(), polled.size(), -1) < 0) {
      CHECK(errno == EINTR, "poll fails for no other reason on valid descriptors");
      continue;
    }
    if (polled.back().revents != 0) return;
    std::vector<Process> alive;
    for (std::size_t i = 0; i < processes_.size(); ++i) {
      const int rank = processes_[i].rank;
      if (polled[i].revents == 0) {
        alive.push_back(processes_[i]);
      } else if (!doorbells_.leaver(rank)) {  // who left in order may end
        log_(Level::kInfo, fmt::format("rank {} has died", rank));
        doorbells_.close(rank);
      }
    }
    processes_ = std::move(alive);
  }
}

}  // namespace farandole
