#include "workers/framework_ports.h"

#include <gtest/gtest.h>

#include <set>

#include "base/no_descriptors_in_test.h"

namespace farandole {
namespace {

TEST(FrameworkPorts, AreEmptyWithoutAFlag) {
  const auto ports = FrameworkPorts::reserve({}, 3, true);
  ASSERT_TRUE(ports.ok());
  EXPECT_TRUE(ports->tensorflow_ports().empty());
  EXPECT_EQ(ports->jax_port(), 0U);
}

TEST(FrameworkPorts, AreDifferentForEachWorker) {
  const auto ports = FrameworkPorts::reserve({.tf_config = true, .jax = true}, 20, true);
  ASSERT_TRUE(ports.ok());
  const auto numbers = ports->tensorflow_ports();
  std::set<std::uint32_t> different_numbers(numbers.begin(), numbers.end());
  different_numbers.insert(ports->jax_port());
  EXPECT_EQ(different_numbers.size(), 21U);
  EXPECT_FALSE(different_numbers.contains(0));
}

TEST(FrameworkPorts, TheCoordinatorOfJaxIsOnNode0) {
  const auto ports = FrameworkPorts::reserve({.jax = true}, 2, false);
  ASSERT_TRUE(ports.ok());
  EXPECT_EQ(ports->jax_port(), 0U);
}

TEST(FrameworkPorts, ErrorsNameTheFlagThatNeedsPorts) {
  const NoFreeDescriptors no_free_descriptors;
  EXPECT_EQ(FrameworkPorts::reserve({.tf_config = true}, 1, true).status(),
            Status::stop("--tf-config: no TCP port could be reserved (Too many open files)"));
  EXPECT_EQ(FrameworkPorts::reserve({.jax = true}, 1, true).status(),
            Status::stop("--jax: no TCP port could be reserved (Too many open files)"));
}

}  // namespace
}  // namespace farandole
