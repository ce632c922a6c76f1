#include "base/own_thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <array>
#include <initializer_list>
#include <string>
#include <thread>

namespace farandole {
namespace {

TEST(OwnThread, HasANameAndTakesOnlyFaults) {
  std::array<char, 16> name{};
  sigset_t blocked;
  std::thread([&] {
    begin_own_thread("farandole-test");
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  }).join();
  EXPECT_EQ(std::string(name.data()), "farandole-test");
  for (const int taken : {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1})
    EXPECT_EQ(sigismember(&blocked, taken), 1) << taken;
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT})
    EXPECT_EQ(sigismember(&blocked, fault), 0) << fault;
}

}  // namespace
}  // namespace farandole
