#include "coordination/messages.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace farandole {
namespace {

using testing::HasSubstr;

Signature sample() {
  Signature signature;
  signature.name = "grad/ä";
  signature.operation = Operation::kAllreduce;
  signature.dtype = DType::kBFloat16;
  signature.reduce_op = ReduceOp::kMax;
  signature.root_rank = 3;
  signature.prescale = -0.0;
  signature.postscale = 1.0 / 3;
  signature.dimensions = {std::numeric_limits<std::int64_t>::max(), 0};
  return signature;
}

std::vector<Announcement> all_announcements() {
  return {AnnounceInFull{sample()}, AnnounceById{0xFFFFFFFF}, AnnounceAgain{sample()},
          AnnounceJoin{}};
}

std::vector<StreamItem> all_stream_items() {
  return {Define{4, sample()}, Forget{3}, Issue{1, 9, 4}, Refuse{"x", "because"}, ReleaseAll{7}};
}

template <class Item>
Bytes packed(const std::vector<Item>& items) {
  MessagePacker packer;
  for (const auto& item : items) packer.add(item);
  auto message = packer.take();
  EXPECT_TRUE(message.has_value());
  EXPECT_FALSE(packer.take().has_value());
  return message.value_or(Bytes());
}

Bytes bytes_of(std::initializer_list<int> values) {
  Bytes bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(Messages, ComeBackAsTheyWere) {
  EXPECT_EQ(decode_announcements(packed(all_announcements())).value(), all_announcements());
  EXPECT_EQ(decode_stream(packed(all_stream_items())).value(), all_stream_items());
}

TEST(Messages, TheLargestItemsFit) {
  auto largest = sample();
  largest.name = std::string(kNameBytesMax, 'n');
  largest.dimensions = std::vector<std::int64_t>(kDimensionsMax, 1);
  const std::vector<StreamItem> items = {
      Define{1, largest},
      Refuse{std::string(kNameBytesMax, 'n'), std::string(kRefusalTextBytesMax, 't')}};
  for (const auto& item : items) {
    const auto message = packed(std::vector<StreamItem>{item});
    EXPECT_LE(message.size(), kMessageBytesMax);
    EXPECT_EQ(decode_stream(message).value(), std::vector<StreamItem>{item});
  }
}

TEST(Messages, ManyItemsBecomeSeveralMessagesInOrder) {
  MessagePacker packer;
  for (std::uint32_t sequence = 1; sequence <= 10000; ++sequence)
    packer.add(StreamItem(Issue{1, sequence, 5}));
  std::uint32_t expected = 0;
  int messages = 0;
  for (auto message = packer.take(); message; message = packer.take(), ++messages) {
    EXPECT_LE(message->size(), kMessageBytesMax);
    const auto items = decode_stream(*message);
    ASSERT_TRUE(items.ok());
    for (const auto& item : *items) EXPECT_EQ(std::get<Issue>(item).sequence, ++expected);
  }
  EXPECT_EQ(expected, 10000U);
  EXPECT_EQ(messages, 8);  // 130,000 bytes in 16,384 each
}

TEST(Messages, WhatIsWrongIsSaid) {
  const auto problem = [](const Bytes& bytes) {
    const auto items = decode_stream(bytes);
    EXPECT_EQ(items.status().code(), StatusCode::kStop);
    return items.status().message();
  };
  EXPECT_THAT(problem({}), HasSubstr("empty"));
  EXPECT_THAT(problem(bytes_of({2})), HasSubstr("holds no item"));
  EXPECT_THAT(problem(packed(all_announcements())), HasSubstr("kind is 1"));
  EXPECT_THAT(problem(bytes_of({2, 99, 0, 0, 0, 0})), HasSubstr("unknown tag 99"));
  EXPECT_THAT(problem(bytes_of({2, 6, 1, 0, 0})), HasSubstr("item 1 (tag 6) is cut off"));
  EXPECT_THAT(problem(bytes_of({2, 6, 0, 0, 0, 0})), HasSubstr("id 0"));
  EXPECT_THAT(problem(Bytes(kMessageBytesMax + 1, std::byte{2})), HasSubstr("16385 bytes"));
  // A name that claims to be longer than the message.
  EXPECT_THAT(problem(bytes_of({2, 8, 0xFF, 0xFF, 0xFF, 0xFF, 'x'})), HasSubstr("cut off"));
}

TEST(Messages, ASignatureOutOfBoundsIsNotAccepted) {
  auto signature = sample();
  signature.dtype = static_cast<DType>(77);
  const auto bytes = packed(std::vector<Announcement>{AnnounceInFull{signature}});
  EXPECT_THAT(decode_announcements(bytes).status().message(), HasSubstr("no element type (77)"));
}

TEST(Messages, EveryPrefixOfAMessageIsEitherWholeItemsOrAnError) {
  const auto bytes = packed(all_stream_items());
  int whole = 0;
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto items = decode_stream(std::span(bytes).first(size));
    if (items.ok()) {
      ++whole;
      const auto all = all_stream_items();
      EXPECT_TRUE(std::equal(items->begin(), items->end(), all.begin()));
    }
  }
  EXPECT_EQ(whole, 4);
}

// No bytes whatever make the decoders misbehave (the sanitizers watch), and what they accept says
// the same again when it is packed.
TEST(Messages, DamagedBytesAreHarmless) {
  std::mt19937_64 random(1);
  const auto announcements = packed(all_announcements());
  const auto stream = packed(all_stream_items());
  for (int round = 0; round < 20000; ++round) {
    auto bytes = round % 2 == 0 ? announcements : stream;
    for (auto damage = random() % 4; damage > 0; --damage)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    bytes.resize(bytes.size() - random() % 3);
    const auto announced = decode_announcements(bytes);
    if (announced.ok()) {
      EXPECT_EQ(packed(announced.value()), bytes);
    }
    const auto decided = decode_stream(bytes);
    if (decided.ok()) {
      EXPECT_EQ(packed(decided.value()), bytes);
    }
  }
}

}  // namespace
}  // namespace farandole
