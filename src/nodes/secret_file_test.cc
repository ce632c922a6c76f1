#include "nodes/secret_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/no_descriptors_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

class SecretFile : public ::testing::Test {
 protected:
  SecretFile() {
    std::string pattern = ::testing::TempDir() + "secretXXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/secret";
  }
  ~SecretFile() override { std::filesystem::remove_all(folder_); }

  std::string content() const {
    std::ostringstream bytes;
    bytes << std::ifstream(path_, std::ios::binary).rdbuf();
    return bytes.str();
  }

  std::string folder_;
  std::string path_;
};

std::string read_all(const Descriptor& from) {
  std::array<char, 2 * kSecretBytes> bytes{};
  const ssize_t count = ::read(from.get(), bytes.data(), bytes.size());
  return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))};
}

TEST_F(SecretFile, CanBeUsedByItsOwnerOnly) {
  ASSERT_TRUE(make_secret_file(path_).ok());
  struct stat file_status{};
  ASSERT_EQ(::stat(path_.c_str(), &file_status), 0);
  EXPECT_EQ(file_status.st_mode & 07777U, 0600U);
  EXPECT_EQ(content().size(), kSecretBytes);
  EXPECT_TRUE(JobSecret::read_file(path_).ok());
}

TEST_F(SecretFile, IsNeverReplaced) {
  ASSERT_TRUE(make_secret_file(path_).ok());
  const std::string original_content = content();
  const Status second_status = make_secret_file(path_);
  EXPECT_EQ(second_status.code(), StatusCode::kFixCall);
  EXPECT_THAT(second_status.message(), HasSubstr("File exists"));
  EXPECT_EQ(content(), original_content);
  EXPECT_THAT(make_secret_file(folder_ + "/no/such").message(), HasSubstr("No such file"));
}

TEST_F(SecretFile, EachWorkerReadsItFromTheStart) {
  ASSERT_TRUE(make_secret_file(path_).ok());
  auto secret = JobSecret::read_file(path_);
  ASSERT_TRUE(secret.ok());
  const auto shared_secret = share_secret(*secret);
  ASSERT_TRUE(shared_secret.ok()) << shared_secret.status().message();
  for (int worker = 0; worker < 3; ++worker) {
    const auto worker_secret = secret_for_worker(*shared_secret);
    ASSERT_TRUE(worker_secret.ok()) << worker_secret.status().message();
    EXPECT_EQ(read_all(*worker_secret), content());
    EXPECT_EQ(::write(worker_secret->get(), "x", 1), -1);
    EXPECT_NE(::fcntl(worker_secret->get(), F_GETFD) & FD_CLOEXEC, 0);
  }
  EXPECT_EQ(::pwrite(shared_secret->get(), "x", 1, 0), -1);
  EXPECT_NE(::ftruncate(shared_secret->get(), 0), 0);
}

TEST_F(SecretFile, IsSharedInADescriptor) {
  const auto secret = JobSecret::generate();
  ASSERT_TRUE(secret.ok()) << secret.status().message();
  const auto shared_secret = share_secret(*secret);
  ASSERT_TRUE(shared_secret.ok()) << shared_secret.status().message();
  const std::string beginning = "cannot hand the job's secret to the workers: ";
  const NoFreeDescriptors no_descriptors;
  EXPECT_EQ(share_secret(*secret).status(),
            Status::stop(beginning + "memfd_create: Too many open files"));
  EXPECT_EQ(secret_for_worker(*shared_secret).status(),
            Status::stop(beginning + "open: Too many open files"));
}

}  // namespace
}  // namespace farandole
