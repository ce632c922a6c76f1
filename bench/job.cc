#include "job.h"

#include <poll.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <vector>

#include "base/format.h"
#include "ranks.h"
#include "rendezvous/store_server.h"
#include "transport/shm/segment.h"

namespace farandole::bench {
namespace {

bool serve(StoreServer& server, const std::atomic<int>& ranks_ended, int ranks) {
  while (ranks_ended.load() < ranks) {
    pollfd polled{server.ready_descriptor(), POLLIN, 0};
    ::poll(&polled, 1, 50);
    for (const std::string& error_text : server.serve_ready()) {
      std::fprintf(stderr, "%s\n", error_text.c_str());
      return false;
    }
  }
  return true;
}

}  // namespace

bool run_in_job(int ranks, const std::function<bool(int rank, int rendezvous)>& function) {
  const auto memory = Segment::create("bench-job", sizeof(std::atomic<int>)).value();
  auto& ranks_ended = *reinterpret_cast<std::atomic<int>*>(memory->data());
  const auto server = StoreServer::create("the bench").value();
  std::vector<Descriptor> rank_ends;
  for (int rank = 0; rank < ranks; ++rank)
    rank_ends.push_back(server->add_client(format_text("rank {}", rank)).value());
  return run_in_processes(ranks + 1, [&](int rank) {
    if (rank == ranks) return serve(*server, ranks_ended, ranks);
    const bool succeeded = function(rank, rank_ends[static_cast<std::size_t>(rank)].get());
    ++ranks_ended;
    return succeeded;
  });
}

}  // namespace farandole::bench
