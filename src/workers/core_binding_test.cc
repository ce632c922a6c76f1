#include "workers/core_binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/cores.h"

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Cores with one hardware thread each, numbered from 0 on. `sockets` has the cores of each socket.
std::vector<Core> make_cores(const std::vector<int>& sockets) {
  std::vector<Core> cores;
  for (std::size_t socket = 0; socket < sockets.size(); ++socket)
    for (int i = 0; i < sockets[socket]; ++i)
      cores.push_back({.socket = static_cast<int>(socket),
                       .node = static_cast<int>(socket),
                       .hardware_threads = {static_cast<int>(cores.size())}});
  return cores;
}

std::vector<std::string> hardware_thread_lists(const CoreDivision& division) {
  std::vector<std::string> texts;
  for (const WorkerCores& worker : division.workers)
    texts.push_back(list_text(worker.hardware_threads));
  return texts;
}

std::vector<int> thread_counts(const CoreDivision& division) {
  std::vector<int> counts;
  for (const WorkerCores& worker : division.workers) counts.push_back(worker.threads);
  return counts;
}

CoreDivision divide(const std::vector<int>& sockets, int workers, BindTo bind_to) {
  return divide_cores(make_cores(sockets), std::nullopt, workers, bind_to);
}

TEST(CoreBinding, AcceptsOnlyItsWords) {
  EXPECT_EQ(*parse_bind_to("core"), BindTo::kCore);
  EXPECT_EQ(*parse_bind_to("socket"), BindTo::kSocket);
  EXPECT_EQ(*parse_bind_to("none"), BindTo::kNone);
  for (const std::string word : {"", "cores", "Core", "core,none"}) {
    const auto parsed = parse_bind_to(word);
    EXPECT_EQ(parsed.status().code(), StatusCode::kFixCall) << word;
    EXPECT_THAT(parsed.status().message(), HasSubstr("--bind-to \"" + word + "\""));
    EXPECT_THAT(parsed.status().message(), HasSubstr("core, socket or none"));
  }
}

TEST(CoreBinding, NoneBindsNoWorkerAndDividesTheThreads) {
  const auto division_of_2 = divide({8}, 2, BindTo::kNone);
  EXPECT_THAT(hardware_thread_lists(division_of_2), ElementsAre("", ""));
  EXPECT_THAT(thread_counts(division_of_2), ElementsAre(4, 4));
  EXPECT_THAT(thread_counts(divide({8}, 3, BindTo::kNone)), ElementsAre(2, 2, 2));
  EXPECT_THAT(thread_counts(divide({2}, 4, BindTo::kNone)), ElementsAre(1, 1, 1, 1));
}

TEST(CoreBinding, CoreGivesEachWorkerAnEqualPart) {
  const auto division_of_2 = divide({8}, 2, BindTo::kCore);
  EXPECT_THAT(hardware_thread_lists(division_of_2), ElementsAre("0-3", "4-7"));
  EXPECT_THAT(thread_counts(division_of_2), ElementsAre(4, 4));
  EXPECT_THAT(hardware_thread_lists(divide({8}, 3, BindTo::kCore)),
              ElementsAre("0-1", "2-3", "4-5"));
  EXPECT_THAT(hardware_thread_lists(divide({8}, 1, BindTo::kCore)), ElementsAre("0-7"));
}

TEST(CoreBinding, CorePartsAreWithinASocket) {
  EXPECT_THAT(hardware_thread_lists(divide({4, 4}, 2, BindTo::kCore)), ElementsAre("0-3", "4-7"));
  EXPECT_THAT(hardware_thread_lists(divide({5, 5}, 4, BindTo::kCore)),
              ElementsAre("0-1", "2-3", "5-6", "7-8"));
  // Parts of three cores would not fit into sockets of five.
  EXPECT_THAT(hardware_thread_lists(divide({5, 5}, 3, BindTo::kCore)),
              ElementsAre("0-1", "2-3", "5-6"));
  EXPECT_THAT(hardware_thread_lists(divide({1, 7}, 2, BindTo::kCore)), ElementsAre("1-3", "4-6"));
}

TEST(CoreBinding, FewerWorkersThanSocketsGetWholeSockets) {
  EXPECT_THAT(hardware_thread_lists(divide({4, 4}, 1, BindTo::kCore)), ElementsAre("0-7"));
  EXPECT_THAT(hardware_thread_lists(divide({2, 2, 2, 2}, 2, BindTo::kCore)),
              ElementsAre("0-3", "4-7"));
  EXPECT_THAT(hardware_thread_lists(divide({2, 2, 2, 2}, 3, BindTo::kCore)),
              ElementsAre("0-1", "2-3", "4-5"));
}

TEST(CoreBinding, MoreWorkersThanCoresShareCoresEvenly) {
  const auto division_of_4 = divide({2}, 4, BindTo::kCore);
  EXPECT_THAT(hardware_thread_lists(division_of_4), ElementsAre("0", "0", "1", "1"));
  EXPECT_THAT(thread_counts(division_of_4), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(hardware_thread_lists(divide({2}, 5, BindTo::kCore)),
              ElementsAre("0", "0", "0", "1", "1"));
  EXPECT_THAT(hardware_thread_lists(divide({1}, 2, BindTo::kCore)), ElementsAre("0", "0"));
  EXPECT_THAT(hardware_thread_lists(divide({1, 1}, 3, BindTo::kCore)), ElementsAre("0", "0", "1"));
}

TEST(CoreBinding, HardwareThreadsOfACoreStayTogetherAndCountOnce) {
  const std::vector<Core> cores{{.hardware_threads = {0, 4}},
                                {.hardware_threads = {1, 5}},
                                {.hardware_threads = {2, 6}},
                                {.hardware_threads = {7}}};
  const auto division_of_2 = divide_cores(cores, std::nullopt, 2, BindTo::kCore);
  EXPECT_THAT(hardware_thread_lists(division_of_2), ElementsAre("0-1,4-5", "2,6-7"));
  EXPECT_THAT(thread_counts(division_of_2), ElementsAre(2, 2));
  EXPECT_THAT(thread_counts(divide_cores(cores, std::nullopt, 2, BindTo::kNone)),
              ElementsAre(2, 2));
  EXPECT_THAT(hardware_thread_lists(divide_cores(cores, std::nullopt, 8, BindTo::kCore)),
              ElementsAre("0,4", "0,4", "1,5", "1,5", "2,6", "2,6", "7", "7"));
}

TEST(CoreBinding, SocketGivesEachWorkerAllCoresOfOneSocket) {
  const auto division_of_4 = divide({4, 4}, 4, BindTo::kSocket);
  EXPECT_THAT(hardware_thread_lists(division_of_4), ElementsAre("0-3", "0-3", "4-7", "4-7"));
  EXPECT_THAT(thread_counts(division_of_4), ElementsAre(2, 2, 2, 2));
  const auto division_of_3 = divide({4, 4}, 3, BindTo::kSocket);
  EXPECT_THAT(hardware_thread_lists(division_of_3), ElementsAre("0-3", "0-3", "4-7"));
  EXPECT_THAT(thread_counts(division_of_3), ElementsAre(2, 2, 4));
  EXPECT_THAT(hardware_thread_lists(divide({4, 4}, 1, BindTo::kSocket)), ElementsAre("0-3"));
  EXPECT_THAT(hardware_thread_lists(divide({2}, 3, BindTo::kSocket)),
              ElementsAre("0-1", "0-1", "0-1"));
  // A socket of which the launcher may use only few cores gets few workers.
  EXPECT_THAT(hardware_thread_lists(divide({1, 7}, 2, BindTo::kSocket)), ElementsAre("1-7", "1-7"));
}

TEST(CoreBinding, AQuotaLimitsTheThreadsButNotTheCores) {
  const auto division_of_2 = divide_cores(make_cores({8}), 4, 2, BindTo::kCore);
  EXPECT_EQ(division_of_2.cores, 4);
  EXPECT_THAT(hardware_thread_lists(division_of_2), ElementsAre("0-3", "4-7"));
  EXPECT_THAT(thread_counts(division_of_2), ElementsAre(2, 2));
  EXPECT_THAT(thread_counts(divide_cores(make_cores({8}), 1, 2, BindTo::kNone)), ElementsAre(1, 1));
}

TEST(CoreBinding, UnknownCoresBindNothing) {
  const auto division_of_2 = divide_cores({}, std::nullopt, 2, BindTo::kCore);
  EXPECT_THAT(hardware_thread_lists(division_of_2), ElementsAre("", ""));
  EXPECT_THAT(thread_counts(division_of_2), ElementsAre(1, 1));
  EXPECT_EQ(describe(division_of_2), "2 on 1 core");
}

TEST(CoreBinding, APreviewShowsTheCoresOfTwoWorkers) {
  EXPECT_EQ(
      binding_preview(make_cores({4, 4})),
      "2 sockets, 8 cores, 8 hardware threads; --bind-to core would give 0-3 to one worker and "
      "4-7 to another");
  EXPECT_EQ(binding_preview({{.hardware_threads = {3, 7}}}),
            "1 socket, 1 core, 2 hardware threads; --bind-to core would give 3,7 to one worker and "
            "3,7 to another");
}

TEST(CoreBinding, DescriptionsCountWorkersAndCores) {
  EXPECT_EQ(describe(divide({8}, 2, BindTo::kNone)), "2 on 8 cores");
  EXPECT_EQ(describe(divide({1}, 1, BindTo::kNone)), "1 on 1 core");
  EXPECT_EQ(describe(divide({8}, 2, BindTo::kCore)),
            "2 on 8 cores, each bound to cores of its own");
  EXPECT_EQ(describe(divide({8}, 1, BindTo::kCore)), "1 on 8 cores, bound to them");
  EXPECT_EQ(describe(divide({2}, 4, BindTo::kCore)), "4 on 2 cores, each bound to one of them");
  EXPECT_EQ(describe(divide({4, 4}, 4, BindTo::kSocket)), "4 on 8 cores, each bound to one socket");
  EXPECT_EQ(threads_text(divide({4, 4}, 4, BindTo::kSocket)), "2");
  EXPECT_EQ(threads_text(divide({4, 4}, 3, BindTo::kSocket)), "2 to 4");
}

}  // namespace
}  // namespace farandole
