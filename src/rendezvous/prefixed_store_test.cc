#include "rendezvous/prefixed_store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rendezvous/keys.h"
#include "rendezvous/limits_in_test.h"
#include "rendezvous/memory_store.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

WaitLimit expired_limit() { return {TimePoint{}, kNotInterrupted}; }

Bytes bytes_of_number(int value) { return {static_cast<std::byte>(value)}; }

// Two parts of one Store, and the Store itself.
template <class Part>
class PrefixedStoreSuite : public ::testing::Test {
 protected:
  std::shared_ptr<MemoryStore> whole_store_ =
      std::make_shared<MemoryStore>();  // shared with the parts
  Part first_part_{whole_store_, "one/"};
  Part second_part_{whole_store_, "other/"};
};

using Parts = ::testing::Types<PrefixedStore, PrefixedLocalStore>;
TYPED_TEST_SUITE(PrefixedStoreSuite, Parts);

TYPED_TEST(PrefixedStoreSuite, PartsHaveTheSameKeysWithDifferentValues) {
  ASSERT_EQ(this->first_part_.set("key", bytes_of_number(0)), Status());
  ASSERT_EQ(this->first_part_.replace("key", bytes_of_number(1), long_limit()), Status());
  EXPECT_EQ(this->second_part_.wait("key", expired_limit()).status().code(), StatusCode::kRetry);
  ASSERT_EQ(this->second_part_.set("key", bytes_of_number(2)), Status());
  ASSERT_EQ(this->whole_store_->set("key", bytes_of_number(3)), Status());
  EXPECT_EQ(this->first_part_.wait("key", expired_limit()).value(), bytes_of_number(1));
  EXPECT_EQ(this->second_part_.wait("key", expired_limit()).value(), bytes_of_number(2));
  EXPECT_EQ(this->whole_store_->wait("one/key", expired_limit()).value(), bytes_of_number(1));
  EXPECT_EQ(this->first_part_.add("count", 5).value(), 5);
  EXPECT_EQ(this->second_part_.add("count", 1).value(), 1);
}

TYPED_TEST(PrefixedStoreSuite, OnlyKeysOfThisPartAreRemoved) {
  for (Store* store :
       std::vector<Store*>{&this->first_part_, &this->second_part_, this->whole_store_.get()})
    ASSERT_EQ(store->set("key", {}), Status());
  ASSERT_EQ(this->first_part_.remove_all({"key", "never set"}), Status());
  EXPECT_FALSE(this->first_part_.wait("key", expired_limit()).ok());
  EXPECT_TRUE(this->second_part_.wait("key", expired_limit()).ok());
  EXPECT_TRUE(this->whole_store_->wait("key", expired_limit()).ok());
}

TYPED_TEST(PrefixedStoreSuite, OnlyAKeyOfThisPartEndsAWait) {
  ASSERT_EQ(this->whole_store_->set("end", {}), Status());
  ASSERT_EQ(this->second_part_.set("end", {}), Status());
  EXPECT_FALSE(this->first_part_.wait_for_all({"missing"}, "end", expired_limit()).ok());
  std::jthread waiting_thread([this] {
    const auto values = this->first_part_.wait_for_all({"a", "missing"}, "end", long_limit());
    ASSERT_EQ(values.status(), Status());
    EXPECT_EQ(values->at(0), bytes_of_number(1));
    EXPECT_FALSE(values->at(1).has_value());
  });
  ASSERT_EQ(this->first_part_.set("a", bytes_of_number(1)), Status());
  ASSERT_EQ(this->first_part_.set("end", {}), Status());
}

TYPED_TEST(PrefixedStoreSuite, AWaitThatNoKeyEndsIgnoresAKeyWithTheNameOfThePrefix) {
  ASSERT_EQ(this->whole_store_->set("one/", {}), Status());
  EXPECT_FALSE(this->first_part_.wait_for_all({"missing"}, "", expired_limit()).ok());
  EXPECT_EQ(this->first_part_.set("", {}).code(), StatusCode::kFixCall);
}

TYPED_TEST(PrefixedStoreSuite, AKeyIsTooLongWithThePrefix) {
  EXPECT_EQ(this->first_part_.set(std::string(kStoreKeyBytesMax - 4, 'k'), {}), Status());
  const Status status = this->first_part_.set(std::string(kStoreKeyBytesMax - 3, 'k'), {});
  EXPECT_EQ(status.code(), StatusCode::kFixCall);
  EXPECT_THAT(status.message(), HasSubstr("`one/k"));
}

TYPED_TEST(PrefixedStoreSuite, HasTheClockAndTheTokenOfTheWholeStore) {
  const TimePoint time_before = this->whole_store_->clock().value();
  EXPECT_GE(this->first_part_.clock().value(), time_before);
  const Bytes token = this->whole_store_->wait(keys::host_token(), expired_limit()).value();
  EXPECT_EQ(this->first_part_.wait(keys::host_token(), expired_limit()).value(), token);
}

TEST(PrefixedLocalStore, PassesDescriptors) {
  const auto whole_store = std::make_shared<MemoryStore>();
  PrefixedLocalStore first_part(whole_store, "one/");
  LocalValue value{bytes_of_number(1), {}};
  value.descriptors.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(first_part.share("null", std::move(value)), Status());
  PrefixedLocalStore same_part(whole_store, "one/");
  const auto received_value = same_part.receive("null", expired_limit());
  ASSERT_EQ(received_value.status(), Status());
  EXPECT_EQ(received_value->bytes, bytes_of_number(1));
  EXPECT_EQ(received_value->descriptors.size(), 1U);
}

}  // namespace
}  // namespace farandole
