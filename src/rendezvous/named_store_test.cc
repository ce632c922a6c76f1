#include "rendezvous/named_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/no_descriptors_in_test.h"
#include "rendezvous/keys.h"
#include "rendezvous/limits_in_test.h"
#include "transport/unix_listener.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

std::string unused_name() {
  static int count = 0;
  return "farandole.meeting." + std::to_string(::getpid()) + "." + std::to_string(++count);
}

std::shared_ptr<LocalStore> open_store(const std::string& name, int members) {
  auto store = open_named_store(name, members, long_limit());
  EXPECT_TRUE(store.ok()) << store.status().message();
  return store.ok() ? *store : nullptr;
}

// Waits until the formation has failed, and returns the reason.
std::string failure_in(Store& store) {
  const auto result = store.wait(keys::complete(1), long_limit());
  if (!result.ok()) return result.status().message();
  return ByteReader(*result).get_text();
}

TEST(NamedStore, TheFirstRankServesTheStore) {
  constexpr int kMembers = 4;
  constexpr int kTimes = 50;
  for (int time = 0; time < kTimes; ++time) {
    const std::string name = unused_name();
    std::atomic<int> sum = 0;
    std::vector<std::jthread> members;
    for (int rank = 0; rank < kMembers; ++rank)
      members.emplace_back([&, rank] {
        const auto store = open_store(name, kMembers);
        ASSERT_TRUE(store);
        ASSERT_TRUE(store->set("from/" + std::to_string(rank), Bytes(1, std::byte{1})).ok());
        for (int sender = 0; sender < kMembers; ++sender)
          sum +=
              static_cast<int>(store->wait("from/" + std::to_string(sender), long_limit())->size());
        // No rank may destroy its Store before all ranks have read all keys. A real formation
        // ensures this with its own keys.
        const auto ranks_done = store->add(keys::departed(1), 1);
        ASSERT_TRUE(ranks_done.ok());
        if (*ranks_done == kMembers) {
          EXPECT_TRUE(store->remove(keys::departed(1)).ok());
        }
      });
    members.clear();
    EXPECT_EQ(sum, kMembers * kMembers);
    EXPECT_TRUE(UnixListener::open(name).ok()) << "the name is free when all ranks have connected";
  }
}

TEST(NamedStore, TheOwnerWaitsUntilTheFormationIsOver) {
  const std::string name = unused_name();
  auto owner = open_store(name, 2);
  const auto other_store = open_store(name, 2);
  ASSERT_TRUE(owner->set(keys::complete(1), {}).ok());
  std::jthread leaving_thread([&owner] { owner.reset(); });
  EXPECT_TRUE(other_store->wait(keys::complete(1), long_limit()).ok());
  EXPECT_TRUE(other_store->remove(keys::complete(1)).ok());
  leaving_thread.join();
  const Status late_status = other_store->set("key", {});
  EXPECT_EQ(late_status.code(), StatusCode::kStop);
  EXPECT_THAT(late_status.message(),
              HasSubstr("the rank that keeps the rendezvous of this job has ended"));
}

TEST(NamedStore, ARankThatEndsEarlyFailsTheFormationAtOnce) {
  const std::string name = unused_name();
  const auto owner = open_store(name, 3);
  ASSERT_TRUE(owner->set(keys::member(1, 0), {}).ok());
  open_store(name, 3).reset();
  EXPECT_THAT(failure_in(*owner), HasSubstr("process " + std::to_string(::getpid()) +
                                            " has ended before all ranks of the job had met"));
}

TEST(NamedStore, AnOwnerThatCannotAcceptARankReportsIt) {
  const std::string name = unused_name();
  const auto owner = open_store(name, 3);
  const auto accepted_rank = open_store(name, 3);
  // An answer shows that the owner has accepted this rank.
  ASSERT_TRUE(accepted_rank->set(keys::member(1, 0), {}).ok());
  Descriptor last_free(::fcntl(0, F_DUPFD_CLOEXEC, 0));
  const NoFreeDescriptors no_free_descriptors;
  last_free.reset();  // rejected_rank takes the last descriptor, so accept() fails
  const auto rejected_rank = UnixListener::connect(name);
  ASSERT_TRUE(rejected_rank.ok()) << rejected_rank.status().message();
  const std::string failure = failure_in(*accepted_rank);
  EXPECT_THAT(failure, HasSubstr("cannot take in another rank: accept4 on an"));
  EXPECT_THAT(failure, HasSubstr("ulimit -n"));
}

TEST(NamedStore, ErrorsNameTheOwner) {
  const auto owner = open_store(unused_name(), 2);
  LocalValue value;
  value.descriptors.emplace_back(::fcntl(0, F_DUPFD_CLOEXEC, 0));
  const NoFreeDescriptors no_free_descriptors;
  EXPECT_THAT(owner->share("key", std::move(value)).message(),
              HasSubstr("the rank that keeps the rendezvous lost descriptors"));
}

TEST(NamedStore, AnInterruptionEndsTheWaitForAFullListener) {
  const std::string name = unused_name();
  const auto listener = UnixListener::open(name);
  ASSERT_TRUE(listener.ok());
  std::vector<UnixSocket> waiting_sockets;
  for (auto connection = UnixListener::connect(name); connection.ok();
       connection = UnixListener::connect(name))
    waiting_sockets.push_back(*std::move(connection));
  int interrupt_checks = 0;
  const auto late_store = open_named_store(
      name, 2, {long_limit().deadline, [&interrupt_checks] { return ++interrupt_checks == 3; }});
  EXPECT_EQ(late_store.status().code(), StatusCode::kRetry);
  EXPECT_THAT(late_store.status().message(), HasSubstr("interrupted while waiting"));
}

TEST(NamedStore, AForkedChildReleasesTheName) {
  const std::string name = unused_name();
  auto owner = open_store(name, 2);
  int status = 0;
  const pid_t child = ::fork();
  if (child == 0) {
    owner.reset();  // must not wait for the owner's thread, which does not exist in this child
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(open_store(name, 2)->set("key", {}).ok()) << "the parent goes on";
}

TEST(NamedStore, ErrorsAreReturned) {
  EXPECT_EQ(open_named_store("", 2, long_limit()).status().code(), StatusCode::kFixCall);
  const NoFreeDescriptors no_free_descriptors;
  EXPECT_EQ(open_named_store(unused_name(), 2, long_limit()).status().code(), StatusCode::kStop);
}

}  // namespace
}  // namespace farandole
