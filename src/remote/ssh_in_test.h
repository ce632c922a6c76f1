// A program in place of ssh, for tests without other hosts.
#pragma once

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/check.h"

namespace farandole {

// While an object lives, the `ssh` in PATH ignores its options and runs the command in a shell on
// this machine. set_host_script() changes what this `ssh` does for one host.
class SshInTest {
 public:
  SshInTest() {
    std::string name = "/tmp/farandole_ssh_XXXXXX";
    CHECK(::mkdtemp(name.data()) != nullptr, "a test can make a folder");
    folder_ = name;
    const char* path = std::getenv("PATH");
    original_path_ = path != nullptr ? path : "";
    ::setenv("PATH", (folder_ + ":" + original_path_).c_str(), 1);
    write("ssh", R"(#!/bin/sh
echo "$@" >>"$(dirname "$0")/arguments"
while [ "$1" != -- ]; do shift; done
[ ! -e "$(dirname "$0")/answers/$2" ] || . "$(dirname "$0")/answers/$2"
exec sh -c "$3"
)");
    std::filesystem::permissions(folder_ + "/ssh", std::filesystem::perms::owner_all);
  }
  ~SshInTest() {
    ::setenv("PATH", original_path_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }
  SshInTest(const SshInTest&) = delete;
  SshInTest& operator=(const SshInTest&) = delete;

  // `script` runs before the command, and gets the command as its third argument. If the script
  // ends the shell, the command does not run.
  void set_host_script(const std::string& host, const std::string& script) const {
    write("answers/" + host, script + "\n");
  }
  // Makes this `ssh` fail for one host, as the real ssh fails if it cannot connect.
  void fail(const std::string& host, const std::string& message) const {
    set_host_script(host, "echo '" + message + "' >&2; exit 255");
  }
  // A folder for the files of a test. It is removed at the end.
  const std::string& folder() const { return folder_; }
  // The arguments of all calls of ssh, in one line for each call.
  std::string arguments() const {
    std::ifstream file(folder_ + "/arguments");
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = folder_ + "/" + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  std::string folder_;
  std::string original_path_;
};

}  // namespace farandole
