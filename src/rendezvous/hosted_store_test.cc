#include "rendezvous/hosted_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/format.h"
#include "network/tcp/job_in_test.h"
#include "network/tcp/tcp_listener.h"
#include "rendezvous/keys.h"
#include "rendezvous/limits_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

const std::shared_ptr<const TlsContext>& shared_context() {
  static const std::shared_ptr<const TlsContext> shared = context_of('h');
  return shared;
}

// Returns a place with a port that is free at the moment.
std::string free_place() {
  ListenOptions options;
  options.addresses = {SocketAddress::parse_ip("127.0.0.1").value()};
  return TcpListener::open(*shared_context(), options).value()->addresses().front().text();
}

RemoteStore::Options options_of_rank(const std::string& places, std::uint32_t rank = 0) {
  return {.places = places, .context = shared_context(), .self = {Role::kWorker, rank}};
}

std::shared_ptr<Store> open_store(const std::string& places) {
  auto store = open_hosted_store(options_of_rank(places), {}, long_limit());
  EXPECT_TRUE(store.ok()) << store.status().message();
  return store.ok() ? *store : nullptr;
}

std::unique_ptr<RemoteStore> connect_store(const std::string& places, std::uint32_t rank) {
  auto store = RemoteStore::connect(options_of_rank(places, rank), long_limit());
  EXPECT_TRUE(store.ok()) << store.status().message();
  return store.ok() ? *std::move(store) : nullptr;
}

Status error_at(const std::string& places, const WaitLimit& limit = long_limit()) {
  return open_hosted_store(options_of_rank(places), {}, limit).status();
}

TEST(HostedStore, RanksOfAllHostsUseIt) {
  const std::string place = free_place();
  const auto own_store = open_store(place);
  const auto other_store = connect_store(place, 1);
  ASSERT_EQ(other_store->set("key", Bytes(3)), Status());
  EXPECT_EQ(own_store->wait("key", long_limit())->size(), 3U);
  EXPECT_EQ(connect_store(place, 2)->wait("key", long_limit())->size(), 3U);
}

// Formations that the rank has completed or left go on.
TEST(HostedStore, ARankThatEndsFailsTheFormationsInWhichItTakesPart) {
  const std::string place = free_place();
  const auto own_store = open_store(place);
  auto other_store = connect_store(place, 1);
  for (const std::string engine : {"begun", "completed", "removed"})
    ASSERT_EQ(other_store->set(keys::engine_prefix(engine) + keys::place(1), {}), Status());
  ASSERT_EQ(own_store->set(keys::engine_prefix("completed") + keys::complete(1), Bytes(8)),
            Status());
  ASSERT_EQ(own_store->remove(keys::engine_prefix("removed") + keys::place(1)), Status());
  other_store.reset();
  const auto failure =
      own_store->wait(keys::engine_prefix("begun") + keys::complete(1), long_limit()).value();
  EXPECT_THAT(ByteReader(failure).get_text(),
              AllOf(HasSubstr("worker 1 (127.0.0.1:"),
                    HasSubstr("has ended before all ranks of the job had met")));
  EXPECT_EQ(
      own_store->wait(keys::engine_prefix("completed") + keys::complete(1), long_limit())->size(),
      8U);
  EXPECT_EQ(own_store->set(keys::engine_prefix("removed") + keys::complete(1), {}), Status());
}

TEST(HostedStore, ForgetsRemovedKeysOfARank) {
  const std::string place = free_place();
  const auto own_store = open_store(place);
  auto other_store = connect_store(place, 1);
  const auto key = [](int lifetime) {
    return keys::engine_prefix(std::to_string(lifetime)) + keys::place(1);
  };
  for (int lifetime = 0; lifetime < 200; ++lifetime) {
    ASSERT_EQ(other_store->set(key(lifetime), {}), Status());
    if (lifetime != 7) {
      ASSERT_EQ(other_store->remove(key(lifetime)), Status());
    }
  }
  other_store.reset();
  EXPECT_TRUE(own_store->wait(keys::engine_prefix("7") + keys::complete(1), long_limit()).ok());
  EXPECT_EQ(own_store->set(keys::engine_prefix("8") + keys::complete(1), {}), Status());
}

TEST(HostedStore, WaitsUntilRunningFormationsAreOver) {
  const std::string place = free_place();
  auto own_store = open_store(place);
  const auto other_store = connect_store(place, 1);
  const std::string key = keys::engine_prefix("id") + keys::complete(1);
  ASSERT_EQ(own_store->set(key, {}), Status());
  std::jthread leaving_thread([&own_store] { own_store.reset(); });
  EXPECT_TRUE(other_store->wait(key, long_limit()).ok());
  EXPECT_EQ(other_store->remove(key), Status());
  leaving_thread.join();
  EXPECT_EQ(other_store->set("key", {}).code(), StatusCode::kStop);
}

TEST(HostedStore, CanWaitUntilTheOtherRanksHaveLeft) {
  const std::string place = free_place();
  const auto own_store = open_store(place);
  EXPECT_EQ(wait_for_other_ranks(*own_store, kNotInterrupted), Status());
  auto other_store = connect_store(place, 1);
  ASSERT_EQ(other_store->set("key", {}), Status());
  int interrupt_checks = 0;
  const std::function<bool()> interrupted = [&] { return ++interrupt_checks > 2; };
  EXPECT_EQ(wait_for_other_ranks(*own_store, interrupted).code(), StatusCode::kRetry);
  std::jthread leaving_thread([&other_store] { other_store.reset(); });
  EXPECT_EQ(wait_for_other_ranks(*own_store, kNotInterrupted), Status());
}

// The child must not close the parent's connections, and must not wait for the parent's thread.
TEST(HostedStore, AForkedChildDoesNotDisturbIt) {
  const std::string place = free_place();
  auto own_store = open_store(place);
  const auto other_store = connect_store(place, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    own_store.reset();
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(other_store->set("key", {}), Status());
  EXPECT_TRUE(own_store->wait("key", long_limit()).ok());
}

TEST(HostedStore, ListensOnItsOwnHostOnly) {
  EXPECT_THAT(error_at("nowhere").message(), HasSubstr("FARANDOLE_JOB_STORE: \"nowhere\""));
  EXPECT_THAT(error_at("127.0.0.1:4711,127.0.0.1:4712").message(),
              HasSubstr("rank 0 listens at one port only"));
  const Status foreign_address = error_at("192.0.2.1:4711");
  EXPECT_EQ(foreign_address.code(), StatusCode::kFixCall);
  EXPECT_THAT(foreign_address.message(),
              HasSubstr("rank 0 cannot listen at 192.0.2.1:4711: 192.0.2.1 is not an address of "
                        "this host"));
  const std::string place = free_place();
  const auto first_store = open_store(place);
  EXPECT_THAT(error_at(place, {std::chrono::steady_clock::now(), kNotInterrupted}).message(),
              AllOf(HasSubstr(format_text("rank 0 cannot serve the rendezvous of the job at {} "
                                          "(FARANDOLE_JOB_STORE): ",
                                          place)),
                    HasSubstr("set FARANDOLE_JOB_STORE to another one")));
}

TEST(HostedStore, WaitsForANameUntilTheLimit) {
  RemoteStore::Options options = options_of_rank("hen:4711");
  options.look_up = [](const std::string& name,
                       std::uint16_t /*port*/) -> Result<std::vector<SocketAddress>> {
    return Status::retry(name + " is unknown");
  };
  const auto now = std::chrono::steady_clock::now();
  EXPECT_EQ(open_hosted_store(options, {}, {now, kNotInterrupted}).status(),
            Status::stop("rank 0 cannot listen at hen:4711 (FARANDOLE_JOB_STORE): hen is unknown"));
  const std::function<bool()> interrupted = [] { return true; };
  EXPECT_EQ(
      open_hosted_store(options, {}, {now + std::chrono::minutes(1), interrupted}).status().code(),
      StatusCode::kRetry);
  int look_ups = 0;
  options.look_up = [&](const std::string& name,
                        std::uint16_t /*port*/) -> Result<std::vector<SocketAddress>> {
    if (++look_ups == 1) return Status::retry(name + " is unknown");
    return std::vector{SocketAddress::parse("127.0.0.1:0").value()};
  };
  (void)open_hosted_store(options, {.use = {"lo"}}, long_limit());
  EXPECT_EQ(look_ups, 2);
}

// Simulates a line "127.0.1.1 hen" in /etc/hosts. Other hosts cannot reach this address.
TEST(HostedStore, ForALoopbackNameItListensAtTheChosenInterfaces) {
  const std::string place = free_place();
  RemoteStore::Options options = options_of_rank(place);
  options.places = "hen" + place.substr(place.rfind(':'));
  options.look_up = [](const std::string& /*name*/,
                       std::uint16_t port) -> Result<std::vector<SocketAddress>> {
    return std::vector{SocketAddress::parse_ip("127.0.1.1")->with_port(port)};
  };
  const auto own_store = open_hosted_store(options, {.use = {"127.0.0.1"}}, long_limit());
  ASSERT_TRUE(own_store.ok()) << own_store.status().message();
  EXPECT_EQ(connect_store(place, 1)->set("key", {}), Status());
}

}  // namespace
}  // namespace farandole
