#include "formation/elastic_rank.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <utility>

#include "base/check.h"
#include "formation/process_context.h"
#include "rendezvous/keys.h"
#include "rendezvous/launcher_notice.h"
#include "rendezvous/store_server.h"
#include "transport/unix_socket.h"

namespace farandole {
namespace {

// The launcher of a worker. The worker is a process of its own, because the launcher may tell it to
// end.
class ServingLauncher {
 public:
  ServingLauncher() {
    auto store = StoreServer::create("the launcher");
    auto socket_ends = UnixSocket::make_pair();
    CHECK(store.ok() && socket_ends.ok(), "a Store and a socket can be made");
    store_ = *std::move(store);
    socket_ = std::make_unique<UnixSocket>(std::move(socket_ends->first));
    worker_socket_ = socket_ends->second.take_descriptor();
    auto client = store_->add_client("worker 3");
    CHECK(client.ok(), "the Store has room for a client");
    worker_store_ = *std::move(client);
  }

  // Runs a worker that asks for a rank. Returns the worker's exit code, which `check` computes from
  // the status.
  template <class Check>
  int exit_code_of_worker(const Check& check) {
    const pid_t pid = ::fork();
    CHECK(pid >= 0, "fork");
    if (pid == 0) {
      ::setpgid(0, 0);
      EngineOptions options;
      options.context = make_process_context();
      options.elastic_worker = 3;
      options.rendezvous_descriptor = worker_store_.get();
      options.launcher_descriptor = worker_socket_.get();
      const Status status = take_elastic_rank(options);
      ::_exit(check(status, options));
    }
    int status = 0;
    while (::waitpid(pid, &status, WNOHANG) == 0) serve();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  StoreServer& store() { return *store_; }
  void send_notice(const LauncherNotice& notice) const {
    CHECK(socket_->try_send(notice.encode(), {}).ok(), "the notice can be sent");
  }

 private:
  void serve() {
    pollfd entry{store_->ready_descriptor(), POLLIN, 0};
    ::poll(&entry, 1, 10);
    (void)store_->serve_ready();
  }

  std::unique_ptr<StoreServer> store_;
  std::unique_ptr<UnixSocket> socket_;
  Descriptor worker_socket_;
  Descriptor worker_store_;
};

TEST(ElasticRank, ComesFromTheLauncher) {
  ServingLauncher launcher;
  const keys::RankRecord record{.epoch = 5, .rank = 1, .size = 2};
  ASSERT_EQ(launcher.store().set(keys::rank_given(3, 0), record.encode()), Status());
  EXPECT_EQ(launcher.exit_code_of_worker([](const Status& status, const EngineOptions& options) {
    return status.ok() && options.topology.rank == 1 && options.topology.size == 2 ? 0 : 1;
  }),
            0);
}

TEST(ElasticRank, TheWaitForARankEndsIfTheJobMustEnd) {
  ServingLauncher launcher;
  launcher.send_notice({.limit = std::chrono::seconds(60), .why = "it is late"});
  EXPECT_EQ(
      launcher.exit_code_of_worker([](const Status& status, const EngineOptions& /*options*/) {
        const bool says_why = status.message().ends_with("because the job ends: it is late");
        return status.code() == StatusCode::kStop && says_why ? 0 : 1;
      }),
      0);
}

TEST(ElasticRank, RepeatedFailuresAreReported) {
  EngineOptions options;
  options.context = make_process_context();
  options.elastic_worker = 3;
  const Status failure = Status::rebuild_group("rank 0 cannot connect to rank 2");
  testing::internal::CaptureStderr();
  EXPECT_FALSE(may_join_again(options, Status::stop("there is no memory"), 1));
  for (int tries = 1; tries <= 7; ++tries) EXPECT_TRUE(may_join_again(options, failure, tries));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "farandole: worker 3 could not join the group 2 times in a row: rank 0 cannot connect "
            "to rank 2\n"
            "farandole: worker 3 could not join the group 4 times in a row: rank 0 cannot connect "
            "to rank 2\n");
}

}  // namespace
}  // namespace farandole
