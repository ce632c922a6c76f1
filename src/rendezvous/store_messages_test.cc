#include "rendezvous/store_messages.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <random>
#include <span>

namespace farandole {
namespace {

StoreRequest request() {
  return {StoreRequestKind::kSet, 7, {"key", "two"}, "end", -3, {std::byte{1}, std::byte{2}}};
}

StoreReply reply() {
  return {9, Status::fix_call("no"), 5, {StoreReplyValue{{std::byte{3}}, 2}, std::nullopt}};
}

TEST(StoreMessages, ARequestIsDecodedAsItWasEncoded) {
  const auto decoded = StoreRequest::decode(request().encode());
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->kind, StoreRequestKind::kSet);
  EXPECT_EQ(decoded->number, 7U);
  EXPECT_EQ(decoded->keys, request().keys);
  EXPECT_EQ(decoded->end_key, "end");
  EXPECT_EQ(decoded->delta, -3);
  EXPECT_EQ(decoded->value, request().value);
}

TEST(StoreMessages, AReplyIsDecodedAsItWasEncoded) {
  const auto decoded_reply = StoreReply::decode(reply().encode());
  ASSERT_TRUE(decoded_reply.has_value());
  EXPECT_EQ(decoded_reply->number, 9U);
  EXPECT_EQ(decoded_reply->status, Status::fix_call("no"));
  EXPECT_EQ(decoded_reply->sum, 5);
  EXPECT_EQ(decoded_reply->values, reply().values);
}

TEST(StoreMessages, EveryTruncationIsRejected) {
  const Bytes whole_request = request().encode();
  for (std::size_t i = 0; i < whole_request.size(); ++i)
    EXPECT_FALSE(StoreRequest::decode(std::span(whole_request).first(i))) << i;
  const Bytes whole_reply = reply().encode();
  for (std::size_t i = 0; i < whole_reply.size(); ++i)
    EXPECT_FALSE(StoreReply::decode(std::span(whole_reply).first(i))) << i;
}

TEST(StoreMessages, ForeignBytesAreRejected) {
  Bytes longer_request = request().encode();
  longer_request.push_back(std::byte{0});
  EXPECT_FALSE(StoreRequest::decode(longer_request));
  StoreRequest no_key = request();
  no_key.keys.clear();
  EXPECT_FALSE(StoreRequest::decode(no_key.encode()));
  Bytes unknown_kind = request().encode();
  unknown_kind[0] = std::byte{kStoreRequestKindCount};
  EXPECT_FALSE(StoreRequest::decode(unknown_kind));
  Bytes unknown_code = reply().encode();
  unknown_code[sizeof(std::uint64_t)] = std::byte{200};
  EXPECT_FALSE(StoreReply::decode(unknown_code));
  // `offset` is first the offset of the number of keys, and then the offset of the length of the
  // first key.
  for (const std::size_t offset : {1 + sizeof(std::uint64_t), 5 + sizeof(std::uint64_t)}) {
    Bytes changed_request = request().encode();
    for (std::size_t i = 0; i < 4; ++i) changed_request[offset + i] = std::byte{255};
    EXPECT_FALSE(StoreRequest::decode(changed_request));
  }
}

// If changed bytes are accepted as a message, encoding this message must give the same bytes again.
TEST(StoreMessages, ChangedBytesAreRejectedOrDecodedExactly) {
  std::mt19937 random(7);
  std::size_t rejected_messages = 0;
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = round % 2 == 0 ? request().encode() : reply().encode();
    for (int i = 0; i < 3; ++i) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    const auto as_request = StoreRequest::decode(bytes);
    const auto as_reply = StoreReply::decode(bytes);
    if (as_request) {
      EXPECT_EQ(as_request->encode(), bytes);
    }
    if (!as_request && !as_reply) ++rejected_messages;
  }
  EXPECT_GT(rejected_messages, 1000U);
}

}  // namespace
}  // namespace farandole
