#include "remote/host_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/format.h"
#include "network/tcp/host_name.h"
#include "nodes/node_layout.h"

namespace farandole {
namespace {

using ::testing::HasSubstr;

// The hosts in one line, as in "alice@hen:2 owl:1", or the error text.
std::string text_of(const Result<std::vector<HostEntry>>& hosts) {
  if (!hosts.ok()) {
    EXPECT_EQ(hosts.status().code(), StatusCode::kFixCall);
    return hosts.status().message();
  }
  std::vector<std::string> texts;
  for (const HostEntry& host : *hosts)
    texts.push_back(
        format_text("{}{}{}:{}", host.user, host.user.empty() ? "" : "@", host.name, host.slots));
  return join_text(texts, " ");
}

std::string hosts_of(std::string_view text) { return text_of(parse_hosts(text)); }

std::string hosts_of_file(std::string_view text) {
  return text_of(parse_hostfile(text, "my.hosts"));
}

std::string repeated(const std::string& text, int count) {
  std::string repeated_text;
  for (int i = 0; i < count; ++i) repeated_text += text;
  return repeated_text;
}

// "h0,h1,h2,"
std::string different_hosts(int count, char separator) {
  std::string text;
  for (int i = 0; i < count; ++i) text += format_text("h{}{}", i, separator);
  return text;
}

struct Case {
  std::string text;
  std::string expected;  // the hosts, or the important part of the error text
};

TEST(HostList, ReadsTheValueOfTheFlag) {
  const std::string longest_user(32, 'u');
  const std::vector<Case> cases{
      {"hen", "hen:1"},
      {"hen:2,owl:4", "hen:2 owl:4"},
      {"alice@hen:2,bob@owl", "alice@hen:2 bob@owl:1"},
      {"[fd00::1]:4,[::1]", "fd00::1:4 ::1:1"},
      {"a_B.c-9@[fd00::1]:4", "a_B.c-9@fd00::1:4"},
      {longest_user + "@hen", longest_user + "@hen:1"},
      {"10.0.0.1:2,10.0.0.2", "10.0.0.1:2 10.0.0.2:1"},
      {"node-1.example.org:65536", "node-1.example.org:65536"},
      {" hen:2, owl:4\t", "hen:2 owl:4"},
      {"hen:2,owl:4,hen:3", "hen:5 owl:4"},
      {"hen,alice@hen,hen,alice@hen:2", "hen:2 alice@hen:3"},
      {"hen:1,hen:65535", "hen:65536"},
      {repeated("hen,", 5000) + "hen", "hen:5001"},
  };
  for (const Case& entry : cases) EXPECT_EQ(hosts_of(entry.text), entry.expected) << entry.text;
}

TEST(HostList, SaysWhatIsWrongInTheValueOfTheFlag) {
  using namespace std::string_literals;
  const std::vector<Case> cases{
      {"", "-H \"\" names no host; write a list of hosts, such as hen:2,owl:4"},
      {" ", "-H \" \" names no host"},
      {"a:2,,b:2", "-H \"a:2,,b:2\": entry 2 is empty; remove the extra comma"},
      {"a:2, ,b:2", "entry 2 is empty"},
      {",a", "entry 1 is empty"},
      {"a,", "entry 2 is empty"},
      {"hen:2,owl:x", "-H, entry 2: \"owl:x\": the number of slots is \"x\"; it must be a whole"},
      {"hen:", "the number of slots is \"\"; it must be a whole number from 1 to 65536"},
      {"hen:0", "the number of slots is \"0\""},
      {"hen:-1", "the number of slots is \"-1\""},
      {"hen:+1", "the number of slots is \"+1\""},
      {"hen:2.5", "the number of slots is \"2.5\""},
      {"hen: 2", "the number of slots is \" 2\""},
      {"hen:65537", "the number of slots is \"65537\"; it must be a whole number from 1 to 65536"},
      {"hen:99999999999999999999", "the number of slots is \"99999999999999999999\""},
      {"hen:2\x1b[1m", "the number of slots is \"2\\x1b[1m\""},
      {"hen:65536,owl,hen",
       "-H, entry 3: \"hen\": the host is listed more than once, and its "
       "slots add up to 65537; a host has at most 65536 slots"},
      {"hen 2", "\"hen 2\" is neither a host name nor an IP address; write HOST or HOST:SLOTS"},
      {":2", "\"\" is neither a host name nor an IP address"},
      {"hen:2:3", "\"hen:2\" is neither a host name"},
      {"-oProxyCommand=x", "\"-oProxyCommand=x\" is neither a host name"},
      {"hen;reboot:2", "\"hen;reboot\" is neither a host name"},
      {"$(reboot)", "\"$(reboot)\" is neither a host name"},
      {"hen\nowl", "\"hen\\x0aowl\" is neither a host name"},
      {"10.0.0.1\0;x:2"s, "\"10.0.0.1\\x00;x\" is neither a host name"},
      {"[fd00::1", "\"[fd00:\" is neither a host name"},
      {"[fd00::1]x:4", "\"[fd00::1]x\" is neither a host name"},
      {"[fd00::1]:4:5", "\"[fd00::1]:4\" is neither a host name"},
      {"[]:4", "\"[]\" is neither a host name"},
      {"[hen]:4", "only an IPv6 address has brackets; remove them"},
      {"fd00::1:4", "\"fd00::1:4\": an IPv6 address needs brackets; write it as in [fd00::1]:4"},
      {"fd00::1", "an IPv6 address needs brackets"},
      {"::1:2", "an IPv6 address needs brackets"},
      {"fd00::1:65536", "an IPv6 address needs brackets"},
      {"alice@fd00::1:4", "an IPv6 address needs brackets"},
      {"@hen", "the user name is \"\"; it must have 1 to 32 characters"},
      {"-l@hen",
       "the user name is \"-l\"; it must have 1 to 32 characters, which are letters, "
       "digits, '_', '.' and '-', and it must not begin with '-'"},
      {"a;b@hen", "the user name is \"a;b\""},
      {"a b@hen", "the user name is \"a b\""},
      {"a@b@hen", "the user name is \"a@b\""},
      {"a\0b@hen"s, "the user name is \"a\\x00b\""},
      {repeated("u", 33).append("@hen"), "the user name is \"uuu"},
      {"alice@", "\"\" is neither a host name"},
      {different_hosts(kNodesMax, ',') + "owl",
       "-H, entry 4097: \"owl\": this is host number 4097; a job has at most 4096 hosts"},
  };
  for (const Case& entry : cases)
    EXPECT_THAT(hosts_of(entry.text), HasSubstr(entry.expected)) << entry.text;
}

TEST(HostList, ReadsAHostfile) {
  const std::vector<Case> cases{
      {"hen", "hen:1"},
      {"hen:2\nowl:4\n", "hen:2 owl:4"},
      {"hen slots=2\nowl slots=4", "hen:2 owl:4"},
      {"hen slots = 2\nowl max_slots= 5 slots =4", "hen:2 owl:4"},
      {"hen slots=2 max_slots=4\nowl max-slots=4 slots=4", "hen:2 owl:4"},
      {"hen max_slots=1\nowl:2 max_slots=2", "hen:1 owl:2"},
      {"hen:2\n[fd00::1]:3\nalice@owl slots=4\nemu\n[::1] slots=5",
       "hen:2 fd00::1:3 alice@owl:4 emu:1 ::1:5"},
      {"# all our birds\n\n  hen:2  # the old one\n\t\nowl\t slots=4#the new one\n#",
       "hen:2 owl:4"},
      {"hen:2\r\n\r\n# birds\r\nowl slots=4\r\nemu\r", "hen:2 owl:4 emu:1"},
      {"hen\nhen\nowl slots=2\nhen:3\n", "hen:5 owl:2"},
      {repeated("hen\n", 5000), "hen:5000"},
  };
  for (const Case& entry : cases)
    EXPECT_EQ(hosts_of_file(entry.text), entry.expected) << entry.text;
}

TEST(HostList, SaysWhatIsWrongInAHostfile) {
  using namespace std::string_literals;
  const std::vector<Case> cases{
      {"", "my.hosts names no host; write one host per line, such as \"hen slots=2\""},
      {"\n# hen\n \r\n", "my.hosts names no host"},
      {"# birds\nhen 2",
       "my.hosts, line 2: \"hen 2\": \"slots=\" is missing before the number of "
       "slots; write \"hen:2\" or \"hen slots=2\""},
      {"alice@hen 2", "write \"alice@hen:2\" or \"alice@hen slots=2\""},
      {"hen:2 2", "\"2\" is neither slots=N nor max_slots=N; write a line such as"},
      {"hen slots 2", "\"slots\" is neither slots=N nor max_slots=N"},
      {"hen cpus=2", "\"cpus=2\" is neither slots=N nor max_slots=N"},
      {"hen owl", "\"owl\" is neither slots=N nor max_slots=N"},
      {"hen slots=", "the number of slots is \"\"; it must be a whole number from 1 to 65536"},
      {"hen\nowl slots=0", "my.hosts, line 2: \"owl slots=0\": the number of slots is \"0\""},
      {"hen slots=2x", "the number of slots is \"2x\""},
      {"hen slots=65537", "the number of slots is \"65537\""},
      {"hen slots=2 slots=2", "the number of slots is given twice; give it once"},
      {"hen:2 slots=2", "the number of slots is given twice"},
      {"hen max_slots=2 max-slots=2", "max_slots is given twice; give it once"},
      {"hen slots=4 max_slots=2", "max_slots is \"2\"; it must be a whole number from 4 to"},
      {"hen max-slots=2 slots=4", "max_slots is \"2\"; it must be a whole number from 4 to"},
      {"hen slots=4 max_slots=many", "max_slots is \"many\""},
      {"hen max_slots=", "max_slots is \"\""},
      {"fd00::1 slots=4", "an IPv6 address needs brackets"},
      {"fd00::1:4", "an IPv6 address needs brackets"},
      {"-oProxyCommand=x slots=2", "\"-oProxyCommand=x\" is neither a host name"},
      {"-l@hen slots=2", "the user name is \"-l\""},
      {"hen:2,owl:4", "\"hen:2,owl\" is neither a host name"},
      {"hen\rowl", "\"hen\\x0dowl\" is neither a host name"},
      {"hen\0 slots=2"s, "\"hen\\x00\" is neither a host name"},
      {"hen slots=40000\n\nhen slots=40000",
       "my.hosts, line 3: \"hen slots=40000\": the host is "
       "listed more than once, and its slots add up to 80000"},
      {different_hosts(kNodesMax + 1, '\n'),
       "my.hosts, line 4097: \"h4096\": this is host number 4097; a job has at most 4096 hosts"},
  };
  for (const Case& entry : cases)
    EXPECT_THAT(hosts_of_file(entry.text), HasSubstr(entry.expected)) << entry.text;
}

TEST(HostList, AcceptsTheLargestNumberOfHosts) {
  EXPECT_EQ(parse_hostfile(different_hosts(kNodesMax, '\n'), "my.hosts")->size(), 4096U);
}

TEST(HostList, ShowsTheBeginningOfLongText) {
  const std::string text = hosts_of(repeated("x", 100'000).append(",,hen"));
  EXPECT_THAT(text, HasSubstr("xxx…"));
  EXPECT_LT(text.size(), 1000U);
}

TEST(HostList, EscapesThePathOfTheHostfile) {
  for (const std::string content : {"", "hen 2"})
    EXPECT_THAT(text_of(parse_hostfile(content, "a\nb")), HasSubstr("a\\x0ab")) << content;
}

struct Assignment {
  std::string hosts;
  std::optional<int> workers;
  std::string expected;
};

std::string text_of(const Assignment& entry) {
  return text_of(assign_workers(*parse_hosts(entry.hosts), entry.workers));
}

TEST(HostList, AssignsWorkersInOrder) {
  const std::vector<Assignment> cases{
      {"hen:2,owl:4", {}, "hen:2 owl:4"},
      {"hen:2,owl:4", 6, "hen:2 owl:4"},
      {"hen:2,owl:4", 5, "hen:2 owl:3"},
      {"hen:2,owl:4", 2, "hen:2"},
      {"hen:2,owl:4", 1, "hen:1"},
      {"alice@hen:2,[fd00::1]:4", 3, "alice@hen:2 fd00::1:1"},
      {"hen:65536,owl:65536", 65536, "hen:65536"},
      {"hen:65535,owl:65536", 65536, "hen:65535 owl:1"},
  };
  for (const Assignment& entry : cases) EXPECT_EQ(text_of(entry), entry.expected) << entry.hosts;
}

TEST(HostList, TooManyWorkersAreAnError) {
  const std::vector<Assignment> cases{
      {"hen:2,owl:4", 7,
       "-n is 7, but the hosts have only 6 slots; lower -n, or give more hosts or slots"},
      {"hen", 2, "-n is 2, but the hosts have only 1 slot; lower -n"},
      {"hen:65536,owl:1", {}, "this job would have 65537 workers, but a job has at most 65536"},
      {"hen:65536,owl:2", 65537, "this job would have 65537 workers, but a job has at most 65536"},
  };
  for (const Assignment& entry : cases)
    EXPECT_THAT(text_of(entry), HasSubstr(entry.expected)) << entry.hosts;
}

TEST(HostListDeathTest, AJobHasWorkers) {
  EXPECT_DEATH((void)assign_workers({{"hen", "", 1}}, 0), "only positive numbers");
}

std::string random_text(std::mt19937& random) {
  using namespace std::string_literals;
  // Some pieces are more frequent than others, so that more texts are accepted.
  static const std::vector<std::string> pieces{
      "hen",         "hen",      "owl", "owl",    "alice@", "alice@", "@", "-oProxyCommand=",
      "-",           ".",        ";",   ":",      ":2",     ",",      ",", " ",
      "\n",          "\r\n",     "#",   "\0"s,    "$(",     ")",      "`", "'",
      "\"",          "[",        "]",   "[::1]",  "%",      "|",      "&", " slots=",
      " max_slots=", "\xff",     "\\",  "fe80::", "%lo",    "\t",     "3", "~",
      "/",           "10.0.0.1", "="};
  std::string text;
  for (auto left = random() % 6; left < 6; ++left) text += pieces[random() % pieces.size()];
  return text;
}

bool is_user(const std::string& user) {
  const std::string letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  return user.size() <= 32 && !user.starts_with('-') &&
         user.find_first_not_of(letters + "0123456789_.-") == std::string::npos;
}

TEST(HostList, AcceptsOnlyNamesThatAreSafeInACommand) {
  using namespace std::string_view_literals;
  std::mt19937 random(1);
  int accepted_texts = 0;
  int hosts_with_user = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = random_text(random);
    for (const auto& hosts : {parse_hosts(text), parse_hostfile(text, "my.hosts")}) {
      if (!hosts.ok()) continue;
      ++accepted_texts;
      ASSERT_FALSE(hosts->empty()) << text;
      for (const HostEntry& host : *hosts) {
        ASSERT_TRUE(check_host_name(host.name).ok()) << text;
        ASSERT_FALSE(host.name.starts_with('-')) << text;
        ASSERT_EQ(host.name.find_first_of("\0\n\r\t ;$()`'\"[]|&~/\\#=,@"sv), std::string::npos)
            << text;
        ASSERT_TRUE(is_user(host.user)) << text;
        ASSERT_TRUE(host.slots >= 1 && host.slots <= kWorkersMax) << text;
        hosts_with_user += host.user.empty() ? 0 : 1;
      }
    }
  }
  EXPECT_GT(accepted_texts, 500);
  EXPECT_GT(hosts_with_user, 50);
}

}  // namespace
}  // namespace farandole
