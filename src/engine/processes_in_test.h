// Jobs of real processes, for tests: every rank is a child process of the test, which serves the
// Store as the launcher does.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/job_in_test.h"
#include "farandole/engine.h"
#include "rendezvous/store_server.h"

namespace farandole {

inline constexpr int kPassed = 42;  // exit status of a child if all its checks have passed

using RankGroups = std::vector<std::vector<int>>;

// The context of this process. The first call must come after the fork, in the child.
inline const std::shared_ptr<ProcessContext>& context_in_test() {
  static const auto context = make_process_context();
  return context;
}

inline std::unique_ptr<Engine> join_job(int rank, int size, const RankGroups& groups,
                                        int descriptor) {
  EngineOptions options;
  options.context = context_in_test();
  options.bucket_bytes = 0;
  options.heap_bytes = 64 << 20;
  options.topology = {.rank = rank, .size = size, .local_rank = rank, .local_size = size};
  options.groups = groups;
  options.rendezvous_descriptor = descriptor;
  options.start_timeout = kTestTimeout;
  auto engine = Engine::create(options);
  if (engine.ok()) return std::move(*engine);
  std::fprintf(stderr, "rank %d: %s\n", rank, engine.status().message().c_str());
  ::_exit(1);
}

// Runs run_child(rank, engine) for every rank in a process of its own. Returns the wait statuses by
// rank.
inline std::vector<int> run_processes(int size, const std::function<int(int, Engine&)>& run_child,
                                      const RankGroups& groups = {}) {
  auto server = StoreServer::create("the launcher");
  EXPECT_TRUE(server.ok());
  std::vector<Descriptor> client_sockets;
  for (int rank = 0; rank < size; ++rank) {
    auto client_socket = (*server)->add_client("rank " + std::to_string(rank));
    EXPECT_TRUE(client_socket.ok());
    client_sockets.push_back(std::move(*client_socket));
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      const auto engine =
          join_job(rank, size, groups, client_sockets[static_cast<std::size_t>(rank)].get());
      ::_exit(run_child(rank, *engine));
    }
    children.push_back(pid);
  }
  client_sockets.clear();
  std::vector<int> statuses(children.size());
  for (std::size_t running_children = children.size(); running_children > 0;) {
    pollfd polled{(*server)->ready_descriptor(), POLLIN, 0};
    ::poll(&polled, 1, 20);
    EXPECT_THAT((*server)->serve_ready(), ::testing::IsEmpty());
    for (std::size_t i = 0; i < children.size(); ++i)
      if (children[i] != 0 && ::waitpid(children[i], &statuses[i], WNOHANG) == children[i]) {
        children[i] = 0;
        --running_children;
      }
  }
  return statuses;
}

// Returns a thread that kills this process after a time.
inline std::thread kill_this_process_after(std::chrono::microseconds time) {
  return std::thread([time] {
    std::this_thread::sleep_for(time);
    ::kill(::getpid(), SIGKILL);
  });
}

// Returns kPassed if the error contains the text; otherwise another exit code.
inline int exit_code_for(const Status& status, const std::string& text) {
  const bool is_expected = status.code() == StatusCode::kRebuildGroup &&
                           status.message().find(text) != std::string::npos;
  if (!is_expected) std::fprintf(stderr, "unexpected: %s\n", status.message().c_str());
  return is_expected ? kPassed : 1;
}

}  // namespace farandole
