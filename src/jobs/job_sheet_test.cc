#include "jobs/job_sheet.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace farandole {
namespace {

constexpr TimePoint kStarted{std::chrono::seconds(9)};

std::unique_ptr<JobSheet> new_job_sheet(int workers,
                                        const std::string& command = "python train.py") {
  auto new_sheet = JobSheet::create({.foreground = 70,
                                     .agent = 71,
                                     .started = kStarted,
                                     .host = "node7",
                                     .command = command,
                                     .size = workers,
                                     .workers = {}},
                                    workers);
  EXPECT_TRUE(new_sheet.ok());
  return std::move(new_sheet).value();
}

TEST(JobSheet, DescribesTheJobAndItsWorkers) {
  const auto sheet = new_job_sheet(4);
  sheet->worker_started(0, 80, 12);
  sheet->worker_started(1, 81, 13);
  sheet->worker_started(2, 82, 14);
  sheet->worker_stopped(0, SIGSTOP);
  sheet->worker_ended(1, {.code = 3});
  sheet->worker_stopped(2, SIGTSTP);
  sheet->worker_ended(2, {.signal = SIGKILL});
  auto job = read_job_sheet(sheet->memory().data(), sheet->memory().size());
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->foreground, 70);
  EXPECT_EQ(job->agent, 71);
  EXPECT_EQ(job->started, kStarted);
  EXPECT_EQ(job->host, "node7");
  EXPECT_EQ(job->command, "python train.py");
  ASSERT_EQ(job->workers.size(), 4U);
  EXPECT_EQ(job->workers[0].pid, 80);
  EXPECT_EQ(job->workers[0].record_descriptor, 12);
  EXPECT_EQ(job->workers[0].stop_signal, SIGSTOP);
  EXPECT_FALSE(job->workers[0].end.has_value());
  EXPECT_EQ(describe(job->workers[1].end.value()), "exited with code 3");
  EXPECT_EQ(describe(job->workers[2].end.value()), "killed by signal 9 (SIGKILL)");
  EXPECT_EQ(job->workers[2].stop_signal, 0);
  EXPECT_EQ(job->workers[3].pid, 0);  // not yet started
  sheet->worker_continued(0);
  job = read_job_sheet(sheet->memory().data(), sheet->memory().size());
  EXPECT_EQ(job->workers[0].stop_signal, 0);
}

TEST(JobSheet, ALauncherMayHaveNoWorkers) {
  const auto sheet = JobSheet::create({.host = "", .command = "", .size = 3, .workers = {}}, 0);
  ASSERT_TRUE(sheet.ok());
  const auto job = read_job_sheet((*sheet)->memory().data(), (*sheet)->memory().size());
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->size, 3);
  EXPECT_TRUE(job->workers.empty());
}

TEST(JobSheet, KeepsTheBeginningOfALongCommand) {
  const auto sheet = new_job_sheet(1, std::string(10'000, 'x'));
  const auto job = read_job_sheet(sheet->memory().data(), sheet->memory().size());
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->command, std::string(508, 'x'));
}

TEST(JobSheet, RejectsMemoryThatIsNotAJobSheet) {
  const auto sheet = new_job_sheet(2);
  const auto memory = sheet->memory();
  std::vector<std::uint64_t> words(memory.size() / sizeof(std::uint64_t));
  const auto can_be_read = [&](std::size_t bytes) {
    return read_job_sheet(reinterpret_cast<const std::byte*>(words.data()), bytes).has_value();
  };
  std::memcpy(words.data(), memory.data(), memory.size());
  EXPECT_TRUE(can_be_read(memory.size()));
  EXPECT_FALSE(can_be_read(8));     // too short for any sheet
  EXPECT_FALSE(can_be_read(1056));  // too short for its workers
  ++words[0];
  EXPECT_FALSE(can_be_read(memory.size()));
  std::memcpy(words.data(), memory.data(), memory.size());
  ++words[1];  // another format
  EXPECT_FALSE(can_be_read(memory.size()));
}

TEST(JobSheet, RandomBytesAreReadSafely) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto sheet = new_job_sheet(2);
  const auto memory = sheet->memory();
  std::vector<std::uint64_t> words(memory.size() / sizeof(std::uint64_t));
  for (int round = 0; round < 1000; ++round) {
    std::memcpy(words.data(), memory.data(), memory.size());
    for (int change = 0; change < 4; ++change) words[2 + random() % 150] = random();
    const auto job =
        read_job_sheet(reinterpret_cast<const std::byte*>(words.data()), memory.size());
    EXPECT_LE(job ? job->workers.size() : 0, memory.size() / 16);
  }
}

}  // namespace
}  // namespace farandole
