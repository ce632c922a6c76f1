#include "network/tcp/job_secret.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/descriptor.h"
#include "base/format.h"
#include "network/tcp/job_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

Bytes key_of(const JobSecret& secret, const std::string& purpose) {
  SecretKey key;
  EXPECT_TRUE(secret.derive(bytes_of(purpose), key).ok());
  return {key.bytes().begin(), key.bytes().end()};
}

std::pair<Descriptor, Descriptor> make_pipe() {
  std::array<int, 2> pipe_ends{-1, -1};
  EXPECT_EQ(::pipe(pipe_ends.data()), 0);
  return {Descriptor(pipe_ends[0]), Descriptor(pipe_ends[1])};
}

// A file with the given mode, in a new folder.
struct SecretFile {
  SecretFile(const std::string& content, mode_t mode) {
    std::string name = "/tmp/farandole-secret-XXXXXX";
    folder = ::mkdtemp(name.data());
    path = folder + "/secret";
    std::ofstream(path) << content;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
  }
  ~SecretFile() { std::filesystem::remove_all(folder); }
  std::string folder;
  std::string path;
};

TEST(JobSecret, IsDifferentEachTime) {
  const auto first = JobSecret::generate();
  const auto second = JobSecret::generate();
  ASSERT_TRUE(first.ok() && second.ok()) << first.status().message();
  EXPECT_NE(key_of(*first, "a"), key_of(*second, "a"));
}

TEST(JobSecret, TravelsThroughADescriptor) {
  auto secret = JobSecret::generate();
  auto [read_end, write_end] = make_pipe();
  ASSERT_TRUE(secret->write_to(write_end.get()).ok());
  ASSERT_EQ(::write(write_end.get(), "rest", 4), 4);
  const auto read_result = JobSecret::read_descriptor(read_end.get(), test_deadline());
  ASSERT_TRUE(read_result.ok()) << read_result.status().message();
  EXPECT_EQ(key_of(*read_result, "a"), key_of(*secret, "a"));
  std::array<char, 8> next_bytes{};
  EXPECT_EQ(::read(read_end.get(), next_bytes.data(), next_bytes.size()),
            4);  // the reader has taken only the secret
}

TEST(JobSecret, KeysDependOnTheSecretAndOnThePurpose) {
  const JobSecret secret = secret_of('s');
  EXPECT_EQ(key_of(secret, "a"), key_of(secret_of('s'), "a"));
  EXPECT_NE(key_of(secret, "a"), key_of(secret, "b"));
  EXPECT_NE(key_of(secret, "a"), key_of(secret_of('t'), "a"));
}

// HKDF-SHA256 without salt (RFC 5869), computed independently with Python's hmac module.
TEST(JobSecret, KeysAreThoseOfTheStandard) {
  const Bytes key = key_of(secret_of('s'), "a purpose");
  std::string text;
  for (const std::byte byte : key) text += format_text("{:02x}", static_cast<unsigned>(byte));
  EXPECT_EQ(text, "858dfba35cf16729c820f0526d1d6e27a59a36657dfbbf7ec10a782038a8eabb");
}

TEST(JobSecret, IsReadFromAPrivateFile) {
  const SecretFile file(std::string(kSecretBytes, 's'), 0600);
  const auto read_result = JobSecret::read_file(file.path);
  ASSERT_TRUE(read_result.ok()) << read_result.status().message();
  EXPECT_EQ(key_of(*read_result, "a"), key_of(secret_of('s'), "a"));
}

TEST(JobSecret, RejectsOtherFiles) {
  const auto error_of = [](const std::string& path) {
    const auto read_result = JobSecret::read_file(path);
    EXPECT_EQ(read_result.status().code(), StatusCode::kFixCall);
    return read_result.status().message();
  };
  const SecretFile readable_file(std::string(kSecretBytes, 's'), 0640);
  EXPECT_THAT(error_of(readable_file.path),
              HasSubstr("others can use it, because its mode is 0640"));
  const SecretFile short_secret("short", 0600);
  EXPECT_THAT(error_of(short_secret.path),
              HasSubstr("it has 5 bytes; it must be a regular file of"));
  EXPECT_THAT(error_of(short_secret.folder), HasSubstr("it is not a regular file"));
  EXPECT_THAT(error_of(short_secret.path + "x"), HasSubstr("cannot open the file"));
  if (::getuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  const SecretFile foreign_file(std::string(kSecretBytes, 's'), 0600);
  ASSERT_EQ(::chown(foreign_file.path.c_str(), 65534, 65534), 0);
  EXPECT_THAT(error_of(foreign_file.path), HasSubstr("it belongs to user id 65534"));
}

TEST(JobSecret, SaysIfTheStreamEndsOrStalls) {
  auto [read_end, write_end] = make_pipe();
  ASSERT_EQ(::write(write_end.get(), "half", 4), 4);
  const auto late_result =
      JobSecret::read_descriptor(read_end.get(), std::chrono::steady_clock::now());
  EXPECT_EQ(late_result.status().code(), StatusCode::kRetry);
  ASSERT_EQ(::write(write_end.get(), "half", 4), 4);
  write_end.reset();
  const auto cut_result = JobSecret::read_descriptor(read_end.get(), test_deadline());
  EXPECT_THAT(cut_result.status().message(), HasSubstr("ends after 4 of 32 bytes"));
  EXPECT_THAT(JobSecret::read_descriptor(read_end.get() + 1000, test_deadline()).status().message(),
              HasSubstr("read: Bad file descriptor"));
  EXPECT_THAT(JobSecret::generate()->write_to(read_end.get()).message(),
              HasSubstr("write: Bad file descriptor"));
}

TEST(JobSecret, IsErasedInForkedChildren) {
  const JobSecret secret = secret_of('s');
  const pid_t child = ::fork();
  if (child == 0) {
    SecretKey key;
    const bool is_gone = secret.derive({}, key).code() == StatusCode::kStop &&
                         secret.write_to(STDOUT_FILENO).code() == StatusCode::kStop;
    ::_exit(is_gone ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// The kernel shows the flags of each mapping: `lo` means that it is locked, `dd` that it is not in
// core dumps, and `wf` that it is erased in a forked child.
TEST(JobSecret, LiesInAProtectedPage) {
  const JobSecret secret = secret_of('s');
  std::ifstream maps("/proc/self/smaps");
  bool is_page_protected = false;
  for (std::string line; std::getline(maps, line);)
    is_page_protected =
        is_page_protected ||
        (line.starts_with("VmFlags:") && line.find(" lo ") != std::string::npos &&
         line.find(" dd ") != std::string::npos && line.find(" wf") != std::string::npos);
  EXPECT_TRUE(is_page_protected);
}

TEST(JobSecret, NeedsMemoryThatCanBeLocked) {
  const pid_t child = ::fork();  // root may always lock memory, so the child runs as another user
  if (child == 0) {
    const rlimit zero_limit{0, 0};
    if (::setrlimit(RLIMIT_MEMLOCK, &zero_limit) != 0 || (::getuid() == 0 && ::setuid(65534) != 0))
      ::_exit(2);
    const auto secret = JobSecret::generate();
    ::_exit(secret.status().message().find("ulimit -l") != std::string::npos ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace farandole
