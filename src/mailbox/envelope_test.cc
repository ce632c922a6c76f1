#include "mailbox/envelope.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace farandole {
namespace {

Offer an_offer() {
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
Kind opened(const Envelope& envelope) {
  const Bytes bytes = encode(envelope);
  const auto result = open_envelope(bytes);
  EXPECT_TRUE(result.ok());
  return std::get<Kind>(result->envelope);
}

TEST(EnvelopeTest, OffersKeepTheirFields) {
  Offer offer = an_offer();
  offer.call_error = "wrong";
  const auto found = opened<Offer>(offer);
  EXPECT_EQ(found.id, offer.id);
  EXPECT_EQ(found.group, offer.group);
  EXPECT_EQ(found.channel, offer.channel);
  EXPECT_EQ(found.tag, offer.tag);
  EXPECT_EQ(found.dtype, offer.dtype);
  EXPECT_EQ(found.bytes, offer.bytes);
  EXPECT_EQ(found.title, offer.title);
  EXPECT_EQ(found.call_error, offer.call_error);
  EXPECT_EQ(found.data, offer.data);
}

TEST(EnvelopeTest, AnswersKeepTheirFields) {
  EXPECT_EQ(opened<Acceptance>(Acceptance{9}).id, 9u);
  EXPECT_EQ(opened<Refusal>(Refusal{10, "no"}).id, 10u);
  EXPECT_EQ(opened<Refusal>(Refusal{10, "no"}).text, "no");
}

TEST(EnvelopeTest, DataFollowsItsHeader) {
  Bytes bytes = encode(DataHeader{11});
  bytes.push_back(std::byte{1});
  bytes.push_back(std::byte{2});
  const auto result = open_envelope(bytes);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(std::get<DataHeader>(result->envelope).id, 11u);
  ASSERT_EQ(result->data.size(), 2u);
  EXPECT_EQ(result->data[1], std::byte{2});
}

TEST(EnvelopeTest, AnOfferHasAllItsDataOrNone) {
  Offer offer = an_offer();
  offer.bytes = 9;
  EXPECT_FALSE(open_envelope(encode(offer)).ok());
  offer.data.clear();
  EXPECT_TRUE(open_envelope(encode(offer)).ok());
}

TEST(EnvelopeTest, UnknownDTypesAreErrors) {
  Offer offer = an_offer();
  offer.dtype = static_cast<DType>(kDTypes.size());
  EXPECT_EQ(open_envelope(encode(offer)).status().code(), StatusCode::kStop);
}

TEST(EnvelopeTest, CutAndLongerEnvelopesAreErrors) {
  const Envelope envelopes[] = {an_offer(), Acceptance{1}, Refusal{2, "text"}};
  for (const Envelope& envelope : envelopes) {
    Bytes bytes = encode(envelope);
    for (std::size_t size = 0; size < bytes.size(); ++size)
      EXPECT_FALSE(open_envelope(std::span(bytes).first(size)).ok()) << size;
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(open_envelope(bytes).ok());
  }
}

TEST(EnvelopeTest, RandomBytesAreHarmless) {
  std::mt19937 random(1);
  for (int round = 0; round < 20'000; ++round) {
    Bytes bytes(random() % 80);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (!bytes.empty()) bytes[0] = static_cast<std::byte>(random() % 6);
    const auto result = open_envelope(bytes);
    EXPECT_TRUE(result.ok() || result.status().code() == StatusCode::kStop);
  }
}

}  // namespace
}  // namespace farandole
