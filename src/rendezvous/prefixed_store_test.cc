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

Bytes number(int value) { return {static_cast<std::byte>(value)}; }

// Two parts of one Store, and the Store itself.
template <class Part>
class PrefixedStoreSuite : public ::testing::Test {
 protected:
  std::shared_ptr<MemoryStore> whole_ = std::make_shared<MemoryStore>();  // shared with the parts
  Part first_part_{whole_, "one/"};
  Part second_part_{whole_, "other/"};
};

using Parts = ::testing::Types<PrefixedStore, PrefixedLocalStore>;
TYPED_TEST_SUITE(PrefixedStoreSuite, Parts);

TYPED_TEST(PrefixedStoreSuite, PartsHaveTheSameKeysWithDifferentValues) {
  ASSERT_EQ(this->first_part_.set("key", number(0)), Status());
  ASSERT_EQ(this->first_part_.replace("key", number(1), long_limit()), Status());
  EXPECT_EQ(this->second_part_.wait("key", expired_limit()).status().code(), StatusCode::kRetry);
  ASSERT_EQ(this->second_part_.set("key", number(2)), Status());
  ASSERT_EQ(this->whole_->set("key", number(3)), Status());
  EXPECT_EQ(this->first_part_.wait("key", expired_limit()).value(), number(1));
  EXPECT_EQ(this->second_part_.wait("key", expired_limit()).value(), number(2));
  EXPECT_EQ(this->whole_->wait("one/key", expired_limit()).value(), number(1));
  EXPECT_EQ(this->first_part_.add("count", 5).value(), 5);
  EXPECT_EQ(this->second_part_.add("count", 1).value(), 1);
}

TYPED_TEST(PrefixedStoreSuite, OnlyKeysOfThisPartAreRemoved) {
  for (Store* store :
       std::vector<Store*>{&this->first_part_, &this->second_part_, this->whole_.get()})
    ASSERT_EQ(store->set("key", {}), Status());
  ASSERT_EQ(this->first_part_.remove_all({"key", "never set"}), Status());
  EXPECT_FALSE(this->first_part_.wait("key", expired_limit()).ok());
  EXPECT_TRUE(this->second_part_.wait("key", expired_limit()).ok());
  EXPECT_TRUE(this->whole_->wait("key", expired_limit()).ok());
}

TYPED_TEST(PrefixedStoreSuite, OnlyAKeyOfThisPartEndsAWait) {
  ASSERT_EQ(this->whole_->set("end", {}), Status());
  ASSERT_EQ(this->second_part_.set("end", {}), Status());
  EXPECT_FALSE(this->first_part_.wait_for_all({"missing"}, "end", expired_limit()).ok());
  std::jthread waiting([this] {
    const auto values = this->first_part_.wait_for_all({"a", "missing"}, "end", long_limit());
    ASSERT_EQ(values.status(), Status());
    EXPECT_EQ(values->at(0), number(1));
    EXPECT_FALSE(values->at(1).has_value());
  });
  ASSERT_EQ(this->first_part_.set("a", number(1)), Status());
  ASSERT_EQ(this->first_part_.set("end", {}), Status());
}

TYPED_TEST(PrefixedStoreSuite, AWaitThatNoKeyEndsIgnoresAKeyWithTheNameOfThePrefix) {
  ASSERT_EQ(this->whole_->set("one/", {}), Status());
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
  const TimePoint before = this->whole_->clock().value();
  EXPECT_GE(this->first_part_.clock().value(), before);
  const Bytes token = this->whole_->wait(keys::host_token(), expired_limit()).value();
  EXPECT_EQ(this->first_part_.wait(keys::host_token(), expired_limit()).value(), token);
}

TEST(PrefixedLocalStore, PassesDescriptors) {
  const auto whole = std::make_shared<MemoryStore>();
  PrefixedLocalStore first_part(whole, "one/");
  LocalValue value{number(1), {}};
  value.descriptors.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(first_part.share("null", std::move(value)), Status());
  PrefixedLocalStore same_part(whole, "one/");
  const auto found = same_part.receive("null", expired_limit());
  ASSERT_EQ(found.status(), Status());
  EXPECT_EQ(found->bytes, number(1));
  EXPECT_EQ(found->descriptors.size(), 1U);
}

}  // namespace
}  // namespace farandole
