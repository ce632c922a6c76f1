#include "probe/probe_lines.h"

#include <gtest/gtest.h>

#include <vector>

namespace farandole {
namespace {

HostFacts sample_facts() {
  return {.version = "1.2.3",
          .kernel = "6.1.0-1-amd64",
          .packages = {{"python3", "3.11.2"}, {"torch", ""}},
          .cores = 4,
          .memory_bytes = std::int64_t{1} << 40,
          .addresses = {{"eth0", "10.0.0.1:4711"}, {"eth0", "[fd00::1]:4711"}},
          .listen_error = "with \"quotes\"\nand a line"};
}

TEST(ProbeLines, OrdersArriveUnchanged) {
  const std::vector<ProbeOrder> orders{
      BeginOrder{.hosts = {"hen", "owl"}, .number = 1, .environment = {"A=b=c", "LINES=\n\x01"}},
      ClockOrder{},
      ConnectOrder{.targets = {{.host = 1, .address = "[fd00::1]:4711"}}, .measures = true},
      ConnectOrder{}};
  for (const ProbeOrder& order : orders) {
    const std::string line = encode(order);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    EXPECT_EQ(decode_probe_order(line), order) << line;
  }
}

TEST(ProbeLines, AnswersArriveUnchanged) {
  const std::vector<ProbeAnswer> answers{sample_facts(), HostFacts(), NameLookup{"owl", "unknown"},
                                         ClockAnswer{1'700'000'000'123'456'789},
                                         Attempt{.to = 3,
                                                 .address = "10.0.0.1:4711",
                                                 .failure = ConnectFailure::kStalled,
                                                 .error = "it hangs",
                                                 .round_trip_seconds = 1.5e-5,
                                                 .bytes_per_second = 1.25e9}};
  for (const ProbeAnswer& answer : answers) {
    const std::string line = encode(answer);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    EXPECT_EQ(decode_probe_answer(line), answer) << line;
  }
}

TEST(ProbeLines, ALineThatIsNoAnswerIsRejected) {
  for (const char* line : {"", "Welcome to owl!", "{}", "[]", "{\"facts\": 1}", "{\"other\": {}}",
                           "{\"facts\": {\"cores\": \"four\"}}", "{\"attempt\": {\"to\": []}}",
                           "{\"lookup\": {\"name\": 1}}", "{\"facts\": {\"packages\": [1]}}",
                           "{\"clock\": {}", "{\"clock\": {}, \"facts\": {}}"})
    EXPECT_EQ(decode_probe_answer(line), std::nullopt) << line;
}

TEST(ProbeLines, ALineThatIsNoOrderIsRejected) {
  for (const char* line : {"", "{}", "{\"begin\": []}", "{\"facts\": {}}",
                           "{\"begin\": {\"hosts\": [1]}}", "{\"connect\": {\"targets\": [7]}}"})
    EXPECT_EQ(decode_probe_order(line), std::nullopt) << line;
}

TEST(ProbeLines, AnotherVersionMayHaveOtherFields) {
  const auto answer = decode_probe_answer(R"({"facts": {"version": "9", "colour": "red"}})");
  ASSERT_TRUE(answer);
  EXPECT_EQ(std::get<HostFacts>(*answer), HostFacts{.version = "9"});
  const auto attempt = decode_probe_answer(R"({"attempt": {"to": 1, "failure": 99}})");
  ASSERT_TRUE(attempt);
  EXPECT_EQ(std::get<Attempt>(*attempt).failure, ConnectFailure::kOther);
}

TEST(ProbeLines, BytesThatAreNotUtf8AreReplaced) {
  const auto order = decode_probe_order(encode(ProbeOrder(BeginOrder{.hosts = {"a\xff"}})));
  ASSERT_TRUE(order);
  EXPECT_EQ(std::get<BeginOrder>(*order).hosts, std::vector<std::string>{"a\xef\xbf\xbd"});
}

}  // namespace
}  // namespace farandole
