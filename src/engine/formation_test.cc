// After each formation, successful or not, only the ranks' counters may stay in the Store, because
// the Store lives as long as the job.
#include "engine/formation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>

#include "base/guarded.h"
#include "engine/job_in_test.h"
#include "rendezvous/keys.h"

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A Store that remembers which keys exist.
class WatchedStore final : public Store {
 public:
  Status set(const std::string& key, StoreValue value) override {
    const Status status = store_.set(key, std::move(value));
    if (status.ok()) keys_.lock()->insert(key);
    return status;
  }
  Result<StoreValues> wait_for_all(const std::vector<std::string>& keys, const std::string& unless,
                                   const WaitLimit& limit) override {
    return store_.wait_for_all(keys, unless, limit);
  }
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override {
    keys_.lock()->insert(key);
    return store_.add(key, delta);
  }
  Status remove(const std::string& key) override {
    keys_.lock()->erase(key);
    return store_.remove(key);
  }

  std::set<std::string> keys() { return *keys_.lock(); }

 private:
  MemoryStore store_;
  Guarded<std::set<std::string>> keys_;
};

// The options of rank 0 and rank 1, and whether their formation succeeds.
struct Attempt {
  std::vector<std::vector<int>> groups[2];
  std::size_t bucket_bytes[2] = {1, 1};
  bool interrupted = false;  // whether rank 0 is interrupted before rank 1 starts
  bool succeeds = false;
};

void form_once(const Attempt& attempt, const std::shared_ptr<WatchedStore>& store) {
  const auto join = [&](int rank) {
    EngineOptions options = options_of(rank, 2, attempt.groups[rank]);
    options.bucket_bytes = attempt.bucket_bytes[rank];
    if (rank == 0 && attempt.interrupted) options.interrupted = [] { return true; };
    const auto engine = assemble(options, store);
    EXPECT_EQ(engine.ok(), attempt.succeeds) << engine.status().message();
    if (!engine.ok()) return;
    EXPECT_TRUE((*engine)->add_group({1}).ok());
    EXPECT_FALSE((*engine)->add_group({rank}).ok());
  };
  if (attempt.interrupted) join(0);  // rank 1 starts after rank 0 has given up
  std::thread first;
  if (!attempt.interrupted) first = std::thread(join, 0);
  join(1);
  if (first.joinable()) first.join();
}

TEST(Formation, LeavesOnlyCountersInTheStore) {
  const auto store = std::make_shared<WatchedStore>();
  const std::vector<Attempt> attempts = {
      {.groups = {{}, {}}, .succeeds = true},
      {.groups = {{{0}}, {}}},
      {.groups = {{}, {{1}}}},
      {.groups = {{{0}}, {{1}}}},
      {.groups = {{{0}, {1}}, {{7}}}},
      {.groups = {{{7}}, {{1}}}},
      {.groups = {{{7}}, {{7}}}},
      {.groups = {{}, {}}, .bucket_bytes = {1, 2}},
      {.groups = {{}, {}}, .interrupted = true},
      {.groups = {{{0}}, {}}, .interrupted = true},
  };
  for (int round = 0; round < 20; ++round) {
    for (const auto& attempt : attempts) {
      form_once(attempt, store);
      ASSERT_THAT(store->keys(), ElementsAre(keys::formations(0), keys::formations(1)));
    }
  }
}

TEST(Formation, ValuesWithoutTheirDescriptorsAreErrors) {
  const auto store = std::make_shared<MemoryStore>();
  const keys::MemberRecord record{"", 1, 2, 0, {}, {}};
  ASSERT_TRUE(store->set(keys::member(1, 1), {record.encode(), {}}).ok());
  const auto engine = assemble(options_of(0, 2), store);
  EXPECT_EQ(engine.status().code(), StatusCode::kStop);
  EXPECT_THAT(engine.status().message(), HasSubstr("rank 1 sent 0 descriptors instead of 2"));
  const std::function<bool()> never;
  ASSERT_TRUE(store->set("segment", {}).ok());
  const auto segment = take_segment(*store, "segment", 1, {TimePoint{}, never});
  EXPECT_EQ(segment.status().code(), StatusCode::kStop);
  EXPECT_THAT(segment.status().message(),
              HasSubstr("`segment` came with 0 descriptors instead of 1"));
}

}  // namespace
}  // namespace farandole
