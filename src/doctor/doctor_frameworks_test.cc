#include "doctor/doctor_frameworks.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/format.h"
#include "doctor/checks_in_test.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

namespace files = std::filesystem;

// Returns the path of this machine's Python, or nothing. The python3 in PATH may be a script that
// does not work with another PATH.
std::string real_python() {
  const char* command = "python3 -c 'import sys; print(sys.executable, end=\"\")' 2>/dev/null";
  FILE* const output = ::popen(command, "r");
  std::array<char, 4096> path{};
  const std::size_t length = std::fread(path.data(), 1, path.size(), output);
  ::pclose(output);
  return {path.data(), length};
}

// A folder with programs and Python packages that a check finds instead of those of the machine.
class DoctorFrameworksTest : public ::testing::Test {
 public:
  DoctorFrameworksTest() {
    std::string name = ::testing::TempDir() + "doctor_frameworks_XXXXXX";
    folder_ = ::mkdtemp(name.data());
    python_ = real_python();
  }
  ~DoctorFrameworksTest() override { files::remove_all(folder_); }

 protected:
  void write(const std::string& name, const std::string& text) const {
    files::create_directories(files::path(folder_ + "/" + name).parent_path());
    std::ofstream(folder_ + "/" + name) << text;
  }

  void make_program(const std::string& name, const std::string& script) const {
    write(name, "#!/bin/sh\n" + script + "\n");
    files::permissions(folder_ + "/" + name, files::perms::owner_all);
  }

  void make_package(const std::string& name, const std::string& version) const {
    write(format_text("site/{}-{}.dist-info/METADATA", name, version),
          format_text("Metadata-Version: 2.1\nName: {}\nVersion: {}\n", name, version));
  }

  // A Python that finds packages only in the folder `site`.
  void make_python() const { make_program("python3", format_text("exec '{}' -S \"$@\"", python_)); }

  Finding finding(const std::string& name) const {
    return finding_named(name, framework_checks(), [this] {
      ::setenv("PATH", folder_.c_str(), 1);
      ::setenv("PYTHONPATH", (folder_ + "/site").c_str(), 1);
    });
  }

  std::string folder_;
  std::string python_;
};

constexpr std::array<const char*, 7> kFrameworkNames{"torch", "tensorflow", "keras", "jax",
                                                     "mxnet", "pyspark",    "ray"};

TEST_F(DoctorFrameworksTest, AMissingPythonIsReportedAsNotInstalled) {
  const Finding python = finding("python3");
  EXPECT_EQ(python.health, Health::kNotInstalled);
  EXPECT_EQ(python.found, "python3 is neither in the folder of this command nor in PATH");
  EXPECT_THAT(python.advice, HasSubstr("activate its environment"));
  for (const char* name : kFrameworkNames) {
    EXPECT_EQ(finding(name).health, Health::kNotInstalled);
    EXPECT_EQ(finding(name).found, "python3 was not found");
  }
}

TEST_F(DoctorFrameworksTest, ABrokenPythonSaysHowItFailed) {
  const std::vector<std::pair<const char*, const char*>> scripts{
      {"echo first >&2; echo no such thing >&2; exit 3", "python3: exit code 3: no such thing"},
      {"kill -KILL $$", "python3: killed by SIGKILL"},
      {"echo hello", "python3: it does not answer as Python does"}};
  for (const auto& [script, found] : scripts) {
    make_program("python3", script);
    for (const char* name : {"python3", "farandole for Python", "ray"}) {
      EXPECT_EQ(finding(name).health, Health::kDoesNotWork);
      EXPECT_EQ(finding(name).found, found);
    }
  }
}

TEST_F(DoctorFrameworksTest, FrameworksAreFoundWithTheirVersions) {
  if (python_.empty()) GTEST_SKIP() << "there is no python3 in PATH";
  make_python();
  make_package("torch", "2.99");
  make_package("tensorflow-cpu", "3.0");
  EXPECT_EQ(finding("python3").health, Health::kWorks);
  EXPECT_THAT(finding("python3").found, StartsWith(finding("python3").version + " at "));
  const Finding package = finding("farandole for Python");
  EXPECT_EQ(package.health, Health::kNotInstalled);
  EXPECT_EQ(package.found, "this Python has no package farandole");
  EXPECT_THAT(package.advice, HasSubstr("-m pip"));
  EXPECT_EQ(finding("torch").health, Health::kLimited);
  EXPECT_EQ(finding("torch").found, "2.99: this Python has no package farandole");
  EXPECT_EQ(finding("torch").version, "2.99");
  EXPECT_EQ(finding("tensorflow").version, "3.0");
  EXPECT_EQ(finding("jax").health, Health::kNotInstalled);
  EXPECT_EQ(finding("jax").found, "not in this Python");
}

TEST_F(DoctorFrameworksTest, ThePackageSaysWhichFrontendsItHas) {
  if (python_.empty()) GTEST_SKIP() << "there is no python3 in PATH";
  make_python();
  for (const char* name : {"torch", "jax"}) make_package(name, "2.99");
  make_package("farandole", "9.9");
  write("site/farandole/__init__.py", "");
  write("site/farandole/torch/__init__.py", "");
  write("site/farandole/jobs/__init__.py", "");  // not a frontend
  const Finding package = finding("farandole for Python");
  EXPECT_EQ(package.health, Health::kWorks);
  EXPECT_EQ(package.found, "9.9, with frontends: torch");
  EXPECT_EQ(package.version, "9.9");
  EXPECT_EQ(finding("torch").health, Health::kWorks);
  EXPECT_EQ(finding("torch").found, "2.99: import farandole.torch");
  EXPECT_EQ(finding("jax").health, Health::kLimited);
  EXPECT_EQ(finding("jax").found, "2.99: there is no frontend for it yet");
}

TEST_F(DoctorFrameworksTest, APackageThatFailsToImportSaysWhy) {
  if (python_.empty()) GTEST_SKIP() << "there is no python3 in PATH";
  make_python();
  make_package("farandole", "9.9");
  write("site/farandole/__init__.py", "1 / 0");
  const Finding package = finding("farandole for Python");
  EXPECT_EQ(package.health, Health::kDoesNotWork);
  EXPECT_EQ(package.found, "9.9; import farandole: ZeroDivisionError: division by zero");
  EXPECT_EQ(package.advice, "install it again");
}

TEST_F(DoctorFrameworksTest, WithoutMemoryFilesNoProgramRuns) {
  make_program("python3", "echo hello");
  const Finding python = finding_named("python3", framework_checks(),
                                       [] { reject_system_call(SYS_memfd_create, ENOSYS); });
  EXPECT_EQ(python.health, Health::kDoesNotWork);
  EXPECT_EQ(python.found, "python3: exit code 126: memfd_create: Function not implemented");
}

TEST_F(DoctorFrameworksTest, TheVersionOfPySpyIsShown) {
  EXPECT_EQ(finding("py-spy").health, Health::kNotInstalled);
  EXPECT_THAT(finding("py-spy").advice, HasSubstr("pip install py-spy"));
  make_program("py-spy", "echo \"py-spy 9.9.9\"");
  EXPECT_EQ(finding("py-spy").health, Health::kWorks);
  EXPECT_EQ(finding("py-spy").found, "py-spy 9.9.9");
  make_program("py-spy", "echo cannot read >&2; exit 1");
  EXPECT_EQ(finding("py-spy").health, Health::kDoesNotWork);
  EXPECT_EQ(finding("py-spy").found, "py-spy: exit code 1: cannot read");
}

// If the process has already loaded a library with this name, the check finds the loaded library.
class DoctorLibrariesTest : public DoctorFrameworksTest {
 protected:
  static bool has_compiler() { return std::system("cc --version >/dev/null 2>&1") == 0; }

  Finding finding_with_library(const std::string& check, const std::string& name,
                               const std::string& code) const {
    write("library.c", code);
    const std::string library = folder_ + "/library.so";
    const std::string command = format_text(
        "cc -shared -fPIC -Wl,-soname,{} -o '{}' '{}/library.c'", name, library, folder_);
    CHECK(std::system(command.c_str()) == 0, "the compiler works");
    return finding_named(check, framework_checks(),
                         [&] { ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL); });
  }
};

TEST_F(DoctorLibrariesTest, TheVersionsOfCudaAndNcclAreShown) {
  if (!has_compiler()) GTEST_SKIP() << "there is no C compiler";
  const Finding cuda =
      finding_with_library("CUDA driver", "libcuda.so.1",
                           "int cuDriverGetVersion(int *number) { *number = 12040; return 0; }");
  EXPECT_EQ(cuda.health, Health::kWorks);
  EXPECT_EQ(cuda.found, "libcuda.so.1: version 12.4; tensors on GPUs go through host memory");
  const Finding nccl = finding_with_library(
      "NCCL", "libnccl.so.2", "int ncclGetVersion(int *number) { *number = 22005; return 0; }");
  EXPECT_EQ(nccl.health, Health::kWorks);
  EXPECT_EQ(nccl.found, "libnccl.so.2: version 2.20.5; tensors on GPUs go through host memory");
}

TEST_F(DoctorLibrariesTest, ALibraryThatFailsSaysWhichCall) {
  if (!has_compiler()) GTEST_SKIP() << "there is no C compiler";
  const Finding cuda = finding_with_library("CUDA driver", "libcuda.so.1",
                                            "int cuDriverGetVersion(int *number) { return 100; }");
  EXPECT_EQ(cuda.health, Health::kDoesNotWork);
  EXPECT_EQ(cuda.found,
            "libcuda.so.1 loads, but cuDriverGetVersion fails; tensors on GPUs go through host "
            "memory");
}

}  // namespace
}  // namespace farandole
