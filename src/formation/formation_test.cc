// Tests formations of jobs on one host and on several hosts. The engine tests also run formations,
// but only on one host.
#include "formation/formation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/cores.h"
#include "collective/group_memory.h"
#include "formation/job_in_test.h"
#include "rendezvous/keys.h"

namespace farandole {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<int> ranks_of_peers(const Formation& formation) {
  std::vector<int> ranks;
  for (const Peer& peer : formation.peers) ranks.push_back(peer.rank);
  return ranks;
}

// Returns for each rank: local rank and size, cross rank and size.
std::vector<std::vector<int>> topologies(const std::vector<Result<Formation>>& formations) {
  std::vector<std::vector<int>> result;
  for (const auto& formation : formations) {
    EXPECT_EQ(formation.status(), Status());
    if (!formation.ok()) continue;
    const RankTopology& topology = formation->topology;
    EXPECT_EQ(topology.rank, static_cast<int>(result.size()));
    EXPECT_EQ(topology.size, static_cast<int>(formations.size()));
    result.push_back(
        {topology.local_rank, topology.local_size, topology.cross_rank, topology.cross_size});
  }
  return result;
}

std::vector<int> hosts_of_ranks(const Formation& formation) {
  std::vector<int> hosts;
  for (const RankInfo& rank : formation.ranks) hosts.push_back(rank.host);
  return hosts;
}

// Whether two ranks have mapped the same memory.
bool is_same_memory(const Segment& first, const Segment& second) {
  const std::byte value_before = *first.data();
  *first.data() = std::byte{0xA5};
  const bool saw_first_value = *second.data() == std::byte{0xA5};
  *first.data() = std::byte{0x5A};
  const bool is_same = saw_first_value && *second.data() == std::byte{0x5A};
  *first.data() = value_before;
  return is_same;
}

TEST(Formation, FindsTwoHostsWithTwoRanksEach) {
  const auto formations = JobOfHosts({0, 0, 1, 1}).form_all();
  EXPECT_THAT(topologies(formations),
              ElementsAre(ElementsAre(0, 2, 0, 2), ElementsAre(1, 2, 0, 2), ElementsAre(0, 2, 1, 2),
                          ElementsAre(1, 2, 1, 2)));
  for (int rank = 0; rank < 4; ++rank) {
    const Formation& formation = *formations[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(formation.topology.is_homogeneous);
    EXPECT_EQ(formation.hosts(), 2);
    EXPECT_THAT(hosts_of_ranks(formation), ElementsAre(0, 0, 1, 1));
    const int first_rank = rank < 2 ? 0 : 2;
    EXPECT_THAT(ranks_of_peers(formation), ElementsAre(first_rank, first_rank + 1));
    EXPECT_EQ(formation.peer(rank).pid, ::getpid());
    for (int peer = 0; peer < 4; ++peer) {
      const RankInfo& info = formation.ranks[static_cast<std::size_t>(peer)];
      EXPECT_THAT(info.addresses, ElementsAre("address of " + std::to_string(peer)));
      EXPECT_EQ(info.pid, ::getpid());
      EXPECT_FALSE(info.host_name.empty());
    }
    ASSERT_EQ(formation.groups.size(), 1U);
    EXPECT_THAT(formation.groups[0].ranks, ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(formation.groups[0].hosts, ElementsAre(0, 0, 1, 1));
  }
}

TEST(Formation, SharesMemoryWithinAHostOnly) {
  const auto formations = JobOfHosts({0, 0, 1, 1}).form_all();
  const auto doorbells = [&](std::size_t rank) -> const Segment& {
    return *formations[rank]->doorbells_segment;
  };
  const auto world = [&](std::size_t rank) -> const Segment& {
    return *formations[rank]->groups[0].segment;
  };
  for (const auto& memory : {std::function<const Segment&(std::size_t)>(doorbells),
                             std::function<const Segment&(std::size_t)>(world)}) {
    EXPECT_TRUE(is_same_memory(memory(0), memory(1)));
    EXPECT_TRUE(is_same_memory(memory(2), memory(3)));
    EXPECT_FALSE(is_same_memory(memory(0), memory(2)));
  }
  EXPECT_EQ(world(0).size(), GroupMemory::bytes_needed(2))
      << "it has memory only for the members on the host";
  EXPECT_EQ(formations[3]->doorbells->size(), 4) << "a line for every rank of the job";
  EXPECT_EQ(formations[3]->doorbells->rank(), 3);
}

TEST(Formation, FindsHostsOfDifferentSizes) {
  const auto formations = JobOfHosts({0, 0, 0, 1}).form_all();
  EXPECT_THAT(topologies(formations),
              ElementsAre(ElementsAre(0, 3, 0, 2), ElementsAre(1, 3, 0, 1), ElementsAre(2, 3, 0, 1),
                          ElementsAre(0, 1, 1, 2)));
  for (const auto& formation : formations) EXPECT_FALSE(formation->topology.is_homogeneous);
  EXPECT_THAT(ranks_of_peers(*formations[3]), ElementsAre(3));
}

// Hosts are numbered by their lowest ranks, not in the order in which they join.
TEST(Formation, FindsInterleavedRanks) {
  const auto formations = JobOfHosts({2, 0, 1, 0, 2, 1}).form_all();
  for (const auto& formation : formations)
    EXPECT_THAT(hosts_of_ranks(*formation), ElementsAre(0, 1, 2, 1, 0, 2));
  EXPECT_THAT(
      topologies(formations),
      ElementsAre(ElementsAre(0, 2, 0, 3), ElementsAre(0, 2, 1, 3), ElementsAre(0, 2, 2, 3),
                  ElementsAre(1, 2, 1, 3), ElementsAre(1, 2, 0, 3), ElementsAre(1, 2, 2, 3)));
  EXPECT_THAT(ranks_of_peers(*formations[4]), ElementsAre(0, 4));
}

TEST(Formation, OneHostIsFoundWithoutAnyVariable) {
  const auto formations = JobOfHosts({0, 0, 0}).form_all();
  EXPECT_THAT(topologies(formations), ElementsAre(ElementsAre(0, 3, 0, 1), ElementsAre(1, 3, 0, 1),
                                                  ElementsAre(2, 3, 0, 1)));
  EXPECT_EQ(formations[0]->hosts(), 1);
}

TEST(Formation, EveryHostHasItsPartOfAGroup) {
  // Group 1 has two members on each host. Group 2 has members on the second host only. Group 3 has
  // two members on the first host and one on the second.
  const auto formations = JobOfHosts({0, 1, 0, 1, 0}).form_all({{0, 1, 3, 4}, {1, 3}, {1, 2, 4}});
  const auto group = [&](std::size_t rank, GroupId id) -> const FormedGroup* {
    for (const FormedGroup& candidate : formations[rank]->groups)
      if (candidate.id == id) return &candidate;
    return nullptr;
  };
  for (const std::size_t rank : {0U, 1U, 3U, 4U}) {
    EXPECT_THAT(group(rank, 1)->ranks, ElementsAre(0, 1, 3, 4));
    EXPECT_THAT(group(rank, 1)->hosts, ElementsAre(0, 1, 1, 0));
    EXPECT_EQ(group(rank, 1)->segment->size(), GroupMemory::bytes_needed(2));
  }
  EXPECT_TRUE(is_same_memory(*group(0, 1)->segment, *group(4, 1)->segment));
  EXPECT_TRUE(is_same_memory(*group(1, 1)->segment, *group(3, 1)->segment));
  EXPECT_FALSE(is_same_memory(*group(0, 1)->segment, *group(1, 1)->segment));
  EXPECT_EQ(group(2, 1), nullptr);
  EXPECT_EQ(group(0, 2), nullptr);
  EXPECT_TRUE(is_same_memory(*group(1, 2)->segment, *group(3, 2)->segment));
  EXPECT_EQ(group(1, 3)->segment->size(), GroupMemory::bytes_needed(1));
  EXPECT_TRUE(is_same_memory(*group(2, 3)->segment, *group(4, 3)->segment));
  EXPECT_EQ(formations[2]->ranks_of.size(), 4U);
}

// The costs depend on the number of ranks of the host, not of the job.
TEST(Formation, CostsDependOnTheRanksOfTheHost) {
  std::vector<int> hosts(65, 0);
  hosts.front() = 1;
  const auto formations = JobOfHosts(hosts).form_all();
  ASSERT_EQ(formations[0].status(), Status());
  EXPECT_EQ(formations[0]->costs.wait_bytes, costs_on(1, 1).wait_bytes);
  EXPECT_EQ(formations[1]->costs.wait_bytes, costs_on(64, 2).wait_bytes);
}

// Binds the calling thread to one of the hardware threads that it may use.
void bind_to_hardware_thread(std::size_t index) {
  const auto usable = usable_hardware_threads();
  cpu_set_t hardware_threads;
  CPU_ZERO(&hardware_threads);
  CPU_SET(usable[index % usable.size()], &hardware_threads);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(hardware_threads), &hardware_threads), 0);
}

// If each rank is bound to its own core, the ranks do not share a core.
TEST(Formation, CountsTheCoresOfAllRanksOfTheHost) {
  const int cores_expected = std::min(2, usable_cores());
  const JobOfHosts job({0, 0, 1});
  const auto formations = job.form_all({}, [](EngineOptions& options) {
    bind_to_hardware_thread(static_cast<std::size_t>(options.topology.rank));
  });
  EXPECT_EQ(formations[0]->cores, cores_expected);
  EXPECT_EQ(formations[1]->cores, cores_expected);
  EXPECT_EQ(formations[2]->cores, 1);
  EXPECT_EQ(formations[0]->costs.wait_bytes, costs_on(2, cores_expected).wait_bytes);
  for (const auto& formation :
       JobOfHosts({0, 0}).form_all({}, [](EngineOptions&) { bind_to_hardware_thread(0); }))
    EXPECT_EQ(formation->cores, 1);
}

TEST(Formation, ACompletedFormationLeavesNoKeys) {
  const JobOfHosts job({0, 1, 0});
  for (int epoch = 1; epoch <= 3; ++epoch) {
    for (const auto& formation : job.form_all({{0, 1}})) {
      ASSERT_EQ(formation.status(), Status());
      EXPECT_EQ(formation->epoch, epoch);
    }
    const std::function<bool()> never_interrupted;
    std::vector<std::string> keys = {keys::attached(epoch), keys::complete(epoch),
                                     keys::departed(epoch), keys::doorbells(epoch),
                                     keys::group(epoch, 0), keys::group(epoch, 1)};
    for (int rank = 0; rank < 3; ++rank) {
      keys.push_back(keys::member(epoch, rank));
      keys.push_back(keys::memory(epoch, rank));
    }
    for (const auto& store : {job.job_store(), job.store_of(0), job.store_of(1)})
      for (const std::string& key : keys)
        EXPECT_EQ(store->wait(key, {TimePoint{}, never_interrupted}).status().code(),
                  StatusCode::kRetry)
            << key;
  }
}

// Rank 3 fails before it has published its record. Rank 1 is on the same host; the other ranks are
// on other hosts.
TEST(Formation, ARankThatFailsEndsTheFormationOnAllHosts) {
  const auto formations = JobOfHosts({0, 1, 0, 1}).form_all({}, [](EngineOptions& options) {
    if (options.topology.rank == 3) options.groups = {{7}};
  });
  const std::string error_text =
      "the group [7] names rank 7, which is not one of this job (0 to 3)";
  for (const std::size_t rank : {0U, 1U, 2U})
    EXPECT_EQ(formations[rank].status(),
              Status::rebuild_group("rank 3 could not start: " + error_text));
  EXPECT_EQ(formations[3].status(), Status::fix_call(error_text));
}

// The lowest rank of a host fails after all records are in the Store. The other rank of this host
// waits for the memory, and the ranks of the other host wait for the end of the formation.
TEST(Formation, ARankThatCannotShareItsMemoryEndsTheFormationOnAllHosts) {
  const JobOfHosts job({0, 0, 1, 1});
  std::vector<Status> statuses(4);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 4; ++rank)
    threads.emplace_back([&, rank] {
      const EngineOptions options = formation_options(rank, 4);
      statuses[static_cast<std::size_t>(rank)] =
          form({.options = options,
                .stores = {job.job_store(), job.store_of(rank)},
                .make_heap = [rank](std::size_t bytes) -> Result<std::shared_ptr<SharedHeap>> {
                  if (rank == 2) return Status::stop("no memory");
                  return SharedHeap::create(bytes);
                }})
              .status();
    });
  threads.clear();
  EXPECT_EQ(statuses[2], Status::stop("no memory"));
  for (const std::size_t rank : {0U, 1U, 3U})
    EXPECT_EQ(statuses[rank], Status::rebuild_group("rank 2 could not start: no memory"));
}

TEST(Formation, ErrorsNameTheMissingRanksAndTheHostsThatHaveJoined) {
  const JobOfHosts job({0, 1, 0, 1});
  std::vector<std::jthread> threads;
  std::vector<Status> statuses(4);
  const auto start_rank = [&](int rank, int timeout_ms) {
    threads.emplace_back([&, rank, timeout_ms] {
      EngineOptions options = formation_options(rank, 4);
      options.start_timeout = std::chrono::milliseconds(timeout_ms);
      statuses[static_cast<std::size_t>(rank)] = job.form(options).status();
    });
  };
  start_rank(2, 60'000);
  const std::function<bool()> never;
  const TimePoint limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  ASSERT_TRUE(job.job_store()->wait(keys::member(1, 2), {limit, never}).ok());
  start_rank(0, 1000);
  threads.clear();
  EXPECT_EQ(statuses[0].code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(statuses[0].message(),
              AllOf(HasSubstr("rank 0 waited 1 s for ranks 1, 3 (there are "),
                    HasSubstr(" (ranks 0, 2)), in vain: do all workers call init()")));
  EXPECT_THAT(statuses[2].message(), HasSubstr("rank 0 could not start: rank 0 waited 1 s"));
}

TEST(Formation, OnOneHostErrorsNameOnlyTheMissingRank) {
  const auto store = std::make_shared<MemoryStore>();
  EngineOptions options = formation_options(0, 2);
  options.start_timeout = std::chrono::milliseconds(1);
  const auto formation =
      form({.options = options,
            .stores = Stores::on_one_host(store),
            .make_heap = [](std::size_t bytes) { return SharedHeap::create(bytes); }});
  EXPECT_THAT(formation.status().message(), HasSubstr("waited 0 s for rank 1, in vain"));
}

// The launcher has started four ranks on one host, but two of them use another LocalStore.
TEST(Formation, AWrongTopologyFromTheLauncherIsAnError) {
  const auto formations = JobOfHosts({0, 0, 1, 1}).form_all({}, [](EngineOptions& options) {
    options.topology.local_rank = options.topology.rank;
    options.topology.local_size = 4;
    options.topology.cross_rank = 0;
    options.topology.cross_size = 1;
  });
  for (const auto& formation : formations)
    EXPECT_EQ(formation.status().code(), StatusCode::kFixCall) << formation.status().message();
  EXPECT_THAT(
      formations[3].status().message(),
      AllOf(HasSubstr("rank 3 was started as local rank 3 of 4 and cross rank 0 of 1, but "
                      "was found to be local rank 1 of 2 and cross rank 1 of 2: the ranks "
                      "that share memory are on "),
            HasSubstr(" (ranks 0, 1), "), HasSubstr(" (ranks 2, 3). Start the ranks of a")));
}

TEST(Formation, AWrongTopologyOfOneRankFailsAllRanks) {
  const auto formations = JobOfHosts({0, 0, 1}).form_all({}, [](EngineOptions& options) {
    if (options.topology.rank == 1) options.topology.local_size = 3;
  });
  EXPECT_EQ(formations[1].status().code(), StatusCode::kFixCall);
  EXPECT_THAT(formations[1].status().message(),
              HasSubstr("rank 1 was started as local rank 1 of 3 and cross rank 0 of 1, but was "
                        "found to be local rank 1 of 2 and cross rank 0 of 1"));
  for (const std::size_t rank : {0U, 2U})
    EXPECT_THAT(formations[rank].status().message(),
                HasSubstr("rank 1 could not start: rank 1 was started as"));
}

TEST(Formation, ACorrectTopologyFromTheLauncherIsAccepted) {
  const auto formations = JobOfHosts({0, 1, 0, 1}).form_all({}, [](EngineOptions& options) {
    const int rank = options.topology.rank;
    options.topology = {.rank = rank,
                        .size = 4,
                        .local_rank = rank / 2,
                        .local_size = 2,
                        .cross_rank = rank % 2,
                        .cross_size = 2};
  });
  EXPECT_THAT(topologies(formations),
              ElementsAre(ElementsAre(0, 2, 0, 2), ElementsAre(0, 2, 1, 2), ElementsAre(1, 2, 0, 2),
                          ElementsAre(1, 2, 1, 2)));
}

TEST(Formation, OneRankOnTwoHostsIsAnError) {
  const JobOfHosts job({0, 1});
  const std::function<bool()> never_interrupted;
  // The record has the pid of a process on another host. This process happens to have the same pid,
  // which must not matter.
  ASSERT_EQ(job.job_store()->set(keys::process(1),
                                 keys::ProcessRecord{::getpid(), "another token", "hen"}.encode()),
            Status());
  const auto formation = job.form(formation_options(1, 2));
  EXPECT_EQ(formation.status().code(), StatusCode::kFixCall);
  const std::string pid = std::to_string(::getpid());
  EXPECT_THAT(formation.status().message(),
              AllOf(HasSubstr("the processes " + pid + " on hen and " + pid + " on "),
                    HasSubstr(" both have rank 1 of 2")));
}

TEST(Formation, ARecordThatDiffersOnAnotherHostIsAnError) {
  const auto formations = JobOfHosts({0, 1}).form_all({}, [](EngineOptions& options) {
    options.bucket_bytes = static_cast<std::size_t>(options.topology.rank);
  });
  EXPECT_EQ(formations[0].status(),
            Status::fix_call("rank 0 has FARANDOLE_BUCKET_BYTES=0, rank 1 has 1; it must be the "
                             "same in all workers"));
  EXPECT_EQ(formations[1].status().code(), StatusCode::kFixCall);
}

// Rank 0 fails while rank 1 waits for rank 0 and for rank 2. Rank 2 never joins.
TEST(Formation, ARankThatFailsEndsTheWaitOfTheOthers) {
  const JobOfHosts job({0, 0, 0});
  std::jthread rank_1([&job] {
    EXPECT_EQ(job.form(formation_options(1, 3)).status(),
              Status::rebuild_group("rank 0 could not start: the group [7] names rank 7, which is "
                                    "not one of this job (0 to 2)"));
  });
  EXPECT_EQ(job.form(formation_options(0, 3, {{7}})).status().code(), StatusCode::kFixCall);
}

TEST(Formation, ARankThatComesAfterTheFormationIsRejected) {
  const JobOfHosts job({0, 0});
  ByteWriter no_error;
  no_error.put_text("");
  ASSERT_TRUE(job.job_store()->set(keys::complete(1), no_error.take()).ok());
  const auto formation = job.form(formation_options(1, 2));
  EXPECT_EQ(formation.status().code(), StatusCode::kFixCall);
  EXPECT_THAT(formation.status().message(),
              HasSubstr("rank 1 of 2 came when the others had already formed the job without it"));
}

// Publishes a member record of rank 1 that rank 0 accepts.
void publish_rank_1(const JobOfHosts& job, const EngineOptions& options) {
  const Bytes token = job.store_of(1)->wait(keys::host_token(), {TimePoint{}, {}}).value();
  const keys::MemberRecord record{.pid = 1,
                                  .host_token = ByteReader(token).get_text(),
                                  .host_name = "here",
                                  .addresses = {},
                                  .cores = "0",
                                  .size = 2,
                                  .settings = options.same_on_all_ranks(),
                                  .groups = {}};
  ASSERT_TRUE(job.job_store()->set(keys::member(1, 1), record.encode()).ok());
}

TEST(Formation, MemoryWithoutItsDescriptorsIsAnError) {
  const JobOfHosts job({0, 0});
  const EngineOptions options = formation_options(0, 2);
  publish_rank_1(job, options);
  ASSERT_TRUE(job.store_of(1)->set(keys::memory(1, 1), {}).ok());
  const auto formation = job.form(options);
  EXPECT_EQ(formation.status().code(), StatusCode::kStop);
  EXPECT_THAT(formation.status().message(), HasSubstr("rank 1 sent 0 descriptors instead of 2"));
}

TEST(Formation, AHostThatIsCompleteWithoutItsMemoryIsAnError) {
  const JobOfHosts job({0, 0});
  const EngineOptions options = formation_options(0, 2);
  publish_rank_1(job, options);
  ByteWriter no_error;
  no_error.put_text("");
  ASSERT_TRUE(job.store_of(0)->set(keys::complete(1), no_error.take()).ok());
  EXPECT_EQ(job.form(options).status(),
            Status::stop("the formation was completed before the ranks on the host of rank 0 had "
                         "shared their memory; do all ranks run the same version of Farandole?"));
}

// Rank 1 has published its record, but stops before it shares its memory.
TEST(Formation, MissingMemoryIsNamedByItsRank) {
  const JobOfHosts job({0, 0});
  EngineOptions options = formation_options(0, 2);
  options.start_timeout = std::chrono::milliseconds(1000);
  publish_rank_1(job, options);
  const auto formation = job.form(options);
  EXPECT_EQ(formation.status().code(), StatusCode::kRebuildGroup);
  EXPECT_THAT(formation.status().message(),
              HasSubstr("rank 0 waited 1 s for the shared memory of rank 1, in vain"));
}

}  // namespace
}  // namespace farandole
