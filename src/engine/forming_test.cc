// Tests formations of whole engines. After each formation, only the ranks' counters and pids and
// the time of stall warnings may stay in the Store, because the Store lives as long as the job.
// This also holds after failed formations.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/guarded.h"
#include "engine/job_in_test.h"
#include "network/tcp/job_in_test.h"
#include "rendezvous/keys.h"
#include "rendezvous/serving_thread.h"

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A Store that remembers which keys exist, and counts the requests.
class CountingStore final : public LocalStore {
 public:
  Status share(const std::string& key, LocalValue value) override {
    ++requests_;
    const Status status = store_.share(key, std::move(value));
    if (status.ok()) keys_.lock()->insert(key);
    return status;
  }
  Result<LocalValues> receive_all(const std::vector<std::string>& keys, const std::string& unless,
                                  const WaitLimit& limit) override {
    ++requests_;
    return store_.receive_all(keys, unless, limit);
  }
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override {
    ++requests_;
    keys_.lock()->insert(key);
    return store_.add(key, delta);
  }
  Status remove_all(const std::vector<std::string>& keys) override {
    ++requests_;
    for (const auto& key : keys) keys_.lock()->erase(key);
    return store_.remove_all(keys);
  }
  Result<TimePoint> clock() override { return store_.clock(); }

  std::set<std::string> keys() { return *keys_.lock(); }
  int requests() const { return requests_; }

 private:
  MemoryStore store_;
  std::atomic<int> requests_ = 0;
  Guarded<std::set<std::string>> keys_;
};

// The options of rank 0 and rank 1, and whether their formation succeeds.
struct Attempt {
  std::vector<std::vector<int>> groups[2];
  std::size_t bucket_bytes[2] = {1, 1};
  bool is_interrupted = false;  // whether rank 0 is interrupted before rank 1 starts
  bool must_succeed = false;
};

void form_once(const Attempt& attempt, const std::shared_ptr<CountingStore>& store) {
  const auto join = [&](int rank) {
    EngineOptions options = options_of(rank, 2, attempt.groups[rank]);
    options.bucket_bytes = attempt.bucket_bytes[rank];
    if (rank == 0 && attempt.is_interrupted) options.interrupted = [] { return true; };
    const auto engine = assemble(options, store);
    EXPECT_EQ(engine.ok(), attempt.must_succeed) << engine.status().message();
    if (!engine.ok()) return;
    EXPECT_TRUE((*engine)->add_group({1}).ok());
    EXPECT_FALSE((*engine)->add_group({rank}).ok());
  };
  if (attempt.is_interrupted) join(0);  // rank 1 starts after rank 0 has given up
  std::thread rank_0;
  if (!attempt.is_interrupted) rank_0 = std::thread(join, 0);
  join(1);
  if (rank_0.joinable()) rank_0.join();
}

TEST(Formation, LeavesOnlyKeysOfTheWholeJobInTheStore) {
  const auto store = std::make_shared<CountingStore>();
  const std::vector<Attempt> attempts = {
      {.groups = {{}, {}}, .must_succeed = true},
      {.groups = {{{0}}, {}}},
      {.groups = {{}, {{1}}}},
      {.groups = {{{0}}, {{1}}}},
      {.groups = {{{0}, {1}}, {{7}}}},
      {.groups = {{{7}}, {{1}}}},
      {.groups = {{{7}}, {{7}}}},
      {.groups = {{}, {}}, .bucket_bytes = {1, 2}},
      {.groups = {{}, {}}, .is_interrupted = true},
      {.groups = {{{0}}, {}}, .is_interrupted = true},
  };
  for (int round = 0; round < 20; ++round) {
    for (const auto& attempt : attempts) {
      form_once(attempt, store);
      ASSERT_THAT(store->keys(),
                  ElementsAre(keys::formations(0), keys::formations(1), keys::process(0),
                              keys::process(1), keys::stall_warning()));
    }
  }
}

// The launcher uses the warning time that rank 0 has stored last.
TEST(Formation, TellsTheLauncherWhenToWarn) {
  const auto store = std::make_shared<MemoryStore>();
  for (const int time : {5, 0, 7}) {
    EngineOptions options = options_of(0, 1);
    options.stall_warning = std::chrono::seconds(time);
    ASSERT_EQ(assemble(options, store).status(), Status());
    const std::function<bool()> never_interrupted;
    const auto warning_time = store->wait(keys::stall_warning(), {TimePoint{}, never_interrupted});
    ASSERT_EQ(warning_time.status(), Status());
    EXPECT_EQ(ByteReader(*warning_time).get<std::int64_t>(), time);
  }
}

// Several programs may run one after another in a worker of `farandole run`.
TEST(Formation, ARankMayHaveAnotherProcessWhenItsFormerOneHasEnded) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  const auto store = std::make_shared<MemoryStore>();
  ASSERT_EQ(store->set(keys::process(0), record_of_process(child, *store)), Status());
  EXPECT_EQ(assemble(options_of(0, 1), store).status(), Status());
}

// Runs a job of this size and counts its requests, from its formation to its end.
int count_requests_of_job(int size) {
  const auto store = std::make_shared<CountingStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&store, rank, size] {
      EngineOptions options = options_of(rank, size);
      options.heap_bytes = 1 << 20;
      value_or_abort(assemble(options, store));
    });
  for (auto& rank : ranks) rank.join();
  return store->requests();
}

// Each rank publishes its record and its memory. Then it waits for the records of all other ranks,
// for their memory, and for their end.
TEST(Formation, ARankMakesAsManyRequestsInALargeJobAsInASmallOne) {
  const int requests_of_2 = count_requests_of_job(2);
  const int requests_of_8 = count_requests_of_job(8);
  const int requests_per_rank = (requests_of_8 - requests_of_2) / (8 - 2);
  EXPECT_LE(requests_per_rank, 11);
  EXPECT_EQ(count_requests_of_job(32), requests_of_8 + (32 - 8) * requests_per_rank);
}

// A job with a launcher that serves the Store over the network. Creates the options of the ranks.
class RemoteJob {
 public:
  // `hosts`: by rank, the number of its host, 0 or 1.
  explicit RemoteJob(std::vector<int> hosts)
      : hosts_(std::move(hosts)), job_store_(0, context_.get()) {
    for (auto& store : local_stores_) store = std::make_unique<ServingThread>(size());
  }

  int size() const { return static_cast<int>(hosts_.size()); }
  EngineOptions options(int rank) {
    EngineOptions options = options_of(rank, size());
    options.topology = {.rank = rank, .size = size()};
    options.network_interfaces = "lo";
    options.job_store = job_store_.place();
    const int host = hosts_[static_cast<std::size_t>(rank)];
    options.rendezvous_descriptor =
        local_stores_[static_cast<std::size_t>(host)]->client_end(rank).get();
    return options;
  }

 private:
  std::vector<int> hosts_;
  std::shared_ptr<const TlsContext> context_ = context_of('s');  // outlives the connections
  ServingThread job_store_;
  std::array<std::unique_ptr<ServingThread>, 2> local_stores_;
};

// A descriptor from which the secret of context_of('s') can be read once.
Descriptor secret_pipe(std::size_t bytes = kSecretBytes) {
  std::array<int, 2> pipe_ends{};
  EXPECT_EQ(::pipe2(pipe_ends.data(), O_CLOEXEC), 0);
  const Descriptor write_end(pipe_ends[1]);
  const std::string secret(bytes, 's');
  EXPECT_EQ(::write(write_end.get(), secret.data(), bytes), static_cast<ssize_t>(bytes));
  return Descriptor(pipe_ends[0]);
}

// The second engine of each process needs the secret, too.
TEST(Formation, UsesTheJobStoreThatTheOptionsName) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0}, {0, 1, 0}}) {
    RemoteJob job(hosts);
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < job.size(); ++rank)
      ranks.emplace_back([&, rank] {
        EngineOptions options = job.options(rank);
        const Descriptor secret = secret_pipe();
        options.secret_descriptor = secret.get();
        for (int engine_number = 0; engine_number < 2; ++engine_number) {
          const auto engine = value_or_abort(Engine::create(options));
          EXPECT_EQ(engine->topology().cross_size, hosts.size() == 2 || rank == 2 ? 1 : 2);
          std::vector<float> values(1000, 1.0F);
          EXPECT_EQ(allreduce(*engine, values), Status());
          EXPECT_EQ(values.back(), static_cast<float>(job.size()));
          EXPECT_EQ(engine->add_group({1}).status(), Status());
          EXPECT_EQ(barrier(*engine), Status());
        }
      });
  }
}

// Whether the job's Store still has a key of this engine, which has only some of the ranks.
bool has_lasting_key(Store& store, const std::string& engine_id) {
  const std::function<bool()> never_interrupted;
  const std::string prefix = format_text("engine/{}/", engine_id);
  bool has_key = false;
  for (const auto& key : {keys::process(0), keys::process(1), keys::stall_warning()})
    has_key |= store.wait(prefix + key, {TimePoint{}, never_interrupted}).ok();
  for (int rank = 0; rank < 2; ++rank)
    has_key |= store.add(prefix + keys::formations(rank), 0).value() != 0;
  return has_key;
}

// Each rank has two engines: the engine of the job, and the engine of a pair of ranks. Ranks 0 and
// 3 are a pair on two hosts; ranks 1 and 2 are a pair on the second host.
TEST(Formation, EnginesOfSomeRanksUseTheStoresOfTheJob) {
  RemoteJob job({0, 1, 1, 1});
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.emplace_back([&, rank] {
      EngineOptions options = job.options(rank);
      const Descriptor secret = secret_pipe();
      options.secret_descriptor = secret.get();
      options.context = make_process_context();
      const auto job_engine = value_or_abort(Engine::create(options));
      const int lowest_rank_of_pair = rank == 0 || rank == 3 ? 0 : 1;
      options.topology = {.rank = rank == lowest_rank_of_pair ? 0 : 1, .size = 2};
      for (int engine_number = 0; engine_number < 3; ++engine_number) {
        options.rendezvous_id =
            format_text("pair of {} in life {}", lowest_rank_of_pair, engine_number);
        const auto pair_engine = value_or_abort(Engine::create(options));
        EXPECT_EQ(pair_engine->topology().local_size, lowest_rank_of_pair == 0 ? 1 : 2);
        for (Engine* engine : {pair_engine.get(), job_engine.get(), pair_engine.get()}) {
          std::vector<float> values(1000, static_cast<float>(1 + rank));
          EXPECT_EQ(allreduce(*engine, values), Status());
          const float expected_in_pair = lowest_rank_of_pair == 0 ? 1 + 4 : 2 + 3;
          EXPECT_EQ(values.back(), engine == job_engine.get() ? 10.0F : expected_in_pair);
        }
      }
      EXPECT_EQ(barrier(*job_engine), Status());
      const std::string engine_id = std::exchange(options.rendezvous_id, "");
      EXPECT_FALSE(
          has_lasting_key(*open_stores_and_network(options).value().stores.job, engine_id));
    });
}

TEST(Formation, NeedsTheSecretForTheJobStore) {
  RemoteJob job({0});
  EngineOptions options = job.options(0);
  EXPECT_EQ(Engine::create(options).status(),
            Status::fix_call("FARANDOLE_JOB_STORE is set, but there is no secret. If another "
                             "launcher has started the ranks, set FARANDOLE_SECRET to a file of "
                             "`farandole secret`; `farandole run` sets "
                             "FARANDOLE_SECRET_DESCRIPTOR"));
  options.secret_file = "/no-such-folder/secret";
  EXPECT_THAT(Engine::create(options).status().message(),
              HasSubstr("FARANDOLE_SECRET: cannot open the file '/no-such-folder/secret'"));
  const Descriptor short_secret = secret_pipe(kSecretBytes - 1);
  options.secret_descriptor = short_secret.get();
  const Status status = Engine::create(options).status();
  EXPECT_EQ(status.code(), StatusCode::kFixCall);
  EXPECT_THAT(status.message(),
              HasSubstr(format_text("the secret of the job cannot be read from descriptor {} "
                                    "(FARANDOLE_SECRET_DESCRIPTOR): ",
                                    short_secret.get())));
}

TEST(Formation, RejectsWrongNetworkKnobs) {
  RemoteJob job({0});
  EngineOptions options = job.options(0);
  const Descriptor secret = secret_pipe();
  options.secret_descriptor = secret.get();
  options.ports = "x";
  EXPECT_THAT(Engine::create(options).status().message(), HasSubstr("FARANDOLE_PORTS is \"x\""));
  options.ports.clear();
  options.network_interfaces = "no-such-interface";
  EXPECT_EQ(Engine::create(options).status().code(), StatusCode::kFixCall);
  options.network_interfaces = "lo";
  options.rendezvous_descriptor = -1;
  options.topology.size = 2;
  options.job_store = "nowhere";
  EXPECT_THAT(Engine::create(options).status().message(),
              HasSubstr("FARANDOLE_JOB_STORE: \"nowhere\": the port is missing"));
}

// A file with a secret, and a free port.
class JobOfAnotherLauncher : public ::testing::Test {
 public:
  JobOfAnotherLauncher() {
    std::string path = ::testing::TempDir() + "farandole-secret-XXXXXX";
    const Descriptor file(::mkstemp(path.data()));
    secret_file_ = path;
    EXPECT_EQ(JobSecret::generate()->write_to(file.get()), Status());
    ListenOptions listen_options;
    listen_options.addresses = {SocketAddress::parse_ip("127.0.0.1").value()};
    const auto context = context_of('s');
    store_address_ =
        TcpListener::open(*context, listen_options).value()->addresses().front().text();
  }
  ~JobOfAnotherLauncher() override { ::unlink(secret_file_.c_str()); }

  EngineOptions options(int rank, int size) const {
    EngineOptions options = options_of(rank, size);
    options.topology = {.rank = rank, .size = size};
    options.network_interfaces = "lo";
    options.job_store = store_address_;
    options.secret_file = secret_file_;
    options.rendezvous_id = "id";
    options.serves_job_store = rank == 0;
    options.context = make_process_context();
    return options;
  }

 private:
  std::string secret_file_;
  std::string store_address_;
};

// Rank 0 serves the Store, also for the second engine of each process and for a pair of ranks.
TEST_F(JobOfAnotherLauncher, RanksMeetInTheStoreOfRank0) {
  // Rank 0 serves the Store until its options are destroyed, so these must outlive the pair's
  // formation.
  const std::array<EngineOptions, 3> options_of_ranks{options(0, 3), options(1, 3), options(2, 3)};
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      EngineOptions own_options = options_of_ranks[static_cast<std::size_t>(rank)];
      for (int engine_number = 0; engine_number < 3; ++engine_number) {
        own_options.rendezvous_id = format_text("life {}", engine_number);
        const auto engine = value_or_abort(Engine::create(own_options));
        EXPECT_EQ(engine->topology().local_size, 3);
        std::vector<float> values(1000, 1.0F);
        EXPECT_EQ(allreduce(*engine, values), Status());
        EXPECT_EQ(values.back(), 3.0F);
        if (rank == 0) continue;
        EngineOptions pair_options = own_options;
        pair_options.topology = {.rank = rank - 1, .size = 2};
        pair_options.rendezvous_id = format_text("pair in life {}", engine_number);
        const auto pair_engine = value_or_abort(Engine::create(pair_options));
        EXPECT_EQ(allreduce(*pair_engine, values), Status());
        EXPECT_EQ(values.back(), 6.0F);
      }
    });
}

TEST_F(JobOfAnotherLauncher, NamesTheMissingRanks) {
  EngineOptions own_options = options(0, 3);
  own_options.start_timeout = std::chrono::milliseconds(200);
  const Status status = Engine::create(own_options).status();
  EXPECT_EQ(status.code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(status.message(), HasSubstr("ranks 1, 2 did not come to the rendezvous"));
}

// Sets variables of the environment, and removes them at the end of the scope.
class Variables {
 public:
  void set(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    names_.insert(name);
  }
  ~Variables() {
    for (const auto& name : names_) ::unsetenv(name.c_str());
  }

 private:
  std::set<std::string> names_;
};

TEST(OptionsOfTheEnvironment, SayWhereTheRanksOfAnotherLauncherMeet) {
  Variables variables;
  variables.set("OMPI_COMM_WORLD_RANK", "1");
  variables.set("OMPI_COMM_WORLD_SIZE", "4");
  variables.set("OMPI_COMM_WORLD_LOCAL_SIZE", "2");
  variables.set("FARANDOLE_SECRET", "job.secret");
  const auto options_without_store = EngineOptions::from_environment();
  EXPECT_EQ(options_without_store.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(options_without_store.status().message(),
              HasSubstr("rank 1 of 4 does not know where the ranks meet"));
  variables.set("FARANDOLE_JOB_STORE", "hen:4711");
  auto options = EngineOptions::from_environment().value();
  EXPECT_EQ(options.job_store, "hen:4711");
  EXPECT_EQ(options.topology.rank, 1);
  EXPECT_FALSE(options.serves_job_store);
  variables.set("OMPI_COMM_WORLD_RANK", "0");
  EXPECT_TRUE(EngineOptions::from_environment().value().serves_job_store);
  // A job on one host needs no Store at FARANDOLE_JOB_STORE.
  variables.set("OMPI_COMM_WORLD_LOCAL_SIZE", "4");
  variables.set("PMIX_NAMESPACE", "7");
  options = EngineOptions::from_environment().value();
  EXPECT_EQ(options.job_store, "");
  EXPECT_FALSE(options.serves_job_store);
}

}  // namespace
}  // namespace farandole
