#include "network/tcp/sealing_speed.h"

#include <openssl/evp.h>

#include <array>
#include <memory>
#include <vector>

#include "network/tcp/vector_cipher.h"

namespace farandole {
namespace {

constexpr int kSealedRecordBytes = 16 * 1024;

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { ::EVP_CIPHER_CTX_free(context); }
};

struct FreeCipher {
  void operator()(EVP_CIPHER* cipher) const { ::EVP_CIPHER_free(cipher); }
};

bool seal_record(EVP_CIPHER_CTX* context, std::vector<unsigned char>& record) {
  static constexpr std::array<unsigned char, 12> kNonce{};
  std::array<unsigned char, 16> tag{};
  int bytes = 0;
  int final_bytes = 0;
  return ::EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, kNonce.data()) == 1 &&
         ::EVP_EncryptUpdate(context, record.data(), &bytes, record.data(), kSealedRecordBytes) ==
             1 &&
         ::EVP_EncryptFinal_ex(context, record.data(), &final_bytes) == 1 &&
         ::EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, static_cast<int>(tag.size()),
                               tag.data()) == 1;
}

}  // namespace

Result<double> measure_sealing_speed(std::chrono::milliseconds time) {
  const std::array<unsigned char, 16> key{};
  const std::unique_ptr<EVP_CIPHER_CTX, FreeContext> context(::EVP_CIPHER_CTX_new());
  const std::unique_ptr<EVP_CIPHER, FreeCipher> cipher(
      ::EVP_CIPHER_fetch(nullptr, "AES-128-GCM", fastest_cipher_properties()));
  std::vector<unsigned char> record(kSealedRecordBytes);
  bool ok = context && cipher &&
            ::EVP_EncryptInit_ex(context.get(), cipher.get(), nullptr, key.data(), nullptr) == 1;
  const auto begin = std::chrono::steady_clock::now();
  std::chrono::duration<double> passed{};
  double bytes = 0;
  do {
    ok = ok && seal_record(context.get(), record);
    bytes += kSealedRecordBytes;
    passed = std::chrono::steady_clock::now() - begin;
  } while (ok && passed < time);
  if (!ok) return Status::stop("OpenSSL cannot seal with AES-128-GCM");
  return bytes / passed.count();
}

}  // namespace farandole
