#include "network/tcp/vector_cipher.h"

#ifndef FARANDOLE_HAS_IPSEC_MB

namespace farandole {
const char* fastest_cipher_properties() { return nullptr; }
}  // namespace farandole

#else

#define NO_COMPAT_IMB_API_053  // otherwise, the header defines macros such as SHA1
#include <intel-ipsec-mb.h>
#include <openssl/core_dispatch.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <openssl/provider.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

// The header of libipsec-mb does not declare these functions. We do not use the library's table of
// functions, because the table would link 12 MB of other ciphers, too.
extern "C" {
std::remove_pointer_t<aes_gcm_precomp_t> aes_gcm_precomp_128_vaes_avx512;
std::remove_pointer_t<aes_gcm_enc_dec_t> aes_gcm_enc_128_vaes_avx512;
std::remove_pointer_t<aes_gcm_enc_dec_t> aes_gcm_dec_128_vaes_avx512;
}

static_assert(IMB_VERSION_NUM >> 8U == 0x103, "only version 1.3 is known to have these functions");

namespace farandole {
namespace {

constexpr char kName[] = "farandole";
constexpr char kProperties[] = "provider=farandole";
constexpr char kPreferredProperties[] = "?provider=farandole";
constexpr std::size_t kKeyBytes = 16;
constexpr std::size_t kNonceBytes = 12;
constexpr std::size_t kTagBytes = 16;
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kHeaderBytesMax = 64;  // TLS 1.3 authenticates 5 bytes with each record

using Tag = std::array<std::uint8_t, kTagBytes>;

bool has_vector_instructions() {
  return __builtin_cpu_supports("aes") && __builtin_cpu_supports("vaes") &&
         __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

// A key and the message that it seals or opens. A message consists of a header and one piece of
// data, because TLS 1.3 needs no more. OpenSSL calls these functions through its table of
// functions.
class Cipher {
 public:
  Cipher() = default;
  Cipher(const Cipher&) = delete;
  Cipher& operator=(const Cipher&) = delete;
  ~Cipher() { ::OPENSSL_cleanse(this, sizeof *this); }

  // The key and the nonce may be set in one call or in two calls. An empty key or nonce is ignored.
  bool begin(bool seals, std::span<const std::uint8_t> key, std::span<const std::uint8_t> nonce) {
    if (std::exchange(seals_, seals) != seals) state_ = State::kNoNonce;
    if (!key.empty()) {
      if (key.size() != kKeyBytes) return false;
      ::aes_keyexp_128_enc_avx512(key.data(), key_.expanded_keys);
      ::aes_gcm_precomp_128_vaes_avx512(&key_);
      has_key_ = true;
    }
    if (nonce.empty()) return true;
    if (nonce.size() != kNonceBytes) return false;
    std::ranges::copy(nonce, nonce_.begin());
    header_bytes_ = 0;
    state_ = State::kStarted;
    return true;
  }

  bool add_header(std::span<const std::uint8_t> bytes) {
    if (state_ != State::kStarted || bytes.size() > kHeaderBytesMax - header_bytes_) return false;
    std::ranges::copy(bytes, header_.begin() + static_cast<std::ptrdiff_t>(header_bytes_));
    header_bytes_ += bytes.size();
    return true;
  }

  // `output` must have room for as many bytes as `input` has, and may be the same memory.
  bool seal_or_open(std::span<const std::uint8_t> input, std::uint8_t* output) {
    if (state_ != State::kStarted || !has_key_) return false;
    const auto convert = seals_ ? ::aes_gcm_enc_128_vaes_avx512 : ::aes_gcm_dec_128_vaes_avx512;
    convert(&key_, &message_, output, input.data(), input.size(), nonce_.data(), header_.data(),
            header_bytes_, computed_tag_.data(), kTagBytes);
    state_ = State::kConverted;
    return true;
  }

  // A nonce must not seal two messages. So each message needs a begin() with a nonce.
  bool end() {
    if (state_ == State::kStarted && !seal_or_open({}, nullptr)) return false;
    if (state_ != State::kConverted) return false;
    state_ = State::kEnded;
    return seals_ || (std::exchange(has_tag_, false) &&
                      ::CRYPTO_memcmp(computed_tag_.data(), expected_tag_.data(), kTagBytes) == 0);
  }

  bool set_tag(std::span<const std::uint8_t> tag) {
    if (seals_ || tag.size() != kTagBytes) return false;
    std::ranges::copy(tag, expected_tag_.begin());
    return has_tag_ = true;
  }

  const Tag& tag() const { return computed_tag_; }
  bool has_sealed() const { return seals_ && state_ == State::kEnded; }

 private:
  enum class State { kNoNonce, kStarted, kConverted, kEnded };

  // The key expansion needs 16 bytes of alignment; the header of libipsec-mb asks for 64.
  alignas(kAlignment) gcm_key_data key_{};
  alignas(kAlignment) gcm_context_data message_{};
  std::array<std::uint8_t, kNonceBytes> nonce_{};
  std::array<std::uint8_t, kHeaderBytesMax> header_{};
  std::size_t header_bytes_ = 0;
  Tag computed_tag_{};
  Tag expected_tag_{};
  State state_ = State::kNoNonce;
  bool seals_ = true;
  bool has_key_ = false;
  bool has_tag_ = false;
};

Cipher& cipher_of(void* context) { return *static_cast<Cipher*>(context); }

// OpenSSL calls the following functions. No exception may pass through OpenSSL. The functions
// return 1 if they succeed, and 0 otherwise.

void* make_cipher(void* /*provider*/) noexcept { return new (std::nothrow) Cipher; }

void free_cipher(void* context) noexcept { delete static_cast<Cipher*>(context); }

int set_parameters(void* context, const OSSL_PARAM* parameters) noexcept {
  if (parameters == nullptr) return 1;
  if (const OSSL_PARAM* tag = ::OSSL_PARAM_locate_const(parameters, OSSL_CIPHER_PARAM_AEAD_TAG)) {
    const void* bytes = nullptr;
    std::size_t count = 0;
    if (::OSSL_PARAM_get_octet_string_ptr(tag, &bytes, &count) != 1 || bytes == nullptr) return 0;
    if (!cipher_of(context).set_tag({static_cast<const std::uint8_t*>(bytes), count})) return 0;
  }
  const OSSL_PARAM* length = ::OSSL_PARAM_locate_const(parameters, OSSL_CIPHER_PARAM_AEAD_IVLEN);
  if (length == nullptr) return 1;
  std::size_t bytes = 0;
  return ::OSSL_PARAM_get_size_t(length, &bytes) == 1 && bytes == kNonceBytes ? 1 : 0;
}

template <bool kSeals>
int begin(void* context, const unsigned char* key, std::size_t key_bytes,
          const unsigned char* nonce, std::size_t nonce_bytes,
          const OSSL_PARAM* parameters) noexcept {
  const std::span key_span(key, key == nullptr ? 0 : key_bytes);
  const std::span nonce_span(nonce, nonce == nullptr ? 0 : nonce_bytes);
  if (!cipher_of(context).begin(kSeals, key_span, nonce_span)) return 0;
  return set_parameters(context, parameters);
}

int update(void* context, unsigned char* output, std::size_t* count, std::size_t room,
           const unsigned char* input, std::size_t bytes) noexcept {
  *count = bytes;
  if (output == nullptr) return cipher_of(context).add_header({input, bytes}) ? 1 : 0;
  if (bytes == 0) return 1;
  if (room < bytes) return 0;
  return cipher_of(context).seal_or_open({input, bytes}, output) ? 1 : 0;
}

int end(void* context, unsigned char* /*to*/, std::size_t* count, std::size_t /*room*/) noexcept {
  *count = 0;
  return cipher_of(context).end() ? 1 : 0;
}

// Sets the parameter `name` to `value` if OpenSSL has asked for this parameter.
int set_if_requested(OSSL_PARAM* parameters, const char* name, std::size_t value) {
  OSSL_PARAM* parameter = ::OSSL_PARAM_locate(parameters, name);
  return parameter == nullptr ? 1 : ::OSSL_PARAM_set_size_t(parameter, value);
}

int get_lengths(OSSL_PARAM* parameters) {
  return set_if_requested(parameters, OSSL_CIPHER_PARAM_KEYLEN, kKeyBytes) &
         set_if_requested(parameters, OSSL_CIPHER_PARAM_IVLEN, kNonceBytes);
}

int get_parameters(OSSL_PARAM* parameters) noexcept {
  OSSL_PARAM* mode = ::OSSL_PARAM_locate(parameters, OSSL_CIPHER_PARAM_MODE);
  if (mode != nullptr && ::OSSL_PARAM_set_uint(mode, EVP_CIPH_GCM_MODE) != 1) return 0;
  for (const char* name : {OSSL_CIPHER_PARAM_AEAD, OSSL_CIPHER_PARAM_CUSTOM_IV}) {
    OSSL_PARAM* parameter = ::OSSL_PARAM_locate(parameters, name);
    if (parameter != nullptr && ::OSSL_PARAM_set_int(parameter, 1) != 1) return 0;
  }
  return get_lengths(parameters) & set_if_requested(parameters, OSSL_CIPHER_PARAM_BLOCK_SIZE, 1);
}

int get_context_parameters(void* context, OSSL_PARAM* parameters) noexcept {
  const Cipher& cipher = cipher_of(context);
  OSSL_PARAM* tag = ::OSSL_PARAM_locate(parameters, OSSL_CIPHER_PARAM_AEAD_TAG);
  if (tag != nullptr && (!cipher.has_sealed() || tag->data_size != kTagBytes ||
                         ::OSSL_PARAM_set_octet_string(tag, cipher.tag().data(), kTagBytes) != 1))
    return 0;
  return get_lengths(parameters) &
         set_if_requested(parameters, OSSL_CIPHER_PARAM_AEAD_TAGLEN, kTagBytes);
}

template <typename Function>
OSSL_DISPATCH dispatch_entry(int id, Function* function) {
  return {id, reinterpret_cast<void (*)()>(function)};
}

const OSSL_ALGORITHM* find_algorithms(void* /*provider*/, int operation,
                                      int* must_not_cache) noexcept {
  static const std::array functions{
      dispatch_entry(OSSL_FUNC_CIPHER_NEWCTX, make_cipher),
      dispatch_entry(OSSL_FUNC_CIPHER_FREECTX, free_cipher),
      dispatch_entry(OSSL_FUNC_CIPHER_ENCRYPT_INIT, begin<true>),
      dispatch_entry(OSSL_FUNC_CIPHER_DECRYPT_INIT, begin<false>),
      dispatch_entry(OSSL_FUNC_CIPHER_UPDATE, update),
      dispatch_entry(OSSL_FUNC_CIPHER_FINAL, end),
      dispatch_entry(OSSL_FUNC_CIPHER_GET_PARAMS, get_parameters),
      dispatch_entry(OSSL_FUNC_CIPHER_GET_CTX_PARAMS, get_context_parameters),
      dispatch_entry(OSSL_FUNC_CIPHER_SET_CTX_PARAMS, set_parameters),
      OSSL_DISPATCH{0, nullptr},
  };
  // All names of the cipher in OpenSSL's own providers.
  static const std::array<OSSL_ALGORITHM, 2> algorithms{
      {{"AES-128-GCM:id-aes128-GCM:2.16.840.1.101.3.4.1.6", kProperties, functions.data(), nullptr},
       {nullptr, nullptr, nullptr, nullptr}}};
  *must_not_cache = 0;
  return operation == OSSL_OP_CIPHER ? algorithms.data() : nullptr;
}

int begin_provider(const OSSL_CORE_HANDLE* /*core*/, const OSSL_DISPATCH* /*core_functions*/,
                   const OSSL_DISPATCH** functions, void** provider) noexcept {
  static const std::array table{dispatch_entry(OSSL_FUNC_PROVIDER_QUERY_OPERATION, find_algorithms),
                                OSSL_DISPATCH{0, nullptr}};
  static char state;  // OpenSSL needs some address here; our functions do not use it
  *functions = table.data();
  *provider = &state;
  return 1;
}

// Test case 2 of the specification of GCM (McGrew and Viega), in which all inputs are zero. It
// checks that the functions of libipsec-mb have the parameters with which we call them.
bool works_as_specified() {
  constexpr Tag kExpected{0xab, 0x6e, 0x47, 0xd4, 0x2c, 0xec, 0x13, 0xbd,
                          0xf5, 0x3a, 0x67, 0xb2, 0x12, 0x57, 0xbd, 0xdf};
  const std::array<std::uint8_t, kKeyBytes> zeros{};
  const auto nonce = std::span(zeros).first(kNonceBytes);
  std::array<std::uint8_t, kKeyBytes> sealed{};
  Cipher sealing_cipher;
  if (!sealing_cipher.begin(true, zeros, nonce) ||
      !sealing_cipher.seal_or_open(zeros, sealed.data()) || !sealing_cipher.end() ||
      sealing_cipher.tag() != kExpected)
    return false;
  std::array<std::uint8_t, kKeyBytes> opened{1};
  Cipher opening_cipher;
  return opening_cipher.begin(false, zeros, nonce) && opening_cipher.set_tag(kExpected) &&
         opening_cipher.seal_or_open(sealed, opened.data()) && opening_cipher.end() &&
         opened == zeros;
}

// The providers stay loaded until the process ends. The pointers are kept so that the leak
// sanitizer does not report the providers.
struct Providers {
  OSSL_PROVIDER* default_provider = nullptr;
  OSSL_PROVIDER* our_provider = nullptr;
};

Providers load_providers() {
  if (::imb_get_version() != IMB_VERSION_NUM || !has_vector_instructions() ||
      !works_as_specified() || ::OSSL_PROVIDER_add_builtin(nullptr, kName, begin_provider) != 1)
    return {};
  // If a provider is loaded explicitly, OpenSSL does not load its default provider. We need the
  // default provider for all other algorithms.
  return {::OSSL_PROVIDER_load(nullptr, "default"), ::OSSL_PROVIDER_load(nullptr, kName)};
}

}  // namespace

const char* fastest_cipher_properties() {
  static const Providers providers = load_providers();
  return providers.default_provider != nullptr && providers.our_provider != nullptr
             ? kPreferredProperties
             : nullptr;
}

}  // namespace farandole

#endif
