#include "network/tcp/vector_cipher.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/provider.h>

#include <array>
#include <cstddef>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace farandole {
namespace {

using Bytes = std::vector<unsigned char>;

constexpr int kTagBytes = 16;
constexpr char kOpenSslProperties[] = "provider=default";

struct FreeCipherObjects {
  void operator()(EVP_CIPHER* cipher) const { ::EVP_CIPHER_free(cipher); }
  void operator()(EVP_CIPHER_CTX* context) const { ::EVP_CIPHER_CTX_free(context); }
};
using Context = std::unique_ptr<EVP_CIPHER_CTX, FreeCipherObjects>;

struct SealedMessage {
  Bytes bytes;
  Bytes tag;

  bool operator==(const SealedMessage&) const = default;
};

Bytes bytes_of(std::string_view hexadecimal) {
  Bytes bytes;
  for (std::size_t i = 0; i < hexadecimal.size(); i += 2)
    bytes.push_back(
        static_cast<unsigned char>(std::stoi(std::string(hexadecimal.substr(i, 2)), nullptr, 16)));
  return bytes;
}

Context context_with(const char* properties, bool seals, const Bytes& key) {
  const std::unique_ptr<EVP_CIPHER, FreeCipherObjects> cipher(
      ::EVP_CIPHER_fetch(nullptr, "AES-128-GCM", properties));
  Context context(::EVP_CIPHER_CTX_new());
  const int result =
      ::EVP_CipherInit_ex(context.get(), cipher.get(), nullptr, key.data(), nullptr, seals ? 1 : 0);
  EXPECT_EQ(result, 1);
  return context;
}

bool begin_message(EVP_CIPHER_CTX* context, const Bytes& nonce, const Bytes& header) {
  int count = 0;
  return ::EVP_CipherInit_ex(context, nullptr, nullptr, nullptr, nonce.data(), -1) == 1 &&
         (header.empty() || ::EVP_CipherUpdate(context, nullptr, &count, header.data(),
                                               static_cast<int>(header.size())) == 1);
}

bool convert_in_place(EVP_CIPHER_CTX* context, Bytes& bytes) {
  int count = 0;
  const int size = static_cast<int>(bytes.size());
  return ::EVP_CipherUpdate(context, bytes.data(), &count, bytes.data(), size) == 1 &&
         count == size;
}

bool end_message(EVP_CIPHER_CTX* context) {
  int count = 0;
  std::array<unsigned char, kTagBytes> no_output{};
  return ::EVP_CipherFinal_ex(context, no_output.data(), &count) == 1 && count == 0;
}

SealedMessage seal(EVP_CIPHER_CTX* context, const Bytes& nonce, const Bytes& header, Bytes bytes) {
  Bytes tag(kTagBytes);
  EXPECT_TRUE(begin_message(context, nonce, header));
  EXPECT_TRUE(convert_in_place(context, bytes));
  EXPECT_TRUE(end_message(context));
  EXPECT_EQ(::EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()), 1);
  return {bytes, tag};
}

// Returns the opened bytes, and true if the tag was right.
std::pair<Bytes, bool> open(EVP_CIPHER_CTX* context, const Bytes& nonce, const Bytes& header,
                            SealedMessage sealed) {
  EXPECT_TRUE(begin_message(context, nonce, header));
  EXPECT_EQ(::EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kTagBytes, sealed.tag.data()), 1);
  EXPECT_TRUE(convert_in_place(context, sealed.bytes));
  const bool is_right = end_message(context);
  return {sealed.bytes, is_right};
}

class VectorCipher : public ::testing::Test {
 protected:
  void SetUp() override {
    if (fastest_cipher_properties() != nullptr) return;
#ifdef FARANDOLE_HAS_IPSEC_MB
    ASSERT_FALSE(__builtin_cpu_supports("vaes") && __builtin_cpu_supports("avx512vl"));
#endif
    GTEST_SKIP() << "needs libipsec-mb, and a processor with VAES and AVX-512";
  }

  Bytes random_bytes(std::size_t count) {
    Bytes bytes(count);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random_());
    return bytes;
  }

  std::mt19937 random_{7};
  const Bytes key_ = random_bytes(16);
  const Bytes nonce_ = random_bytes(12);
  const Bytes header_ = random_bytes(5);
};

TEST_F(VectorCipher, IsPreferredToOpenSsl) {
  const Context context = context_with(fastest_cipher_properties(), true, key_);
  const OSSL_PROVIDER* provider =
      ::EVP_CIPHER_get0_provider(::EVP_CIPHER_CTX_get0_cipher(context.get()));
  EXPECT_STREQ(::OSSL_PROVIDER_get0_name(provider), "farandole");
}

// Test case 4 of the specification of GCM (McGrew and Viega).
TEST_F(VectorCipher, SealsAsSpecified) {
  const Context context =
      context_with(fastest_cipher_properties(), true, bytes_of("feffe9928665731c6d6a8f9467308308"));
  const SealedMessage sealed = seal(
      context.get(), bytes_of("cafebabefacedbaddecaf888"),
      bytes_of("feedfacedeadbeeffeedfacedeadbeefabaddad2"),
      bytes_of("d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c959568095"
               "32fcf0e2449a6b525b16aedf5aa0de657ba637b39"));
  EXPECT_EQ(sealed.tag, bytes_of("5bc94fbc3221a5db94fae95ae7121a47"));
}

TEST_F(VectorCipher, SealsAndOpensLikeOpenSsl) {
  const Context our_context = context_with(fastest_cipher_properties(), true, key_);
  const Context opening_context = context_with(fastest_cipher_properties(), false, key_);
  const Context openssl_context = context_with(kOpenSslProperties, true, key_);
  std::vector<std::size_t> sizes(300);
  std::iota(sizes.begin(), sizes.end(), 0);
  sizes.insert(sizes.end(), {767, 768, 769, 4096, 16384, 16385, 100'003});
  for (const std::size_t size : sizes) {
    const Bytes nonce = random_bytes(12);
    const Bytes header = random_bytes(size % 65);
    const Bytes bytes = random_bytes(size);
    const SealedMessage sealed = seal(our_context.get(), nonce, header, bytes);
    ASSERT_EQ(sealed, seal(openssl_context.get(), nonce, header, bytes)) << size;
    ASSERT_EQ(open(opening_context.get(), nonce, header, sealed), std::pair(bytes, true)) << size;
  }
}

TEST_F(VectorCipher, RefusesChangedMessages) {
  const Context sealing_context = context_with(fastest_cipher_properties(), true, key_);
  const Context opening_context = context_with(fastest_cipher_properties(), false, key_);
  const Bytes bytes = random_bytes(100);
  const SealedMessage sealed = seal(sealing_context.get(), nonce_, header_, bytes);
  for (std::size_t bit = 0; bit < 8 * sealed.bytes.size(); ++bit) {
    SealedMessage changed = sealed;
    changed.bytes[bit / 8] ^= static_cast<unsigned char>(1U << (bit % 8));
    EXPECT_FALSE(open(opening_context.get(), nonce_, header_, changed).second) << bit;
  }
  for (std::size_t bit = 0; bit < 8 * sealed.tag.size(); ++bit) {
    SealedMessage changed = sealed;
    changed.tag[bit / 8] ^= static_cast<unsigned char>(1U << (bit % 8));
    EXPECT_FALSE(open(opening_context.get(), nonce_, header_, changed).second) << bit;
  }
  Bytes other_header = header_;
  other_header[4] ^= 1;
  EXPECT_FALSE(open(opening_context.get(), nonce_, other_header, sealed).second);
  Bytes other_nonce = nonce_;
  other_nonce[11] ^= 1;
  EXPECT_FALSE(open(opening_context.get(), other_nonce, header_, sealed).second);
  EXPECT_TRUE(open(opening_context.get(), nonce_, header_, sealed).second);
}

TEST_F(VectorCipher, ChangesItsKey) {
  const Context our_context = context_with(fastest_cipher_properties(), true, key_);
  seal(our_context.get(), nonce_, header_, random_bytes(10));
  const Bytes other_key = random_bytes(16);
  const Bytes bytes = random_bytes(10);
  ASSERT_EQ(::EVP_CipherInit_ex(our_context.get(), nullptr, nullptr, other_key.data(), nullptr, -1),
            1);
  const Context openssl_context = context_with(kOpenSslProperties, true, other_key);
  EXPECT_EQ(seal(our_context.get(), nonce_, header_, bytes),
            seal(openssl_context.get(), nonce_, header_, bytes));
}

TEST_F(VectorCipher, RefusesMessagesWithoutATag) {
  const Context sealing_context = context_with(fastest_cipher_properties(), true, key_);
  const Context opening_context = context_with(fastest_cipher_properties(), false, key_);
  const SealedMessage sealed = seal(sealing_context.get(), nonce_, header_, random_bytes(100));
  EXPECT_TRUE(open(opening_context.get(), nonce_, header_, sealed).second);
  Bytes bytes = sealed.bytes;
  ASSERT_TRUE(begin_message(opening_context.get(), nonce_, header_));
  EXPECT_TRUE(convert_in_place(opening_context.get(), bytes));
  EXPECT_FALSE(
      end_message(opening_context.get()));  // the tag of the previous message must not be used
}

// A context that opens messages must not return their tags. Otherwise, an attacker could use the
// context to get the valid tag of a forged message.
TEST_F(VectorCipher, GivesNoTagOfAnOpenedMessage) {
  const Context context = context_with(fastest_cipher_properties(), false, key_);
  SealedMessage forged{random_bytes(100), random_bytes(kTagBytes)};
  EXPECT_FALSE(open(context.get(), nonce_, header_, forged).second);
  ASSERT_EQ(::EVP_CipherInit_ex(context.get(), nullptr, nullptr, nullptr, nullptr, 1), 1);
  EXPECT_NE(
      ::EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, forged.tag.data()), 1);
}

// A nonce must never seal two messages.
TEST_F(VectorCipher, NeedsANonceForEachMessage) {
  const Context context = context_with(fastest_cipher_properties(), true, key_);
  Bytes bytes(10);
  EXPECT_FALSE(convert_in_place(context.get(), bytes));
  EXPECT_FALSE(end_message(context.get()));
  ASSERT_TRUE(begin_message(context.get(), nonce_, header_));
  EXPECT_TRUE(convert_in_place(context.get(), bytes));
  EXPECT_FALSE(convert_in_place(context.get(), bytes));
  EXPECT_TRUE(end_message(context.get()));
  EXPECT_FALSE(convert_in_place(context.get(), bytes));
  EXPECT_FALSE(end_message(context.get()));
}

TEST_F(VectorCipher, RefusesUnsupportedLengths) {
  const Context context = context_with(fastest_cipher_properties(), true, key_);
  const auto set_length = [&](int command, int length) {
    Bytes bytes(64);
    return ::EVP_CIPHER_CTX_ctrl(context.get(), command, length, bytes.data()) == 1;
  };
  EXPECT_TRUE(set_length(EVP_CTRL_AEAD_SET_IVLEN, 12));
  EXPECT_FALSE(set_length(EVP_CTRL_AEAD_SET_IVLEN, 16));
  EXPECT_FALSE(set_length(EVP_CTRL_AEAD_SET_TAG, kTagBytes));  // this context seals
  EXPECT_FALSE(begin_message(context.get(), nonce_, Bytes(65)));
  const Context opening_context = context_with(fastest_cipher_properties(), false, key_);
  Bytes tag(8);
  EXPECT_NE(::EVP_CIPHER_CTX_ctrl(opening_context.get(), EVP_CTRL_AEAD_SET_TAG, 8, tag.data()), 1);
}

TEST_F(VectorCipher, GivesTheTagOfASealedMessage) {
  const Context context = context_with(fastest_cipher_properties(), true, key_);
  Bytes tag(kTagBytes);
  Bytes bytes(10);
  const auto get_tag = [&] {
    return ::EVP_CIPHER_CTX_ctrl(context.get(), EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag.data()) == 1;
  };
  ASSERT_TRUE(begin_message(context.get(), nonce_, header_));
  EXPECT_FALSE(get_tag());
  EXPECT_TRUE(convert_in_place(context.get(), bytes));
  EXPECT_FALSE(get_tag());
  EXPECT_TRUE(end_message(context.get()));
  EXPECT_TRUE(get_tag());
}

}  // namespace
}  // namespace farandole
