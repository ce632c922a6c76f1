// JobSecret: the 32 random bytes that make a process a member of a job. Any process that has them
// can join the job and read its data, so they are never in an argument, an environment variable, a
// log or a core dump.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "base/time_point.h"
#include "farandole/status.h"

namespace farandole {

inline constexpr std::size_t kSecretBytes = 32;

// A key that is erased from memory in the destructor.
class SecretKey {
 public:
  SecretKey() = default;
  SecretKey(const SecretKey&) = delete;
  SecretKey& operator=(const SecretKey&) = delete;
  ~SecretKey();

  std::span<std::byte, kSecretBytes> bytes() { return bytes_; }
  std::span<const std::byte, kSecretBytes> bytes() const { return bytes_; }

 private:
  std::array<std::byte, kSecretBytes> bytes_{};
};

// Keeps the secret in a page that is locked in memory, left out of core dumps, erased by the
// destructor, and empty in children after fork(). Movable. Any thread may use a const JobSecret.
class JobSecret {
 public:
  // Makes a new secret. This function and the next two return kStop if memory cannot be locked or a
  // system call fails.
  static Result<JobSecret> generate();
  // Reads the secret from a file of exactly 32 bytes that belongs to this user (or root) and that
  // no other user can read or write. Errors: kFixCall for any other file.
  static Result<JobSecret> read_file(const std::string& path);
  // Reads exactly 32 bytes from a pipe, socket or file. Blocks until the deadline at most. Errors:
  // kFixCall if the stream ends earlier, kRetry at the deadline.
  static Result<JobSecret> read_descriptor(int descriptor, TimePoint deadline);

  JobSecret(JobSecret&& other) noexcept;
  JobSecret& operator=(JobSecret&&) = delete;
  ~JobSecret();

  // Writes the 32 bytes, to pass the secret to another process. May block. Errors: kStop. If the
  // descriptor is a pipe, the caller must ignore SIGPIPE.
  Status write_to(int descriptor) const;
  // Derives a key (HKDF-SHA256) that depends on the secret and on all bytes of `purpose`. Errors:
  // kStop in a child process after fork(), where the secret is gone.
  Status derive(std::span<const std::byte> purpose, SecretKey& key) const;

 private:
  struct Page;
  explicit JobSecret(Page* page) : page_(page) {}
  static Result<JobSecret> make_empty();
  Status check_present() const;

  Page* page_;  // owned; null after a move
};

}  // namespace farandole
