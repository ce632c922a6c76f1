#include "remote/ssh_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>

namespace farandole {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> last_words(const std::vector<std::string>& words, std::size_t count) {
  return {words.end() - static_cast<std::ptrdiff_t>(count), words.end()};
}

bool has_pair(const std::vector<std::string>& words, const std::string& flag,
              const std::string& value) {
  for (std::size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i] == flag && words[i + 1] == value) return true;
  return false;
}

TEST(SshCommand, EndsWithTheHostAndOneQuotedCommand) {
  const auto command = ssh_command({.name = "hen", .user = ""}, {}, {"/a b/farandole", "agent"});
  EXPECT_EQ(command.front(), "ssh");
  EXPECT_EQ(last_words(command, 3),
            (std::vector<std::string>{"--", "hen", "exec '/a b/farandole' 'agent'"}));
  for (const char* flag : {"-p", "-i", "-l"}) EXPECT_THAT(command, Not(Contains(flag)));
}

TEST(SshCommand, AsksNothingAndTrustsNoUnknownHost) {
  const auto command = ssh_command({.name = "hen", .user = ""}, {}, {"x"});
  for (const char* setting :
       {"BatchMode=yes", "StrictHostKeyChecking=yes", "ForwardAgent=no", "ClearAllForwardings=yes"})
    EXPECT_TRUE(has_pair(command, "-o", setting)) << setting;
  const auto accepting_command =
      ssh_command({.name = "hen", .user = ""}, {.accepts_new_hosts = true}, {"x"});
  EXPECT_TRUE(has_pair(accepting_command, "-o", "StrictHostKeyChecking=accept-new"));
}

TEST(SshCommand, HasThePortTheKeyAndTheUser) {
  const auto command = ssh_command({.name = "fd00::1", .user = "alice"},
                                   {.port = 2222, .identity_file = "my key"}, {"x"});
  EXPECT_TRUE(has_pair(command, "-p", "2222"));
  EXPECT_TRUE(has_pair(command, "-i", "my key"));
  EXPECT_TRUE(has_pair(command, "-l", "alice"));
  EXPECT_EQ(last_words(command, 3), (std::vector<std::string>{"--", "fd00::1", "exec 'x'"}));
}

TEST(SshCommand, CanBeShownAsAShellReadsIt) {
  EXPECT_EQ(shell_text({"ssh", "-p", "22", "my key", "", "it's"}),
            "ssh -p 22 'my key' '' 'it'\\''s'");
}

TEST(SshCommand, AFailedStartHasAHint) {
  const auto command = ssh_command({.name = "hen", .user = ""}, {.port = 7}, {"/x", "agent"});
  const auto hint = [&](int code, const std::string& line) {
    return hint_for_failed_start(command, code, {"a banner", line});
  };
  EXPECT_THAT(hint(127, "sh: 1: exec: /x: not found"), HasSubstr("at the same path"));
  EXPECT_THAT(hint(255, "Host key verification failed."), HasSubstr("--ssh-accept-new-hosts"));
  EXPECT_THAT(hint(255, "root@hen: Permission denied (publickey)."),
              HasSubstr("--ssh-identity-file"));
  EXPECT_THAT(hint(255, "ssh: connect to host hen port 7: Connection refused"),
              HasSubstr("--ssh-port"));
  EXPECT_THAT(hint(255, "ssh: Could not resolve hostname hen: Name or service not known"),
              HasSubstr("/etc/hosts"));
  EXPECT_EQ(hint(255, "?"), "try `ssh -p 7 -- hen true`");
  EXPECT_EQ(hint(1, "?"), "");
  EXPECT_EQ(hint_for_failed_start(command, 3, {}), "try `ssh -p 7 -- hen true`");
}

std::string printed_by_shell(const std::string& word) {
  const std::string command = "printf %s " + quote_for_shell(word);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string text;
  for (int letter = 0; (letter = std::fgetc(pipe.get())) != EOF;) text += static_cast<char>(letter);
  return text;
}

TEST(SshCommand, AShellReadsAQuotedWordAsItIs) {
  std::mt19937 random(1);
  const std::string alphabet = "'\"\\$`!; \n*~#&|<>(){}[]-a";
  for (int i = 0; i < 100; ++i) {
    std::string word;
    for (auto length = random() % 12; length > 0; --length)
      word += alphabet[random() % alphabet.size()];
    EXPECT_EQ(printed_by_shell(word), word);
  }
}

}  // namespace
}  // namespace farandole
