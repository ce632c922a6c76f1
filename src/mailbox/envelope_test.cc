#include "mailbox/envelope.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace farandole {
namespace {

Offer test_offer() {
  Offer offer;
  offer.id = 7;
  offer.group = 3;
  offer.channel = "first";
  offer.tag = -5;
  offer.dtype = DType::kFloat32;
  offer.bytes = 8;
  offer.title = "send `x`";
  offer.data = "abcdefgh";
  return offer;
}

template <class Kind>
Kind decode_as(const Envelope& envelope) {
  const Bytes bytes = encode(envelope);
  const auto result = decode_envelope(bytes);
  EXPECT_TRUE(result.ok());
  return std::get<Kind>(result->envelope);
}

TEST(EnvelopeTest, OffersKeepTheirFields) {
  Offer offer = test_offer();
  offer.call_error = "wrong";
  const auto decoded_offer = decode_as<Offer>(offer);
  EXPECT_EQ(decoded_offer.id, offer.id);
  EXPECT_EQ(decoded_offer.group, offer.group);
  EXPECT_EQ(decoded_offer.channel, offer.channel);
  EXPECT_EQ(decoded_offer.tag, offer.tag);
  EXPECT_EQ(decoded_offer.dtype, offer.dtype);
  EXPECT_EQ(decoded_offer.bytes, offer.bytes);
  EXPECT_EQ(decoded_offer.title, offer.title);
  EXPECT_EQ(decoded_offer.call_error, offer.call_error);
  EXPECT_EQ(decoded_offer.data, offer.data);
}

TEST(EnvelopeTest, AnswersKeepTheirFields) {
  EXPECT_EQ(decode_as<Acceptance>(Acceptance{9}).id, 9u);
  EXPECT_EQ(decode_as<Refusal>(Refusal{10, "no"}).id, 10u);
  EXPECT_EQ(decode_as<Refusal>(Refusal{10, "no"}).text, "no");
}

TEST(EnvelopeTest, DataFollowsItsHeader) {
  Bytes bytes = encode(DataHeader{11});
  bytes.push_back(std::byte{1});
  bytes.push_back(std::byte{2});
  const auto result = decode_envelope(bytes);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(std::get<DataHeader>(result->envelope).id, 11u);
  ASSERT_EQ(result->data.size(), 2u);
  EXPECT_EQ(result->data[1], std::byte{2});
}

TEST(EnvelopeTest, AnOfferHasAllItsDataOrNone) {
  Offer offer = test_offer();
  offer.bytes = 9;
  EXPECT_FALSE(decode_envelope(encode(offer)).ok());
  offer.data.clear();
  EXPECT_TRUE(decode_envelope(encode(offer)).ok());
}

TEST(EnvelopeTest, UnknownDTypesAreErrors) {
  Offer offer = test_offer();
  offer.dtype = static_cast<DType>(kDTypes.size());
  EXPECT_EQ(decode_envelope(encode(offer)).status().code(), StatusCode::kStop);
}

TEST(EnvelopeTest, TruncatedAndTooLongEnvelopesAreErrors) {
  const Envelope envelopes[] = {test_offer(), Acceptance{1}, Refusal{2, "text"}};
  for (const Envelope& envelope : envelopes) {
    Bytes bytes = encode(envelope);
    for (std::size_t size = 0; size < bytes.size(); ++size)
      EXPECT_FALSE(decode_envelope(std::span(bytes).first(size)).ok()) << size;
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(decode_envelope(bytes).ok());
  }
}

TEST(EnvelopeTest, RandomBytesAreHarmless) {
  std::mt19937 random(1);
  for (int round = 0; round < 20'000; ++round) {
    Bytes bytes(random() % 80);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (!bytes.empty()) bytes[0] = static_cast<std::byte>(random() % 6);
    const auto result = decode_envelope(bytes);
    EXPECT_TRUE(result.ok() || result.status().code() == StatusCode::kStop);
  }
}

}  // namespace
}  // namespace farandole
