#include "base/digest.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <string>

namespace farandole {
namespace {

std::uint64_t digest(std::uint64_t number) {
  Digest digest;
  digest.add(number);
  return digest.value();
}

std::uint64_t digest(const std::string& text) {
  Digest digest;
  digest.add(text);
  return digest.value();
}

TEST(Digest, DependsOnEveryByteAndOnTheOrder) {
  std::set<std::uint64_t> known_digests = {digest(""), digest(std::string(1, 0)),
                                           digest(std::string(8, 0))};
  std::string text = "a name of 25 bytes, or so";
  known_digests.insert(digest(text));
  for (auto& letter : text) {
    letter ^= 1;
    known_digests.insert(digest(text));
    letter ^= 1;
  }
  EXPECT_EQ(known_digests.size(), text.size() + 4);

  Digest ascending;
  ascending.add(1);
  ascending.add(2);
  Digest descending;
  descending.add(2);
  descending.add(1);
  EXPECT_NE(ascending.value(), descending.value());
}

// If one input bit changes, about half of the 64 output bits change.
TEST(Digest, EveryInputBitChangesHalfOfTheOutputBits) {
  for (unsigned bit = 0; bit < 64; ++bit) {
    int changed_bits = 0;
    for (std::uint64_t number = 1; number <= 1000; ++number)
      changed_bits += std::popcount(digest(number) ^ digest(number ^ (std::uint64_t{1} << bit)));
    EXPECT_NEAR(changed_bits, 32000, 1000) << bit;
  }
}

}  // namespace
}  // namespace farandole
