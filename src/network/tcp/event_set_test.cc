#include "network/tcp/event_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "base/no_descriptors_in_test.h"

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(EventSet, NamesTheDescriptorsThatAreReady) {
  std::array<int, 2> sockets{-1, -1};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()), 0);
  const Descriptor first_end(sockets[0]);
  const Descriptor second_end(sockets[1]);
  auto set = EventSet::make();
  ASSERT_TRUE(set.ok()) << set.status().message();
  ASSERT_TRUE(set->add(first_end.get(), 7, false).ok());
  EXPECT_THAT(*set->ready_ids(), IsEmpty());
  ASSERT_TRUE(set->change(first_end.get(), 8, true).ok());
  EXPECT_THAT(*set->ready_ids(), ElementsAre(8));
  ASSERT_TRUE(set->change(first_end.get(), 9, false).ok());
  EXPECT_THAT(*set->ready_ids(), IsEmpty());
  ASSERT_EQ(::write(second_end.get(), "x", 1), 1);
  EXPECT_THAT(*set->ready_ids(), ElementsAre(9));
  set->remove(first_end.get());
  EXPECT_THAT(*set->ready_ids(), IsEmpty());
}

TEST(EventSet, ReportsErrorsOfTheSystem) {
  auto set = EventSet::make();
  EXPECT_THAT(set->add(-1, 1, false).message(), HasSubstr("epoll_ctl: Bad file descriptor"));
  const NoFreeDescriptors no_free_descriptors;
  EXPECT_THAT(EventSet::make().status().message(), HasSubstr("epoll_create1: Too many open"));
}

}  // namespace
}  // namespace farandole
