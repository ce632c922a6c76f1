#include "network/tcp/job_secret.h"

#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "base/descriptor.h"
#include "base/format.h"
#include "base/try.h"

namespace farandole {

struct JobSecret::Page {
  std::byte secret[kSecretBytes];
  bool is_present;  // false in a forked child, because the kernel has cleared its page
};

namespace {

Status secret_error(std::string_view call) {
  return Status::stop(
      format_text("cannot keep the job's secret: {}: {}", call, std::strerror(errno)));
}

Status check_secret_file(const std::string& path, int descriptor) {
  struct stat attributes{};
  if (::fstat(descriptor, &attributes) != 0) return secret_error("fstat");
  const auto file_error = [&](std::string_view problem) {
    return Status::fix_call(format_text(
        "the file '{}' cannot be the job's secret: {}; it must be a regular file of {} bytes that "
        "belongs to the user of the job, with mode 0600",
        path, problem, kSecretBytes));
  };
  if (!S_ISREG(attributes.st_mode)) return file_error("it is not a regular file");
  if (attributes.st_uid != ::geteuid() && attributes.st_uid != 0)
    return file_error(format_text("it belongs to user id {}", attributes.st_uid));
  if ((attributes.st_mode & 077U) != 0)
    return file_error(
        format_text("others can use it, because its mode is {:04o}", attributes.st_mode & 07777U));
  if (attributes.st_size != static_cast<off_t>(kSecretBytes))
    return file_error(format_text("it has {} bytes", attributes.st_size));
  return {};
}

Status wait_for_secret(int descriptor, TimePoint deadline) {
  const auto time_left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  pollfd entry{descriptor, POLLIN, 0};
  const auto limit_ms = static_cast<int>(std::clamp<std::int64_t>(time_left.count(), 0, 1 << 30));
  int poll_result = 0;
  while ((poll_result = ::poll(&entry, 1, limit_ms)) < 0 && errno == EINTR) continue;
  if (poll_result != 0) return {};  // if poll() failed, read() reports the error
  return Status::retry("the job's secret has not arrived in time");
}

}  // namespace

SecretKey::~SecretKey() { ::OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

JobSecret::JobSecret(JobSecret&& other) noexcept : page_(std::exchange(other.page_, nullptr)) {}

JobSecret::~JobSecret() {
  if (page_ == nullptr) return;
  ::OPENSSL_cleanse(page_, sizeof(Page));
  ::munmap(page_, sizeof(Page));
}

Result<JobSecret> JobSecret::make_empty() {
  // OpenSSL is initialized here, because all code that uses OpenSSL first needs a secret. Our
  // threads may still run while the process exits, so OpenSSL must not free its tables at exit. It
  // must not load the configuration file, because this file is meant for the OpenSSL library of the
  // system.
  ::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  void* memory = ::mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0);
  if (memory == MAP_FAILED)
    return secret_error("mmap (raise `ulimit -l`, or memlock in /etc/security/limits.conf)");
  JobSecret secret(static_cast<Page*>(memory));
  if (::madvise(memory, sizeof(Page), MADV_DONTDUMP) != 0 ||
      ::madvise(memory, sizeof(Page), MADV_WIPEONFORK) != 0)
    return secret_error("madvise");
  return secret;
}

Result<JobSecret> JobSecret::generate() {
  FARANDOLE_TRY_ASSIGN(JobSecret secret, make_empty());
  // For up to 256 bytes, getrandom() always returns all bytes.
  if (::getrandom(secret.page_->secret, kSecretBytes, 0) != kSecretBytes)
    return secret_error("getrandom");
  secret.page_->is_present = true;
  return secret;
}

Result<JobSecret> JobSecret::read_file(const std::string& path) {
  // O_NONBLOCK is needed because open() would block if the file were a pipe.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid())
    return Status::fix_call(format_text("cannot open the file '{}' with the job's secret: {}", path,
                                        std::strerror(errno)));
  FARANDOLE_TRY(check_secret_file(path, file.get()));
  return read_descriptor(file.get(), TimePoint::max());
}

Result<JobSecret> JobSecret::read_descriptor(int descriptor, TimePoint deadline) {
  FARANDOLE_TRY_ASSIGN(JobSecret secret, make_empty());
  for (std::size_t count = 0; count < kSecretBytes;) {
    FARANDOLE_TRY(wait_for_secret(descriptor, deadline));
    const ssize_t bytes_read =
        ::read(descriptor, secret.page_->secret + count, kSecretBytes - count);
    if (bytes_read == 0)
      return Status::fix_call(
          format_text("the job's secret ends after {} of {} bytes; its sender has failed", count,
                      kSecretBytes));
    if (bytes_read > 0) count += static_cast<std::size_t>(bytes_read);
    if (bytes_read < 0 && errno != EINTR && errno != EAGAIN) return secret_error("read");
  }
  secret.page_->is_present = true;
  return secret;
}

Status JobSecret::check_present() const {
  if (page_->is_present) return {};
  return Status::stop(
      "the job's secret is not available in a child process after fork(); start a process of its "
      "own instead");
}

Status JobSecret::write_to(int descriptor) const {
  FARANDOLE_TRY(check_present());
  for (std::size_t count = 0; count < kSecretBytes;) {
    const ssize_t bytes_written = ::write(descriptor, page_->secret + count, kSecretBytes - count);
    if (bytes_written >= 0) count += static_cast<std::size_t>(bytes_written);
    if (bytes_written < 0 && errno != EINTR) return secret_error("write");
  }
  return {};
}

Status JobSecret::derive(std::span<const std::byte> purpose, SecretKey& key) const {
  FARANDOLE_TRY(check_present());
  const std::unique_ptr<EVP_KDF, decltype(&::EVP_KDF_free)> kdf(
      ::EVP_KDF_fetch(nullptr, "HKDF", nullptr), &::EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&::EVP_KDF_CTX_free)> context(
      ::EVP_KDF_CTX_new(kdf.get()), &::EVP_KDF_CTX_free);
  char digest[] = "SHA256";
  const OSSL_PARAM parameters[] = {
      ::OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      ::OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, page_->secret, kSecretBytes),
      ::OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO,
                                          const_cast<std::byte*>(purpose.data()), purpose.size()),
      ::OSSL_PARAM_construct_end()};
  auto* into = reinterpret_cast<unsigned char*>(key.bytes().data());
  if (context == nullptr || ::EVP_KDF_derive(context.get(), into, kSecretBytes, parameters) <= 0)
    return Status::stop("OpenSSL cannot derive a key from the job's secret");
  return {};
}

}  // namespace farandole
