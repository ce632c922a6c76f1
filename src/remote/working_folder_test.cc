#include "remote/working_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace farandole {
namespace {

namespace files = std::filesystem;

// A test in a folder `real`, to which the link `link` leads.
class WorkingFolderTest : public ::testing::Test {
 public:
  WorkingFolderTest() : original_folder_(files::current_path()) {
    std::string name = ::testing::TempDir() + "working_folder_XXXXXX";
    folder_ = files::canonical(::mkdtemp(name.data()));
    files::create_directory(folder_ / "real");
    files::create_directory_symlink(folder_ / "real", folder_ / "link");
    files::current_path(folder_ / "link");
    const char* shell = std::getenv("PWD");
    shell_folder_ = shell != nullptr ? shell : "";
  }
  ~WorkingFolderTest() override {
    ::setenv("PWD", shell_folder_.c_str(), 1);
    files::current_path(original_folder_);
    files::remove_all(folder_);
  }

 protected:
  files::path original_folder_;
  files::path folder_;
  std::string shell_folder_;
};

TEST_F(WorkingFolderTest, IsThePathThatTheShellShows) {
  ::setenv("PWD", (folder_ / "link").c_str(), 1);
  EXPECT_EQ(working_folder().value(), folder_ / "link");
}

TEST_F(WorkingFolderTest, IsThePathOfTheKernelIfTheShellHasAnotherFolder) {
  for (const char* other : {"/", "link", "/does/not/exist"}) {
    ::setenv("PWD", other, 1);
    EXPECT_EQ(working_folder().value(), folder_ / "real") << other;
  }
  ::unsetenv("PWD");
  EXPECT_EQ(working_folder().value(), folder_ / "real");
}

TEST_F(WorkingFolderTest, AFolderThatWasRemovedIsAnError) {
  files::remove(folder_ / "real");
  const auto result = working_folder();
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(result.status().message(),
              ::testing::HasSubstr("start the job in a folder that exists"));
}

}  // namespace
}  // namespace farandole
