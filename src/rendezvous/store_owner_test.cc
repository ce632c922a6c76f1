// Tests the case that memory runs out in the thread that serves a Store. The test is a separate
// program, because it replaces operator new.
#include "rendezvous/store_owner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <thread>

#include "network/tcp/job_in_test.h"
#include "rendezvous/hosted_store.h"
#include "rendezvous/limits_in_test.h"
#include "rendezvous/named_store.h"
#include "rendezvous/remote_store.h"

namespace farandole {
namespace {

std::atomic<bool> owner_lacks_memory = false;

bool lacks_memory() {
  if (!owner_lacks_memory) return false;
  std::array<char, 16> name{};
  ::pthread_getname_np(::pthread_self(), name.data(), name.size());
  return std::string_view(name.data()) == "farandole-store";
}

}  // namespace
}  // namespace farandole

// These definitions replace the definitions of the C++ library.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (farandole::lacks_memory()) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace farandole {
namespace {

using ::testing::HasSubstr;

struct OwnerWithoutMemory {
  OwnerWithoutMemory() { owner_lacks_memory = true; }
  ~OwnerWithoutMemory() { owner_lacks_memory = false; }
  OwnerWithoutMemory(const OwnerWithoutMemory&) = delete;
  OwnerWithoutMemory& operator=(const OwnerWithoutMemory&) = delete;
};

void expect_closed(const Status& status) {
  EXPECT_EQ(status.code(), StatusCode::kStop);
  EXPECT_THAT(status.message(), HasSubstr("has ended or has closed the connection"));
}

TEST(StoreOwner, ClosesTheConnectionsBetweenHostsWhenMemoryRunsOut) {
  const std::shared_ptr<const TlsContext> context = context_of('o');
  ListenOptions listen_options;
  listen_options.addresses = {address_of("127.0.0.1:0")};
  const SocketAddress place = (*TcpListener::open(*context, listen_options))->addresses().front();
  const RemoteStore::Options options{
      .places = place.text(), .context = context, .self = {Role::kWorker, 1}};
  const auto own_store = *open_hosted_store(options, {}, long_limit());
  const auto other_store = *RemoteStore::connect(options, long_limit());
  ASSERT_EQ(other_store->set("key", {}), Status());
  const TimePoint deadline = test_deadline();
  const std::function<bool()> deadline_passed = [deadline] {
    return std::chrono::steady_clock::now() > deadline;
  };
  std::jthread waiting_thread(
      [&] { expect_closed(wait_for_other_ranks(*own_store, deadline_passed)); });
  const OwnerWithoutMemory without_memory;
  expect_closed(other_store->set("other key", {}));
  waiting_thread.join();
  listen_options.port_first = listen_options.port_last = place.port;
  EXPECT_TRUE(TcpListener::open(*context, listen_options).ok()) << "the port is free";
}

TEST(StoreOwner, ClosesTheConnectionsOfItsHostWhenMemoryRunsOut) {
  const std::string name = "farandole.owner." + std::to_string(::getpid());
  const auto own_store = *open_named_store(name, 3, long_limit());
  const auto other_store = *open_named_store(name, 3, long_limit());
  ASSERT_EQ(other_store->set("key", {}), Status());
  const OwnerWithoutMemory without_memory;
  expect_closed(other_store->set("other key", {}));
  expect_closed(own_store->set("other key", {}));
  EXPECT_TRUE(UnixListener::open(name).ok()) << "the name is free";
}

}  // namespace
}  // namespace farandole
