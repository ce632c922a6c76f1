#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "engine/job_in_test.h"
#include "rendezvous/job_name.h"
#include "timeline/trace_text.h"

namespace farandole {
namespace {

class EngineTimelineTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(::mkdtemp(folder_.data()), nullptr); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "trace.json") const { return folder_ + "/" + name; }
  std::string content(const std::string& name = "trace.json") const {
    std::ostringstream text;
    text << std::ifstream(path(name)).rdbuf();
    return text.str();
  }
  static int count(const std::string& text, std::string_view part) {
    int occurrences = 0;
    for (auto position = text.find(part); position != std::string::npos;
         position = text.find(part, position + 1))
      ++occurrences;
    return occurrences;
  }

  std::string folder_ = "/tmp/farandole-timeline-XXXXXX";
};

TEST_F(EngineTimelineTest, ShowsTheCallsOfAllRanks) {
  std::ofstream(path()) << "of yesterday";
  run_ranks(3, [&](int rank, const std::shared_ptr<LocalStore>& store) {
    EngineOptions options = options_of(rank, 3, {{0, 2}});
    options.timeline_path = path();
    const auto engine = value_or_abort(assemble(options, store));
    std::vector<float> values(1000, 1);
    EXPECT_TRUE(allreduce(*engine, values, "first").ok());
    if (rank != 1) {
      EXPECT_TRUE(allreduce(*engine, values, "second", 1).ok());
    }
    values.resize(10 + static_cast<std::size_t>(rank));
    EXPECT_FALSE(allreduce(*engine, values, "other on all").ok());
    EXPECT_TRUE(barrier(*engine).ok());
  });
  const std::string text = content();
  EXPECT_TRUE(text.ends_with(kTraceEnd));
  EXPECT_EQ(count(text, "yesterday"), 0);
  EXPECT_EQ(count(text, R"("name":"NEGOTIATE_ALLREDUCE")"), 3 + 2 + 3);
  EXPECT_EQ(count(text, R"("name":"ALLREDUCE")"), 3 + 2);
  EXPECT_EQ(count(text, R"("dtype":"float32","shape":"[1000]","bytes":4000}})"), 3 + 2);
  EXPECT_EQ(count(text, R"("failed":true)"), 3);
  EXPECT_EQ(count(text, R"("name":"BARRIER")"), 3);
  EXPECT_EQ(count(text, R"_({"name":"allreduce.second (group 1)"})_"), 2);
  EXPECT_EQ(count(text, R"("ph":"B")"), count(text, R"("ph":"E")"));
}

TEST_F(EngineTimelineTest, StartsAndStopsAtRunTime) {
  run_job(2, {}, [&](Engine& engine) {
    std::vector<float> values(4, 1);
    const auto call = [&](const char* name) { EXPECT_TRUE(allreduce(engine, values, name).ok()); };
    EXPECT_TRUE(engine.stop_timeline().ok());
    call("none");
    EXPECT_TRUE(engine.start_timeline(path("a")).ok());
    call("one");
    EXPECT_TRUE(engine.stop_timeline().ok());
    call("none");
    EXPECT_TRUE(engine.start_timeline(path("b")).ok());
    call("two");
    (void)engine.shutdown("done");
    EXPECT_EQ(
        engine.start_timeline(path("c")),
        Status::fix_call("the engine is shut down; call init() before a timeline is started"));
    EXPECT_TRUE(engine.stop_timeline().ok());
  });
  for (const char* name : {"a", "b"}) {
    EXPECT_TRUE(content(name).ends_with(kTraceEnd)) << name;
    EXPECT_EQ(count(content(name), R"("name":"ALLREDUCE")"), 2) << name;
    EXPECT_EQ(count(content(name), "none"), 0) << name;
  }
  EXPECT_FALSE(std::filesystem::exists(path("c")));
}

TEST_F(EngineTimelineTest, MarksCyclesFromTheBeginningIfAskedTo) {
  for (const bool marked : {false, true}) {
    EngineOptions options = options_of(0, 1);
    options.timeline_path = path(marked ? "marked" : "plain");
    options.timeline_mark_cycles = marked;
    const auto engine = value_or_abort(assemble(options, std::make_shared<MemoryStore>()));
    std::vector<float> values(4, 1);
    EXPECT_TRUE(allreduce(*engine, values).ok());
  }
  EXPECT_EQ(count(content("plain"), "CYCLE_START"), 0);
  EXPECT_EQ(count(content("marked"), "CYCLE_START"), 1);
}

TEST_F(EngineTimelineTest, AWrongPathDoesNotEndTheJob) {
  run_ranks(2, [&](int rank, const std::shared_ptr<LocalStore>& store) {
    EngineOptions options = options_of(rank, 2);
    options.timeline_path = path("no/trace.json");
    const auto engine = value_or_abort(assemble(options, store));
    std::vector<float> values(4, 1);
    EXPECT_TRUE(allreduce(*engine, values).ok());
    EXPECT_EQ(
        engine->start_timeline(folder_),
        Status::fix_call("the timeline cannot be written to `" + folder_ + "`: Is a directory"));
    EXPECT_TRUE(allreduce(*engine, values).ok());
  });
}

TEST_F(EngineTimelineTest, ARestartedJobContinuesTheFile) {
  const auto store = std::make_shared<MemoryStore>();
  for (int life = 0; life < 2; ++life) {
    EngineOptions options = options_of(0, 1);
    options.timeline_path = path();
    const auto engine = value_or_abort(assemble(options, store));
    std::vector<float> values(4, 1);
    EXPECT_TRUE(allreduce(*engine, values, "same").ok());
  }
  EXPECT_EQ(count(content(), R"("name":"ALLREDUCE")"), 2);
  EXPECT_EQ(count(content(), kTraceEnd), 1);
}

TEST(JobName, IsTheSameForAllUsersOfAStore) {
  MemoryStore store;
  const auto name = job_name(store);
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(*job_name(store), *name);
  EXPECT_EQ(name->find_first_not_of("0123456789."), std::string::npos);
  MemoryStore other_store;
  EXPECT_NE(*job_name(other_store), *name);
}

}  // namespace
}  // namespace farandole
