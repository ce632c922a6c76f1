// This test suite runs for every implementation of Store. The ranks are threads.
#include "rendezvous/store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/no_descriptors_in_test.h"
#include "network/tcp/job_in_test.h"
#include "rendezvous/keys.h"
#include "rendezvous/limits_in_test.h"
#include "rendezvous/memory_store.h"
#include "rendezvous/remote_store.h"
#include "rendezvous/serving_thread.h"
#include "rendezvous/store_client.h"

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kMembers = 3;

// The Stores of all members of one job.
class Job {
 public:
  virtual ~Job() = default;
  virtual Store& store_of(int rank) = 0;
};

class LocalJob : public Job {
 public:
  virtual LocalStore& local_store_of(int rank) = 0;
  Store& store_of(int rank) final { return local_store_of(rank); }
};

class MemoryJob final : public LocalJob {
 public:
  LocalStore& local_store_of(int) override { return store_; }

 private:
  MemoryStore store_;
};

class ServedJob final : public LocalJob {
 public:
  ServedJob() : serving_(kMembers) {
    for (int i = 0; i < kMembers; ++i) {
      auto client = StoreClient::connect(serving_.client_end(i).get());
      CHECK(client.ok(), "the end that the server made");
      clients_.push_back(std::move(client).value());
    }
  }
  LocalStore& local_store_of(int rank) override {
    return *clients_.at(static_cast<std::size_t>(rank));
  }

 private:
  ServingThread serving_;
  std::vector<std::unique_ptr<StoreClient>> clients_;
};

class RemoteJob final : public Job {
 public:
  RemoteJob() : serving_(0, context_.get()) {
    for (std::uint32_t rank = 0; rank < kMembers; ++rank) {
      auto client = RemoteStore::connect(
          {.places = serving_.place(), .context = context_, .self = {Role::kWorker, rank}},
          long_limit());
      CHECK(client.ok(), "the server listens already");
      clients_.push_back(std::move(client).value());
    }
  }
  Store& store_of(int rank) override { return *clients_.at(static_cast<std::size_t>(rank)); }

 private:
  // The clients share the context.
  std::shared_ptr<const TlsContext> context_ = context_of('s');
  ServingThread serving_;
  std::vector<std::unique_ptr<RemoteStore>> clients_;
};

template <class J>
struct Implementation {
  std::string name;
  std::function<std::unique_ptr<J>()> make;
};

class StoreSuite : public ::testing::TestWithParam<Implementation<Job>> {
 protected:
  Store& store(int rank = 0) { return job_->store_of(rank); }
  std::unique_ptr<Job> job_ = GetParam().make();
};

class LocalStoreSuite : public ::testing::TestWithParam<Implementation<LocalJob>> {
 protected:
  LocalStore& store(int rank = 0) { return job_->local_store_of(rank); }
  std::unique_ptr<LocalJob> job_ = GetParam().make();
};

WaitLimit no_wait() { return {TimePoint{}, kNotInterrupted}; }

Bytes text_bytes(std::string_view words) {
  const auto* begin = reinterpret_cast<const std::byte*>(words.data());
  return {begin, begin + words.size()};
}

std::string as_text(const Bytes& value) {
  return {reinterpret_cast<const char*>(value.data()), value.size()};
}

std::vector<std::string> as_texts(const Result<StoreValues>& values) {
  if (!values.ok()) return {values.status().message()};
  std::vector<std::string> texts;
  for (const auto& value : *values) texts.push_back(value ? as_text(*value) : "nothing");
  return texts;
}

TEST_P(StoreSuite, EveryMemberReadsAWrittenValue) {
  ASSERT_TRUE(store(0).set("color", text_bytes("blue")).ok());
  for (int rank = 0; rank < kMembers; ++rank) {
    auto value = store(rank).wait("color", long_limit());
    ASSERT_TRUE(value.ok()) << value.status().message();
    EXPECT_EQ(as_text(*value), "blue");
  }
}

TEST_P(StoreSuite, AValueCanBeReplaced) {
  for (const char* const color : {"blue", "red"}) {
    ASSERT_TRUE(store(0).replace("color", text_bytes(color), long_limit()).ok());
    EXPECT_EQ(as_text(store(1).wait("color", long_limit()).value()), color);
  }
}

TEST_P(StoreSuite, AWaitEndsWhenTheKeyArrives) {
  std::vector<std::jthread> waiting_threads;
  std::atomic<int> correct_values{0};
  for (int rank = 1; rank < kMembers; ++rank)
    waiting_threads.emplace_back([this, rank, &correct_values] {
      auto value = store(rank).wait("late", long_limit());
      if (value.ok() && as_text(*value) == "here") ++correct_values;
    });
  ASSERT_TRUE(store(0).set("late", text_bytes("here")).ok());
  waiting_threads.clear();
  EXPECT_EQ(correct_values, kMembers - 1);
}

TEST_P(StoreSuite, ThreadsOfOneMemberWaitIndependently) {
  std::atomic<int> correct_values{0};
  std::vector<std::jthread> waiting_threads;
  for (const char* key : {"a", "b", "c"})
    waiting_threads.emplace_back([this, key, &correct_values] {
      auto value = store(1).wait(key, long_limit());
      if (value.ok() && as_text(*value) == key) ++correct_values;
    });
  // Another thread of the same member sets the keys in the opposite order while these threads wait.
  for (const char* key : {"c", "b", "a"}) ASSERT_TRUE(store(1).set(key, text_bytes(key)).ok());
  waiting_threads.clear();
  EXPECT_EQ(correct_values, 3);
}

TEST_P(StoreSuite, AWaitWithoutTimeFindsAnExistingKey) {
  ASSERT_TRUE(store(0).set("here", text_bytes("yes")).ok());
  EXPECT_TRUE(store(1).wait("here", no_wait()).ok());
  const auto missing_value = store(1).wait("nowhere", no_wait());
  EXPECT_EQ(missing_value.status().code(), StatusCode::kRetry);
  EXPECT_THAT(missing_value.status().message(), HasSubstr("timed out"));
  EXPECT_THAT(missing_value.status().message(), HasSubstr("nowhere"));
}

TEST_P(StoreSuite, AWaitForSeveralKeysEndsWithTheLast) {
  std::atomic<int> correct_results{0};
  std::vector<std::jthread> waiting_threads;
  for (int rank = 0; rank < kMembers; ++rank)
    waiting_threads.emplace_back([this, rank, &correct_results] {
      const auto values = store(rank).wait_for_all({"a", "b", "c"}, "", long_limit());
      if (as_texts(values) == std::vector<std::string>{"1", "2", "3"}) ++correct_results;
    });
  ASSERT_TRUE(store(0).set("b", text_bytes("2")).ok());
  ASSERT_TRUE(store(1).set("c", text_bytes("3")).ok());
  ASSERT_TRUE(store(2).set("a", text_bytes("1")).ok());
  waiting_threads.clear();
  EXPECT_EQ(correct_results, kMembers);
}

TEST_P(StoreSuite, AWaitForSeveralKeysCanEndWithoutThem) {
  ASSERT_TRUE(store(0).set("a", text_bytes("1")).ok());
  ASSERT_TRUE(store(0).set("c", text_bytes("3")).ok());
  const auto early_result = store(1).wait_for_all({"a", "b", "c"}, "end", no_wait());
  EXPECT_EQ(early_result.status().code(), StatusCode::kRetry);
  EXPECT_THAT(early_result.status().message(),
              HasSubstr("timed out while waiting for the rendezvous key `a` and 2 more"));
  std::jthread waiting_thread([this] {
    const auto values = store(1).wait_for_all({"a", "b", "c"}, "end", long_limit());
    EXPECT_THAT(as_texts(values), ElementsAre("1", "nothing", "3"));
  });
  ASSERT_TRUE(store(0).set("end", {}).ok());
  waiting_thread.join();
  EXPECT_THAT(as_texts(store(2).wait_for_all({"b", "c"}, "end", no_wait())),
              ElementsAre("nothing", "3"));
}

TEST_P(StoreSuite, ARemovedKeyIsAwaitedAgain) {
  ASSERT_TRUE(store(0).set("a", text_bytes("old")).ok());
  std::atomic<int> checks{0};
  const std::function<bool()> count_checks = [&checks] {
    ++checks;
    checks.notify_all();
    return false;
  };
  std::jthread waiting_thread([this, &count_checks] {
    const auto values =
        store(1).wait_for_all({"a", "b"}, "", {long_limit().deadline, count_checks});
    EXPECT_THAT(as_texts(values), ElementsAre("new", "2"));
  });
  checks.wait(0);  // the wait has begun and has found `a`
  ASSERT_TRUE(store(0).remove("a").ok());
  ASSERT_TRUE(store(0).set("b", text_bytes("2")).ok());
  ASSERT_TRUE(store(0).set("a", text_bytes("new")).ok());
}

// All values together have too many descriptors and too many bytes for one message.
TEST_P(LocalStoreSuite, AWaitForManyKeysGetsAllValuesInTheirOrder) {
  constexpr int kKeys = 200;
  constexpr std::size_t kLongValueBytes = 20'000;
  std::vector<std::string> keys;
  for (int k = 0; k < kKeys; ++k) {
    keys.push_back("key " + std::to_string(k));
    LocalValue value{text_bytes(std::to_string(k)), {}};
    if (k % 10 == 0) value.bytes.resize(kLongValueBytes);
    for (int d = 0; d < k % 6; ++d)
      value.descriptors.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(store(0).share(keys.back(), std::move(value)).ok());
  }
  const auto values = store(1).receive_all(keys, "", long_limit());
  ASSERT_TRUE(values.ok()) << values.status().message();
  ASSERT_EQ(values->size(), keys.size());
  for (int k = 0; k < kKeys; ++k) {
    const auto& value = values->at(static_cast<std::size_t>(k));
    ASSERT_TRUE(value.has_value()) << k;
    EXPECT_EQ(value->descriptors.size(), static_cast<std::size_t>(k % 6)) << k;
    for (const auto& descriptor : value->descriptors)
      EXPECT_EQ(::fcntl(descriptor.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC) << k;
    const std::string start = std::to_string(k);
    EXPECT_EQ(as_text(value->bytes).substr(0, start.size()), start);
    EXPECT_EQ(value->bytes.size(), k % 10 == 0 ? kLongValueBytes : start.size()) << k;
  }
}

TEST_P(StoreSuite, AnInterruptedWaitLeavesTheStoreUsable) {
  std::atomic<bool> stop{true};
  const std::function<bool()> interrupted = [&stop] { return stop.load(); };
  const WaitLimit limit{long_limit().deadline, interrupted};
  const auto interrupted_result = store(1).wait("later", limit);
  EXPECT_EQ(interrupted_result.status().code(), StatusCode::kRetry);
  EXPECT_THAT(interrupted_result.status().message(), HasSubstr("interrupted"));
  ASSERT_TRUE(store(1).set("later", text_bytes("now")).ok());
  EXPECT_EQ(as_text(store(1).wait("later", long_limit()).value()), "now");
}

TEST_P(StoreSuite, AKeyIsWrittenOnce) {
  ASSERT_TRUE(store(0).set("key", text_bytes("1")).ok());
  const Status second_status = store(1).set("key", text_bytes("2"));
  EXPECT_EQ(second_status.code(), StatusCode::kFixCall);
  EXPECT_THAT(second_status.message(), HasSubstr("`key`"));
  EXPECT_EQ(as_text(store(2).wait("key", long_limit()).value()), "1");
}

TEST_P(StoreSuite, ARemovedKeyCanBeWrittenAgain) {
  EXPECT_TRUE(store(0).remove("never set").ok());
  ASSERT_TRUE(store(0).set("key", text_bytes("1")).ok());
  ASSERT_TRUE(store(1).remove("key").ok());
  EXPECT_FALSE(store(0).wait("key", no_wait()).ok());
  ASSERT_TRUE(store(0).set("key", text_bytes("2")).ok());
  EXPECT_EQ(as_text(store(2).wait("key", long_limit()).value()), "2");
}

TEST_P(StoreSuite, ManyKeysAreRemovedAtOnce) {
  std::vector<std::string> keys;
  for (int k = 0; k < 600; ++k) {
    keys.push_back(std::to_string(k));
    ASSERT_TRUE(k % 2 == 0 ? store(0).set(keys.back(), {}).ok()
                           : store(0).add(keys.back(), 1).ok());
  }
  keys.emplace_back("never set");
  EXPECT_EQ(store(1).remove_all(keys), Status());
  for (int k = 0; k < 600; ++k)
    ASSERT_TRUE(store(2).set(keys[static_cast<std::size_t>(k)], {}).ok());
  EXPECT_EQ(store(1).remove_all({}), Status());
  EXPECT_EQ(store(1).remove_all({"0", ""}).code(), StatusCode::kFixCall);
}

TEST_P(StoreSuite, CountersCountAllMembers) {
  std::vector<std::jthread> adding_threads;
  for (int rank = 0; rank < kMembers; ++rank)
    adding_threads.emplace_back([this, rank] {
      for (int i = 0; i < 50; ++i) EXPECT_TRUE(store(rank).add("count", 2).ok());
    });
  adding_threads.clear();
  EXPECT_EQ(store(0).add("count", -100).value(), 2 * 50 * kMembers - 100);
  ASSERT_TRUE(store(0).remove("count").ok());
  EXPECT_EQ(store(0).add("count", 1).value(), 1);
}

TEST_P(StoreSuite, CountersAndValuesDoNotMix) {
  ASSERT_TRUE(store(0).add("count", 1).ok());
  ASSERT_TRUE(store(0).set("value", text_bytes("x")).ok());
  EXPECT_EQ(store(1).set("count", text_bytes("x")).code(), StatusCode::kFixCall);
  EXPECT_EQ(store(1).wait("count", long_limit()).status().code(), StatusCode::kFixCall);
  const auto mixed_result = store(1).wait_for_all({"value", "count"}, "", long_limit());
  EXPECT_EQ(mixed_result.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(mixed_result.status().message(), HasSubstr("`count` is a counter"));
  EXPECT_EQ(store(1).add("value", 1).status().code(), StatusCode::kFixCall);
}

TEST_P(LocalStoreSuite, EveryReaderOwnsItsDescriptors) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(::pipe2(pipe_ends.data(), O_CLOEXEC), 0);
  const Descriptor read_end(pipe_ends[0]);
  LocalValue value{text_bytes("pipe"), {}};
  value.descriptors.emplace_back(pipe_ends[1]);
  ASSERT_TRUE(store(0).share("pipe", std::move(value)).ok());
  for (int rank = 0; rank < kMembers; ++rank) {
    EXPECT_EQ(as_text(store(rank).wait("pipe", long_limit()).value()), "pipe");
    auto received_value = store(rank).receive("pipe", long_limit());
    ASSERT_TRUE(received_value.ok()) << received_value.status().message();
    ASSERT_EQ(received_value->descriptors.size(), 1U);
    EXPECT_EQ(::fcntl(received_value->descriptors[0].get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    EXPECT_EQ(::write(received_value->descriptors[0].get(), "x", 1), 1);
  }
  // Removing the key closes the last write end, so the reader sees the end of the file.
  ASSERT_TRUE(store(0).remove("pipe").ok());
  std::array<char, kMembers + 1> letters{};
  ssize_t bytes_read = 0;
  ssize_t count = 0;
  while ((count = ::read(read_end.get(), letters.data(), letters.size())) > 0) bytes_read += count;
  EXPECT_EQ(bytes_read, kMembers);
}

TEST_P(StoreSuite, TheLimitsHold) {
  Bytes longest_value(kStoreValueBytesMax, std::byte{1});
  const std::string longest_key(kStoreKeyBytesMax, 'k');
  ASSERT_TRUE(store(0).set(longest_key, std::move(longest_value)).ok());
  EXPECT_EQ(store(1).wait(longest_key, long_limit()).value().size(), kStoreValueBytesMax);

  EXPECT_EQ(store(0).set("long", Bytes(kStoreValueBytesMax + 1)).code(), StatusCode::kFixCall);
  EXPECT_EQ(store(0).set(longest_key + "k", text_bytes("x")).code(), StatusCode::kFixCall);
  EXPECT_EQ(store(0).set("", text_bytes("x")).code(), StatusCode::kFixCall);
  EXPECT_TRUE(store(0).set("fine", text_bytes("x")).ok());
}

TEST_P(LocalStoreSuite, TheLimitOfDescriptorsHolds) {
  LocalValue value{text_bytes("x"), {}};
  for (std::size_t i = 0; i <= kStoreDescriptorsMax; ++i)
    value.descriptors.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(store(0).share("many", std::move(value)).code(), StatusCode::kFixCall);
  EXPECT_TRUE(store(0).set("fine", text_bytes("x")).ok());
}

TEST_P(LocalStoreSuite, HasATokenOfItsOwn) {
  const std::string token = as_text(store(0).wait(keys::host_token(), no_wait()).value());
  EXPECT_EQ(as_text(store(1).wait(keys::host_token(), no_wait()).value()), token);
  const auto other_job = GetParam().make();
  EXPECT_NE(as_text(other_job->local_store_of(0).wait(keys::host_token(), no_wait()).value()),
            token);
}

// All values together have too many bytes for one message.
TEST_P(StoreSuite, AWaitForLongValuesGetsAllInTheirOrder) {
  std::vector<std::string> keys;
  for (std::size_t k = 0; k < 200; ++k) {
    keys.push_back("key " + std::to_string(k));
    ASSERT_TRUE(store(0).set(keys.back(), Bytes(k * 100 + 1, static_cast<std::byte>(k))).ok());
  }
  const auto values = store(1).wait_for_all(keys, "", long_limit());
  ASSERT_TRUE(values.ok()) << values.status().message();
  ASSERT_EQ(values->size(), keys.size());
  for (std::size_t k = 0; k < keys.size(); ++k)
    EXPECT_EQ(values->at(k), Bytes(k * 100 + 1, static_cast<std::byte>(k))) << k;
}

TEST(MemoryStore, AProcessWithoutFreeDescriptorsGetsAnError) {
  MemoryStore store;
  LocalValue value;
  value.descriptors.emplace_back(::fcntl(0, F_DUPFD_CLOEXEC, 0));
  ASSERT_TRUE(store.share("key", std::move(value)).ok());
  const NoFreeDescriptors no_free_descriptors;
  const auto received_value = store.receive("key", no_wait());
  EXPECT_EQ(received_value.status().code(), StatusCode::kStop);
  EXPECT_THAT(received_value.status().message(), HasSubstr("cannot duplicate a descriptor"));
}

INSTANTIATE_TEST_SUITE_P(
    All, StoreSuite,
    ::testing::Values(Implementation<Job>{"memory", [] { return std::make_unique<MemoryJob>(); }},
                      Implementation<Job>{"served", [] { return std::make_unique<ServedJob>(); }},
                      Implementation<Job>{"remote", [] { return std::make_unique<RemoteJob>(); }}),
    [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    All, LocalStoreSuite,
    ::testing::Values(
        Implementation<LocalJob>{"memory", [] { return std::make_unique<MemoryJob>(); }},
        Implementation<LocalJob>{"served", [] { return std::make_unique<ServedJob>(); }}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace farandole
