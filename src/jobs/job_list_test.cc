#include "jobs/job_list.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "diagnosis/worker_report.h"
#include "jobs/job_sheet.h"
#include "jobs/worker_reports.h"
#include "timeline/flight_record.h"
#include "transport/shm/segment.h"

namespace farandole {
namespace {

using std::chrono::seconds;

// While an object lives, this process has the name of a launcher's process, so that running_jobs()
// looks at its descriptors.
class AgentProcessName {
 public:
  AgentProcessName() {
    ::prctl(PR_GET_NAME, original_name_.data());
    ::prctl(PR_SET_NAME, kAgentName);
  }
  ~AgentProcessName() { ::prctl(PR_SET_NAME, original_name_.data()); }
  AgentProcessName(const AgentProcessName&) = delete;
  AgentProcessName& operator=(const AgentProcessName&) = delete;

 private:
  std::array<char, 16> original_name_{};
};

// A worker's flight record, as the launcher holds it.
class WorkerRecord {
 public:
  WorkerRecord() : segment_(*Segment::create(kFlightRecordName, FlightRecorder::bytes_needed())) {}

  FlightRecorder recorder() { return FlightRecorder(segment_->data()); }
  int descriptor() const { return segment_->descriptor().get(); }

 private:
  std::shared_ptr<Segment> segment_;
};

std::unique_ptr<JobSheet> sheet_of_this_process(int size, int workers, int first_rank = 0) {
  return *JobSheet::create({.foreground = ::getpid(),
                            .agent = ::getpid(),
                            .started = TimePoint(seconds(9)),
                            .host = "hen",
                            .command = "python train.py",
                            .size = size,
                            .first_rank = first_rank,
                            .workers = {}},
                           workers);
}

// Other jobs may run on this machine.
std::vector<JobStatus> jobs_of_this_process() {
  std::vector<JobStatus> own_jobs;
  for (JobStatus& job : running_jobs().jobs)
    if (job.pid == ::getpid()) own_jobs.push_back(std::move(job));
  return own_jobs;
}

bool is_unreadable() {
  const auto list = running_jobs().unreadable_launchers;
  return std::ranges::find(list, ::getpid()) != list.end();
}

TEST(JobList, ShowsWhatEachWorkerDoes) {
  const AgentProcessName process_name;
  WorkerRecord record;
  auto recorder = record.recorder();
  recorder.begin(TimePoint(seconds(10)));
  recorder.record_membership(TimePoint(seconds(11)));
  const auto sheet = sheet_of_this_process(4, 4);
  sheet->worker_started(0, ::getpid(), record.descriptor());
  sheet->worker_started(1, 81, record.descriptor());
  sheet->worker_stopped(1, SIGTSTP);
  sheet->worker_started(2, 82, record.descriptor());
  sheet->worker_ended(2, {.code = 3});
  const auto jobs = jobs_of_this_process();
  ASSERT_EQ(jobs.size(), 1U);
  EXPECT_EQ(jobs[0].host, "hen");
  EXPECT_EQ(jobs[0].command, "python train.py");
  EXPECT_EQ(jobs[0].size, 4);
  EXPECT_EQ(jobs[0].local_size, 4);
  EXPECT_EQ(jobs[0].started, TimePoint(seconds(9)));
  const auto& ranks = jobs[0].ranks;
  ASSERT_EQ(ranks.size(), 4U);
  EXPECT_EQ(ranks[0].pid, ::getpid());
  EXPECT_EQ(name_of(ranks[0].state), "computes");
  EXPECT_EQ(ranks[0].since, TimePoint(seconds(11)));
  EXPECT_EQ(name_of(ranks[1].state), "stopped");
  EXPECT_EQ(name_of(ranks[2].state), "ended");
  EXPECT_EQ(ranks[2].reason, "exited with code 3");
  EXPECT_EQ(name_of(ranks[3].state), "outside");
  EXPECT_EQ(ranks[3].pid, 0);
}

TEST(JobList, AWorkerWithoutAReadableRecordIsShownAsOutside) {
  const AgentProcessName process_name;
  const auto small_segment = *Segment::create(kFlightRecordName, 1);
  const auto other_segment = *Segment::create("other", FlightRecorder::bytes_needed());
  const auto sheet = sheet_of_this_process(3, 3);
  sheet->worker_started(0, 80, small_segment->descriptor().get());
  sheet->worker_started(1, 81, other_segment->descriptor().get());
  sheet->worker_started(2, 82, -1);
  const auto jobs = jobs_of_this_process();
  ASSERT_EQ(jobs.size(), 1U);
  for (const RankStatus& rank : jobs[0].ranks) EXPECT_EQ(name_of(rank.state), "outside");
}

TEST(JobList, OnlyAProcessWithTheNameOfALauncherIsRead) {
  const auto sheet = sheet_of_this_process(1, 1);
  EXPECT_TRUE(jobs_of_this_process().empty());
  const AgentProcessName process_name;
  EXPECT_EQ(jobs_of_this_process().size(), 1U);
}

TEST(JobList, AProcessThatTheLauncherHasForkedIsNotASecondJob) {
  const AgentProcessName process_name;
  const auto sheet = sheet_of_this_process(1, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  EXPECT_EQ(jobs_of_this_process().size(), 1U);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(JobList, ALauncherOfAnotherVersionIsUnreadable) {
  const AgentProcessName process_name;
  EXPECT_FALSE(is_unreadable());
  const auto foreign_segment = *Segment::create(kJobSheetName, 4096);
  EXPECT_TRUE(is_unreadable());
  EXPECT_TRUE(jobs_of_this_process().empty());
}

Bytes report_from(const std::string& host) {
  WatchedWorker worker{.host = host, .pid = 7, .report = {}, .end = "exited with code 5"};
  return encode_worker(worker, TimePoint(seconds(1)));
}

TEST(JobList, Node0ShowsTheWorkersOfTheOtherNodes) {
  const AgentProcessName process_name;
  const auto sheet = sheet_of_this_process(3, 1);
  EXPECT_EQ(jobs_of_this_process().at(0).ranks.size(), 1U);
  const auto reports = *WorkerReports::create(3);
  reports->store(2, report_from("owl"), TimePoint(seconds(20)));
  // If a rank without a report were shown, every other rank would seem to wait for that rank.
  EXPECT_EQ(jobs_of_this_process().at(0).ranks.size(), 1U);
  reports->store(1, report_from("jay"), TimePoint(seconds(20)));
  const auto jobs = jobs_of_this_process();
  ASSERT_EQ(jobs.at(0).ranks.size(), 3U);
  EXPECT_EQ(jobs[0].local_size, 1);
  EXPECT_EQ(jobs[0].ranks[1].host, "jay");
  EXPECT_EQ(jobs[0].ranks[2].host, "owl");
  EXPECT_EQ(jobs[0].ranks[2].reason, "exited with code 5");
}

TEST(JobList, AnotherNodeShowsItsOwnWorkers) {
  const AgentProcessName process_name;
  const auto sheet = sheet_of_this_process(5, 2, 3);
  const auto reports = *WorkerReports::create(5);
  for (int rank = 0; rank < 5; ++rank)
    reports->store(rank, report_from("hen"), TimePoint(seconds(20)));
  const auto jobs = jobs_of_this_process();
  ASSERT_EQ(jobs.at(0).ranks.size(), 2U);
  EXPECT_EQ(jobs[0].first_rank, 3);
}

}  // namespace
}  // namespace farandole
