#include "output/rank_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace farandole {
namespace {

using ::testing::HasSubstr;

class RankFilesTest : public ::testing::Test {
 protected:
  RankFilesTest() {
    std::string name = ::testing::TempDir() + "rank_files_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~RankFilesTest() override { std::filesystem::remove_all(folder_); }

  std::string content(const std::string& name) const {
    std::ifstream file(folder_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string folder_;
};

TEST_F(RankFilesTest, WithoutAFolderNothingIsWritten) {
  RankFiles no_files;
  EXPECT_EQ(no_files.write(3, 1, "text"), std::nullopt);
}

TEST_F(RankFilesTest, ContainTheOutputOfEachStream) {
  auto files = RankFiles::create(folder_ + "/made/on/demand", 11);
  ASSERT_TRUE(files.ok()) << files.status().message();
  EXPECT_EQ(files->write(3, 0, "no line end"), std::nullopt);
  EXPECT_EQ(files->write(3, 0, std::string_view("\r\0\xff", 3)), std::nullopt);
  EXPECT_EQ(files->write(10, 1, "error\n"), std::nullopt);
  EXPECT_EQ(content("made/on/demand/rank.03/stdout"), std::string("no line end\r\0\xff", 14));
  EXPECT_EQ(content("made/on/demand/rank.03/stderr"), "");
  EXPECT_EQ(content("made/on/demand/rank.10/stderr"), "error\n");
}

TEST_F(RankFilesTest, RankNumbersHaveTheWidthOfTheLargest) {
  ASSERT_TRUE(RankFiles::create(folder_, 10).ok());
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/rank.9/stdout"));
  ASSERT_TRUE(RankFiles::create(folder_, 101).ok());
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/rank.009/stdout"));
}

TEST_F(RankFilesTest, OldContentsAreReplaced) {
  for (const char* text : {"the first job", "second"}) {
    auto files = RankFiles::create(folder_, 1);
    EXPECT_EQ(files->write(0, 0, text), std::nullopt);
  }
  EXPECT_EQ(content("rank.0/stdout"), "second");
}

TEST_F(RankFilesTest, AFolderThatCannotBeMadeIsExplained) {
  std::ofstream(folder_ + "/file") << "in the way";
  const auto files = RankFiles::create(folder_ + "/file", 1);
  EXPECT_EQ(files.status().code(), StatusCode::kFixCall);
  EXPECT_EQ(files.status().message(), "--output-dir: cannot make the folder `" + folder_ +
                                          "/file/rank.0`: Not a directory; nothing was started");
}

TEST_F(RankFilesTest, OnlyRegularFilesAreAccepted) {
  std::filesystem::create_directories(folder_ + "/rank.0/stdout");
  EXPECT_THAT(RankFiles::create(folder_, 1).status().message(), HasSubstr("Is a directory"));
  std::filesystem::remove(folder_ + "/rank.0/stdout");
  ASSERT_EQ(::mkfifo((folder_ + "/rank.0/stdout").c_str(), 0600), 0);
  EXPECT_THAT(RankFiles::create(folder_, 1).status().message(), HasSubstr("rank.0/stdout`"));
  std::filesystem::remove(folder_ + "/rank.0/stdout");
  std::filesystem::create_symlink("/dev/null", folder_ + "/rank.0/stdout");
  EXPECT_THAT(RankFiles::create(folder_, 1).status().message(),
              HasSubstr("it is not a regular file"));
}

TEST_F(RankFilesTest, AFullDiskIsReportedOnce) {
  auto files = RankFiles::create(folder_, 2);
  ASSERT_TRUE(files.ok());
  rlimit original_limit{};
  ::getrlimit(RLIMIT_FSIZE, &original_limit);
  const rlimit small_limit{4, original_limit.rlim_max};
  auto* handler = ::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small_limit);
  const auto complaint = files->write(1, 0, "too long");
  const auto second_complaint = files->write(1, 0, "more");
  const auto third_complaint = files->write(0, 1, "also too long");
  ::setrlimit(RLIMIT_FSIZE, &original_limit);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(complaint.value_or(""),
            "cannot write `" + folder_ +
                "/rank.1/stdout` any more: File too large; it ends here, and so may others in `" +
                folder_ + "`; the job goes on");
  EXPECT_EQ(second_complaint, std::nullopt);
  EXPECT_EQ(third_complaint, std::nullopt);
  EXPECT_EQ(files->write(0, 0, "fine"), std::nullopt);
  EXPECT_EQ(content("rank.0/stdout"), "fine");
  EXPECT_EQ(content("rank.1/stdout"), "too ");
}

TEST_F(RankFilesTest, ARemovedFileIsReported) {
  auto files = RankFiles::create(folder_, 1);
  ASSERT_TRUE(files.ok());
  std::filesystem::remove(folder_ + "/rank.0/stderr");
  EXPECT_THAT(files->write(0, 1, "text").value_or(""), HasSubstr("somebody has removed the file"));
  EXPECT_EQ(files->write(0, 1, "text"), std::nullopt);
}

}  // namespace
}  // namespace farandole
