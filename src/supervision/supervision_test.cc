#include "supervision/supervision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <optional>
#include <utility>

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr seconds kGrace{30};

class SupervisionTest : public ::testing::Test {
 protected:
  void end_worker(int rank, ProcessEnd process_end, FlightReport record = {}) {
    actions_ = job_.worker_ended(rank, {process_end, std::move(record), {}, now_});
  }
  void receive_signal(int number) { actions_ = job_.signal_received(number, now_); }
  void pass_time(Duration time) {
    now_ += time;
    actions_ = job_.handle_deadline(now_);
  }
  void expect_nothing() const {
    EXPECT_FALSE(actions_.forward_signal.has_value());
    EXPECT_FALSE(actions_.kill_everything);
    EXPECT_THAT(actions_.notices, IsEmpty());
  }

  TimePoint now_ = TimePoint{} + seconds(1000);
  Supervision job_{{710, 711, 712}, kGrace};
  Actions actions_;
};

FlightReport report_blaming(int rank) {
  FlightReport record;
  record.member_state = MemberState::kMember;
  record.blamed_rank = rank;
  return record;
}

FlightReport report_of(MemberState member_state, TimePoint since = {}) {
  FlightReport record;
  record.member_state = member_state;
  record.since = since;
  return record;
}

constexpr ProcessEnd exited(int code) { return {.code = code}; }
constexpr ProcessEnd killed(int signal) { return {.signal = signal}; }

TEST_F(SupervisionTest, SuccessCausesNoActions) {
  EXPECT_FALSE(job_.is_finished());
  EXPECT_FALSE(job_.deadline().has_value());
  for (const int rank : {1, 0, 2}) end_worker(rank, exited(0));
  EXPECT_TRUE(job_.is_finished());
  EXPECT_EQ(job_.exit_code(), 0);
  EXPECT_THAT(job_.closing_lines(), IsEmpty());
}

TEST_F(SupervisionTest, AnEarlySuccessEndsNoOtherWorker) {
  end_worker(1, exited(0));
  expect_nothing();
  EXPECT_FALSE(job_.deadline().has_value());
  EXPECT_FALSE(job_.is_alive(1));
  EXPECT_TRUE(job_.is_alive(2));
  EXPECT_FALSE(job_.is_ending());
  pass_time(std::chrono::hours(10));
  expect_nothing();
  EXPECT_FALSE(job_.is_finished());
}

TEST_F(SupervisionTest, TheFirstFailureDeterminesTheExitCode) {
  end_worker(1, exited(3));
  EXPECT_TRUE(job_.is_ending());
  end_worker(0, exited(1));
  end_worker(2, killed(SIGABRT));
  EXPECT_TRUE(job_.is_finished());
  EXPECT_FALSE(job_.deadline().has_value());
  EXPECT_EQ(job_.exit_code(), 3);
  ASSERT_TRUE(job_.failure().has_value());
  EXPECT_EQ(job_.failure()->rank, 1);
  EXPECT_EQ(job_.failure()->pid, 711);
  EXPECT_EQ(job_.failure()->exit_code, 3);
  EXPECT_EQ(job_.failure()->other_ends,
            "rank 0: exited with code 1; rank 2: killed by signal 6 (SIGABRT)");
  EXPECT_THAT(job_.closing_lines(), IsEmpty());
}

TEST_F(SupervisionTest, ExitCodesForSignalsAreThoseOfShells) {
  end_worker(1, killed(SIGKILL));
  EXPECT_EQ(job_.exit_code(), 128 + 9);
}

TEST_F(SupervisionTest, AfterAFailureTheOthersGetTimeThenSigtermThenSigkill) {
  end_worker(1, exited(3));
  expect_nothing();
  pass_time(Supervision::kOwnErrorTime - milliseconds(1));
  expect_nothing();
  pass_time(milliseconds(1));
  EXPECT_EQ(actions_.forward_signal, std::optional(SIGTERM));
  EXPECT_THAT(actions_.notices, ElementsAre(HasSubstr("rank 1 (pid 711) exited with code 3")));
  end_worker(0, killed(SIGTERM));
  pass_time(Supervision::kTerminateTime);
  EXPECT_TRUE(actions_.kill_everything);
  EXPECT_FALSE(job_.is_finished());
  end_worker(2, killed(SIGKILL));
  EXPECT_TRUE(job_.is_finished());
  EXPECT_EQ(job_.exit_code(), 3);
  EXPECT_EQ(job_.failure()->other_ends, "rank 0: ended with SIGTERM; rank 2: ended with SIGKILL");
}

TEST_F(SupervisionTest, GivesUpOnWorkersThatCannotBeKilled) {
  end_worker(1, exited(3));
  pass_time(Supervision::kOwnErrorTime);
  pass_time(Supervision::kTerminateTime);
  pass_time(Supervision::kKillTime);
  EXPECT_THAT(actions_.notices, ElementsAre(HasSubstr("ranks 0, 2")));
  EXPECT_TRUE(job_.is_finished());
  EXPECT_THAT(job_.failure()->other_ends, HasSubstr("still there"));
}

TEST_F(SupervisionTest, ASignalIsPassedOnOnce) {
  receive_signal(SIGINT);
  EXPECT_TRUE(job_.is_ending());
  EXPECT_EQ(actions_.forward_signal, std::optional(SIGINT));
  EXPECT_THAT(actions_.notices, ElementsAre(HasSubstr("SIGINT passed on to ranks 0-2")));
  now_ += milliseconds(10);
  receive_signal(SIGINT);
  expect_nothing();
  for (const int rank : {0, 1, 2}) end_worker(rank, exited(1));
  EXPECT_EQ(job_.exit_code(), 130);
  EXPECT_THAT(job_.closing_lines(),
              ElementsAre("the job has ended after SIGINT", "ranks 0-2: exited with code 1"));
}

TEST_F(SupervisionTest, ASecondSignalKills) {
  receive_signal(SIGINT);
  now_ += seconds(1);
  receive_signal(SIGINT);
  EXPECT_TRUE(actions_.kill_everything);
  now_ += seconds(1);
  receive_signal(SIGINT);
  expect_nothing();
  for (const int rank : {0, 1, 2}) end_worker(rank, killed(SIGKILL));
  EXPECT_EQ(job_.exit_code(), 130);
}

TEST_F(SupervisionTest, ADifferentSignalCountsAsASecondOne) {
  receive_signal(SIGTERM);
  receive_signal(SIGINT);
  EXPECT_TRUE(actions_.kill_everything);
  EXPECT_EQ(job_.exit_code(), 128 + SIGTERM);
}

TEST_F(SupervisionTest, WorkersAreKilledAfterTheGraceTime) {
  receive_signal(SIGTERM);
  pass_time(kGrace - milliseconds(1));
  expect_nothing();
  pass_time(milliseconds(1));
  EXPECT_TRUE(actions_.kill_everything);
  EXPECT_EQ(job_.exit_code(), 143);
}

TEST_F(SupervisionTest, TheExitCodeNamesTheSignalEvenIfWorkersSucceed) {
  receive_signal(SIGTERM);
  for (const int rank : {0, 1, 2}) end_worker(rank, exited(0));
  EXPECT_EQ(job_.exit_code(), 143);
}

TEST_F(SupervisionTest, ASignalAfterAFailureEndsTheJobSoonerButKeepsTheCause) {
  end_worker(2, exited(7));
  receive_signal(SIGINT);
  EXPECT_EQ(actions_.forward_signal, std::optional(SIGINT));
  EXPECT_FALSE(actions_.kill_everything);
  pass_time(Supervision::kTerminateTime);
  EXPECT_TRUE(actions_.kill_everything);
  EXPECT_EQ(job_.exit_code(), 7);
}

TEST_F(SupervisionTest, AClosedOutputEndsTheJob) {
  receive_signal(SIGPIPE);
  EXPECT_EQ(actions_.forward_signal, std::optional(SIGTERM));
  for (const int rank : {0, 1, 2}) end_worker(rank, killed(SIGTERM));
  EXPECT_EQ(job_.exit_code(), 128 + SIGPIPE);
  EXPECT_THAT(job_.closing_lines().back(), "ranks 0-2: ended with SIGTERM");
}

TEST_F(SupervisionTest, AClosedOutputIsNeverTheSecondSignal) {
  for (const int first_signal : {SIGPIPE, SIGINT, SIGTERM}) {
    job_ = Supervision({710, 711, 712}, kGrace);
    receive_signal(first_signal);
    EXPECT_TRUE(actions_.forward_signal.has_value());
    const TimePoint deadline = now_ + kGrace;
    for (int i = 0; i < 3; ++i) {
      now_ += seconds(1);
      receive_signal(SIGPIPE);
      expect_nothing();
    }
    EXPECT_EQ(job_.deadline(), deadline);
    receive_signal(SIGINT);
    EXPECT_TRUE(actions_.kill_everything) << "after signal " << first_signal;
    EXPECT_EQ(job_.exit_code(), 128 + first_signal);
  }
}

TEST_F(SupervisionTest, AClosedOutputAfterAFailureEndsTheJobSooner) {
  end_worker(2, exited(7));
  receive_signal(SIGPIPE);
  EXPECT_EQ(actions_.forward_signal, std::optional(SIGTERM));
  now_ += seconds(1);
  receive_signal(SIGPIPE);
  expect_nothing();
}

TEST_F(SupervisionTest, CtrlCMayEndTheReaderOfTheOutputFirst) {
  receive_signal(SIGPIPE);
  now_ += milliseconds(10);
  receive_signal(SIGINT);
  expect_nothing();
}

TEST_F(SupervisionTest, BlameLeadsToTheFirstCause) {
  end_worker(0, exited(1), report_blaming(1));
  end_worker(2, exited(1), report_blaming(0));
  end_worker(1, exited(7));  // later than the workers that blame it
  EXPECT_EQ(job_.failure()->rank, 1);
  EXPECT_EQ(job_.exit_code(), 7);
  EXPECT_EQ(job_.failure()->other_ends, "ranks 0, 2: exited with code 1");
}

TEST_F(SupervisionTest, AWorkerThatExitedWithCode0MayBeTheCause) {
  FlightReport left_record = report_of(MemberState::kLeft, now_);
  left_record.groups = {kWorld};
  end_worker(2, exited(0), left_record);
  end_worker(0, exited(4), report_blaming(2));
  end_worker(1, exited(1), report_blaming(2));
  EXPECT_EQ(job_.failure()->rank, 2);
  EXPECT_EQ(job_.exit_code(), 4);  // the job has failed, although rank 2 ended with code 0
}

TEST_F(SupervisionTest, ACircleOfBlameEnds) {
  end_worker(2, exited(5), report_blaming(0));
  end_worker(1, exited(6), report_blaming(0));
  end_worker(0, exited(7), report_blaming(1));
  EXPECT_EQ(job_.failure()->rank, 1);
  EXPECT_EQ(job_.exit_code(), 6);
}

TEST_F(SupervisionTest, AnInvalidBlamedRankIsIgnored) {
  end_worker(0, exited(5), report_blaming(0));
  for (const int rank : {1, 2}) end_worker(rank, exited(1), report_blaming(77));
  EXPECT_EQ(job_.failure()->rank, 0);
}

TEST_F(SupervisionTest, AWorkerThatWeEndedIsNotTheCause) {
  end_worker(0, exited(5), report_blaming(1));
  pass_time(Supervision::kOwnErrorTime);
  end_worker(1, killed(SIGTERM), report_of(MemberState::kMember, now_ - seconds(9)));
  end_worker(2, killed(SIGTERM));
  EXPECT_EQ(job_.failure()->rank, 0);
  EXPECT_EQ(job_.exit_code(), 5);
}

TEST_F(SupervisionTest, AWorkerThatLeftBeforeWeEndedItIsTheCause) {
  FlightReport left_record = report_of(MemberState::kLeft, now_);
  left_record.groups = {kWorld};
  now_ += milliseconds(1);
  end_worker(0, exited(5), report_blaming(1));
  pass_time(Supervision::kOwnErrorTime);
  end_worker(1, killed(SIGTERM), left_record);
  end_worker(2, killed(SIGTERM));
  EXPECT_EQ(job_.failure()->rank, 1);
  EXPECT_TRUE(job_.failure()->ended_by_launcher);
  EXPECT_EQ(job_.exit_code(), 5);
}

TEST_F(SupervisionTest, AWorkerThatEndedBeforeInitIsTheCauseOfFailuresInInit) {
  end_worker(1, exited(0));
  end_worker(0, exited(1), report_of(MemberState::kForming));
  end_worker(2, exited(1),
             report_of(MemberState::kLeft));  // init() raised an error, and the program ended
  EXPECT_EQ(job_.failure()->rank, 1);
  EXPECT_EQ(job_.exit_code(), 1);
}

// The flight record of a worker after an exception has ended its program.
FlightReport record_after_exception(LeaveCause cause, FlightReport record) {
  record.member_state = MemberState::kLeft;
  record.cause = cause;
  return record;
}

TEST_F(SupervisionTest, AnExceptionOfTheProgramIsNotCausedByALostRank) {
  FlightReport left_record = report_of(MemberState::kLeft, now_);
  left_record.groups = {kWorld};
  end_worker(0, exited(0), left_record);
  now_ += seconds(1);
  end_worker(1, exited(3), record_after_exception(LeaveCause::kException, report_blaming(0)));
  end_worker(2, exited(1), record_after_exception(LeaveCause::kGroupLost, report_blaming(0)));
  EXPECT_EQ(job_.failure()->rank, 1);
  EXPECT_EQ(job_.exit_code(), 3);
}

TEST_F(SupervisionTest, AnUncaughtGroupLostErrorHasACause) {
  end_worker(1, exited(1), record_after_exception(LeaveCause::kGroupLost, report_blaming(0)));
  end_worker(0, killed(SIGKILL));
  EXPECT_EQ(job_.failure()->rank, 0);
}

// The launcher uses the cause in the record, not the reason or the traceback.
TEST_F(SupervisionTest, TextsInTheRecordDoNotDecideTheCause) {
  FlightReport record = record_after_exception(LeaveCause::kException, report_blaming(0));
  record.reason = "uncaught GroupLostError: rank 0 died";
  record.traceback = "farandole.errors.GroupLostError: rank 0 died";
  end_worker(1, exited(1), record);
  end_worker(0, killed(SIGKILL));
  EXPECT_EQ(job_.failure()->rank, 1);
}

TEST_F(SupervisionTest, AnExceptionAfterACaughtInitErrorIsItsOwnCause) {
  end_worker(0, exited(0));
  end_worker(1, exited(1),
             record_after_exception(LeaveCause::kException, report_of(MemberState::kLeft)));
  EXPECT_EQ(job_.failure()->rank, 1);
}

TEST_F(SupervisionTest, AKilledWorkerIsItsOwnCause) {
  end_worker(0, exited(0));
  end_worker(1, killed(SIGSEGV), report_of(MemberState::kForming));
  end_worker(2, exited(1), report_of(MemberState::kForming));
  EXPECT_EQ(job_.failure()->rank, 1);
  EXPECT_EQ(job_.exit_code(), 128 + SIGSEGV);
}

TEST_F(SupervisionTest, AWorkerKilledAfterALossIsItsOwnCause) {
  end_worker(0, exited(0), report_of(MemberState::kLeft, now_));
  end_worker(2, killed(SIGKILL), report_blaming(0));
  EXPECT_EQ(job_.failure()->rank, 2);
}

TEST_F(SupervisionTest, StopsAndContinuationsOfWorkersAreReported) {
  actions_ = job_.worker_stopped(1, SIGTSTP);
  EXPECT_THAT(actions_.notices, ElementsAre("rank 1 (pid 711) is stopped (SIGTSTP); `kill -CONT "
                                            "711` lets it go on"));
  EXPECT_EQ(job_.stop_signal(1), SIGTSTP);
  EXPECT_EQ(job_.stop_signal(0), 0);
  actions_ = job_.worker_continued(1);
  EXPECT_THAT(actions_.notices, ElementsAre("rank 1 (pid 711) goes on"));
  EXPECT_EQ(job_.stop_signal(1), 0);
  actions_ = job_.worker_continued(1);
  expect_nothing();
}

TEST_F(SupervisionTest, ContinuingAWorkerToEndItIsNotReported) {
  actions_ = job_.worker_stopped(1, SIGSTOP);
  end_worker(0, exited(3));
  pass_time(Supervision::kOwnErrorTime);
  EXPECT_EQ(job_.stop_signal(1), SIGSTOP);
  actions_ = job_.worker_continued(1);
  expect_nothing();
}

TEST_F(SupervisionTest, ASignalAfterTheEndIsIgnored) {
  for (const int rank : {0, 1, 2}) end_worker(rank, exited(0));
  receive_signal(SIGINT);
  expect_nothing();
  EXPECT_EQ(job_.exit_code(), 0);
}

TEST_F(SupervisionTest, AnotherNodeThatFailsEndsThisOne) {
  actions_ = job_.other_node_failed({.why = "node 1 (hen): rank 4 has exited with code 3"}, now_);
  EXPECT_THAT(actions_.notices, ElementsAre(HasSubstr("rank 4 has exited with code 3; the workers "
                                                      "of this node end, too")));
  EXPECT_TRUE(job_.is_ending());
  end_worker(0, exited(1));
  pass_time(Supervision::kOwnErrorTime);
  EXPECT_EQ(actions_.forward_signal, SIGTERM);
  end_worker(1, killed(SIGTERM));
  end_worker(2, exited(0));
  EXPECT_EQ(job_.exit_code(), 1);
  EXPECT_FALSE(job_.own_failure().has_value());
  EXPECT_FALSE(job_.failure().has_value());
  EXPECT_THAT(job_.closing_lines(),
              ElementsAre(HasSubstr("the job has ended: node 1 (hen): rank 4"),
                          HasSubstr("rank 1: ended with SIGTERM")));
}

TEST_F(SupervisionTest, AnotherNodeThatFailsMakesSuccessfulWorkersFail) {
  actions_ = job_.other_node_failed({.why = "node 1 is gone"}, now_);
  for (const int rank : {0, 1, 2}) end_worker(rank, exited(0));
  EXPECT_EQ(job_.exit_code(), 1);
}

// The user's signal goes to all nodes, and another node may report it before it reaches this one.
TEST_F(SupervisionTest, ASignalThatAnotherNodeReportsFirstIsPassedOnOnce) {
  (void)job_.other_node_failed({.why = "node 1: SIGINT has ended it", .signal = SIGINT}, now_);
  const TimePoint deadline = now_ + kGrace;
  now_ += seconds(1);
  receive_signal(SIGINT);
  expect_nothing();
  EXPECT_EQ(job_.deadline(), deadline);
  now_ += seconds(1);
  receive_signal(SIGINT);
  EXPECT_TRUE(actions_.kill_everything);
}

// The workers of this node may end before the user's signal reaches this node.
TEST_F(SupervisionTest, ASignalThatAnotherNodeReportsFirstMayArriveTooLate) {
  (void)job_.other_node_failed({.why = "node 1: SIGHUP has ended it", .signal = SIGHUP}, now_);
  for (const int rank : {0, 1, 2}) end_worker(rank, exited(0));
  receive_signal(SIGHUP);
  expect_nothing();
  EXPECT_EQ(job_.exit_code(), 128 + SIGHUP);
}

TEST_F(SupervisionTest, OnlyTheFirstFailureCounts) {
  end_worker(1, exited(5));
  actions_ = job_.other_node_failed({.why = "node 1 is gone"}, now_);
  expect_nothing();
  EXPECT_EQ(job_.own_failure()->why, "rank 1 (pid 711) has exited with code 5");
  end_worker(0, exited(1));
  end_worker(2, exited(1));
  EXPECT_EQ(job_.exit_code(), 5);
}

// A worker of this node has made another node fail, but this node does not know yet that the worker
// has ended.
class SupervisionOfABlamedNode : public SupervisionTest {
 protected:
  void SetUp() override {
    (void)job_.other_node_failed({.why = "node 1 (hen): rank 4", .rank = 4, .blamed_rank = 1},
                                 now_);
  }
};

TEST_F(SupervisionOfABlamedNode, ABlamedWorkerThatEndsIsTheFirstCause) {
  end_worker(0, exited(1), report_blaming(1));
  EXPECT_FALSE(job_.own_failure().has_value());
  end_worker(1, killed(SIGKILL), report_blaming(4));
  EXPECT_EQ(job_.own_failure()->why, "rank 1 (pid 711) was killed by signal 9 (SIGKILL)");
  EXPECT_EQ(job_.own_failure()->rank, 1U);
  EXPECT_FALSE(job_.own_failure()->blamed_rank.has_value());
  end_worker(2, exited(1), report_blaming(1));
  EXPECT_EQ(job_.exit_code(), 128 + SIGKILL);
  EXPECT_EQ(job_.failure()->rank, 1);
  EXPECT_THAT(job_.closing_lines(), IsEmpty());
}

TEST_F(SupervisionOfABlamedNode, ABlamedWorkerMayHaveACauseOnItsNode) {
  end_worker(0, killed(SIGSEGV));
  end_worker(1, exited(1), report_blaming(0));
  end_worker(2, exited(1), report_blaming(0));
  EXPECT_EQ(job_.failure()->rank, 0);
  EXPECT_EQ(job_.exit_code(), 128 + SIGSEGV);
}

TEST_F(SupervisionOfABlamedNode, AWorkerThatBlamesTheOtherNodeIsNotTheCause) {
  for (const int rank : {0, 1, 2}) end_worker(rank, exited(3), report_blaming(4));
  EXPECT_FALSE(job_.own_failure().has_value());
  EXPECT_EQ(job_.exit_code(), 1);
}

TEST_F(SupervisionOfABlamedNode, AWorkerThatSucceedsOrThatWeEndIsNotTheCause) {
  end_worker(0, exited(0));
  pass_time(Supervision::kOwnErrorTime);
  end_worker(1, killed(SIGTERM));
  end_worker(2, killed(SIGKILL));
  EXPECT_FALSE(job_.own_failure().has_value());
  EXPECT_EQ(job_.exit_code(), 1);
}

TEST_F(SupervisionOfABlamedNode, AWorkerThatLeftBeforeWeEndedItIsTheCause) {
  end_worker(0, exited(1), report_blaming(1));
  FlightReport left_record = report_of(MemberState::kLeft, now_);
  left_record.groups = {kWorld};
  pass_time(Supervision::kOwnErrorTime);
  end_worker(1, killed(SIGTERM), left_record);
  end_worker(2, killed(SIGTERM));
  ASSERT_TRUE(job_.own_failure().has_value());
  EXPECT_EQ(job_.own_failure()->rank, 1U);
  EXPECT_EQ(job_.failure()->rank, 1);
}

TEST_F(SupervisionTest, AnotherNodeMayBlameAnotherOneOfItsFailedRanks) {
  end_worker(0, exited(1), report_blaming(4));
  const NodeFailure victim{.why = "", .rank = 3, .blamed_rank = 9, .first_rank = 3, .ranks = 2};
  (void)job_.other_node_failed(victim, now_);
  const NodeFailure failure_elsewhere{
      .why = "", .rank = 5, .blamed_rank = {}, .first_rank = 5, .ranks = 2};
  (void)job_.other_node_failed(failure_elsewhere, now_);
  EXPECT_TRUE(job_.own_failure().has_value());
  const NodeFailure cause{.why = "", .rank = 3, .blamed_rank = {}, .first_rank = 3, .ranks = 2};
  (void)job_.other_node_failed(cause, now_);
  EXPECT_FALSE(job_.own_failure().has_value());
}

TEST_F(SupervisionTest, ALaterFailureOfAnotherNodeMayBeTheCause) {
  end_worker(0, exited(1), report_blaming(2));
  end_worker(2, exited(1), report_blaming(4));
  EXPECT_EQ(job_.own_failure()->rank, 2U);
  EXPECT_EQ(job_.own_failure()->blamed_rank, 4U);
  actions_ = job_.other_node_failed({.why = "node 3", .rank = 9}, now_);
  EXPECT_TRUE(job_.own_failure().has_value());
  actions_ = job_.other_node_failed({.why = "node 1 (hen): rank 4", .rank = 4}, now_);
  expect_nothing();
  EXPECT_FALSE(job_.own_failure().has_value());
  end_worker(1, exited(1), report_blaming(4));
  EXPECT_FALSE(job_.failure().has_value());
  EXPECT_EQ(job_.exit_code(), 1);
  EXPECT_EQ(job_.closing_lines().front(), "the job has ended: node 1 (hen): rank 4");
}

TEST_F(SupervisionTest, TheCauseOfAnotherNodesFailureReplacesIt) {
  (void)job_.other_node_failed({.why = "node 1: rank 4", .rank = 4, .blamed_rank = 7}, now_);
  (void)job_.other_node_failed({.why = "node 3: rank 9", .rank = 9, .blamed_rank = 7}, now_);
  (void)job_.other_node_failed({.why = "node 2: rank 7", .rank = 7, .blamed_rank = {}}, now_);
  for (const int rank : {0, 1, 2}) end_worker(rank, exited(1));
  EXPECT_EQ(job_.closing_lines().front(), "the job has ended: node 2: rank 7");
}

// A worker may fail because of the signal at another node before that node reports the signal.
TEST_F(SupervisionTest, ASignalAtAnotherNodeMayBeTheCauseOfAnEarlierFailure) {
  end_worker(0, exited(1), report_blaming(4));
  pass_time(Supervision::kOwnErrorTime - milliseconds(1));
  actions_ = job_.other_node_failed(
      {.why = "node 1: SIGTERM has ended it", .signal = SIGTERM, .first_rank = 3, .ranks = 2},
      now_);
  EXPECT_EQ(actions_.forward_signal, SIGTERM);
  EXPECT_FALSE(job_.own_failure().has_value());
  pass_time(kGrace - milliseconds(1));
  expect_nothing();
  for (const int rank : {1, 2}) end_worker(rank, exited(0));
  EXPECT_EQ(job_.exit_code(), 128 + SIGTERM);
  EXPECT_FALSE(job_.failure().has_value());
  EXPECT_EQ(job_.closing_lines().front(), "the job has ended: node 1: SIGTERM has ended it");
}

TEST_F(SupervisionTest, TheLossOfAnotherNodeMayBeTheCauseOfAnEarlierFailure) {
  end_worker(0, exited(3), report_blaming(4));
  actions_ = job_.other_node_failed({.why = "node 1 is gone", .first_rank = 3, .ranks = 2}, now_);
  expect_nothing();
  for (const int rank : {1, 2}) end_worker(rank, exited(3), report_blaming(4));
  EXPECT_EQ(job_.exit_code(), 1);
  EXPECT_FALSE(job_.failure().has_value());
  EXPECT_EQ(job_.closing_lines().front(), "the job has ended: node 1 is gone");
}

TEST_F(SupervisionTest, ASignalAfterAFailureOfAnotherNodeKeepsTheCause) {
  (void)job_.other_node_failed({.why = "node 1: rank 4", .rank = 4, .first_rank = 3, .ranks = 2},
                               now_);
  receive_signal(SIGINT);
  EXPECT_EQ(actions_.forward_signal, SIGINT);
  for (const int rank : {0, 1, 2}) end_worker(rank, killed(SIGINT));
  EXPECT_EQ(job_.exit_code(), 1);  // node 0 returns the exit code of node 1
}

TEST_F(SupervisionTest, ASignalIsAFailureForTheOtherNodes) {
  EXPECT_FALSE(job_.own_failure().has_value());
  receive_signal(SIGINT);
  EXPECT_EQ(job_.own_failure()->why, "SIGINT has ended it");
  EXPECT_EQ(job_.own_failure()->signal, static_cast<std::uint32_t>(SIGINT));
}

TEST_F(SupervisionTest, ASignalAtAnotherNodeIsPassedOn) {
  actions_ = job_.other_node_failed(
      {.why = "node 1 (hen): SIGTERM has ended it", .signal = SIGTERM}, now_);
  EXPECT_EQ(actions_.forward_signal, SIGTERM);
  EXPECT_THAT(actions_.notices,
              ElementsAre("node 1 (hen): SIGTERM has ended it; the workers of this node get the "
                          "signal, too; those that are left after 30 s are killed"));
  pass_time(kGrace - seconds(1));
  expect_nothing();
  pass_time(seconds(1));
  EXPECT_TRUE(actions_.kill_everything);
  for (const int rank : {0, 1, 2}) end_worker(rank, exited(0));
  EXPECT_EQ(job_.exit_code(), 128 + SIGTERM);
}

class SupervisionOfAnElasticJob : public SupervisionTest {
 protected:
  void SetUp() override { job_.set_elastic(); }
};

TEST_F(SupervisionOfAnElasticJob, AFailureEndsNoOtherWorker) {
  end_worker(1, killed(SIGKILL));
  expect_nothing();
  EXPECT_FALSE(job_.is_ending());
  EXPECT_FALSE(job_.deadline().has_value());
  job_.failures_survived();
  for (const int rank : {0, 2}) end_worker(rank, exited(0));
  EXPECT_FALSE(job_.is_finished()) << "the launcher may start new workers";
  job_.no_more_workers();
  EXPECT_TRUE(job_.is_finished());
  EXPECT_EQ(job_.exit_code(), 0);
  EXPECT_FALSE(job_.failure().has_value());
}

TEST_F(SupervisionOfAnElasticJob, OtherNodesLearnOnlyOfFailuresThatEndTheJob) {
  end_worker(1, killed(SIGKILL));
  EXPECT_FALSE(job_.own_failure().has_value());
  (void)job_.end_elastic_job("too few workers", now_);
  EXPECT_THAT(job_.own_failure()->why, HasSubstr("worker 1 (pid 711) was killed"));
}

TEST_F(SupervisionOfAnElasticJob, OtherNodesLearnWhyTheJobEndsWithoutAFailure) {
  (void)job_.end_elastic_job("too few workers", now_);
  EXPECT_EQ(job_.own_failure()->why, "too few workers");
}

TEST_F(SupervisionOfAnElasticJob, ASignalEndsAJobWithoutWorkers) {
  for (const int rank : {0, 1, 2}) end_worker(rank, exited(1));
  EXPECT_FALSE(job_.is_finished());
  receive_signal(SIGTERM);
  EXPECT_THAT(actions_.notices.front(), HasSubstr("SIGTERM passed on to all hosts;"));
  EXPECT_TRUE(job_.is_finished());
}

TEST_F(SupervisionOfAnElasticJob, AWorkerThatHasNotStartedIsNotAlive) {
  job_ = Supervision({0, 711}, kGrace, 4);
  job_.set_elastic();
  EXPECT_FALSE(job_.is_alive(0));
  receive_signal(SIGTERM);
  EXPECT_THAT(actions_.notices.front(), HasSubstr("passed on to rank 5;"));
  end_worker(1, exited(0));
  EXPECT_TRUE(job_.is_finished());
  EXPECT_THAT(job_.closing_lines().back(), "rank 5: exited with code 0");
}

TEST_F(SupervisionOfAnElasticJob, AFailureThatNoWorkerSurvivesFailsTheJob) {
  end_worker(1, exited(5));
  for (const int rank : {0, 2}) end_worker(rank, exited(0));
  EXPECT_EQ(job_.exit_code(), 5);
  EXPECT_EQ(job_.failure()->rank, 1);
}

TEST_F(SupervisionOfAnElasticJob, ANewWorkerTakesThePlaceOfAFailedOne) {
  end_worker(1, exited(5));
  job_.worker_started(1, 800);
  EXPECT_TRUE(job_.is_alive(1));
  job_.failures_survived();
  for (const int rank : {0, 2}) end_worker(rank, exited(0));
  EXPECT_FALSE(job_.is_finished());
  end_worker(1, exited(0));
  EXPECT_EQ(job_.exit_code(), 0);
}

TEST_F(SupervisionOfAnElasticJob, AFailureThatNoWorkerSurvivesIsKeptWhenItsWorkerIsReplaced) {
  end_worker(1, exited(5));
  job_.worker_started(1, 800);
  for (const int rank : {0, 1, 2}) end_worker(rank, exited(0));
  EXPECT_EQ(job_.failure()->other_ends, "ranks 0, 2: exited with code 0") << "as they have ended";
  EXPECT_EQ(job_.exit_code(), 5);
  EXPECT_EQ(job_.failure()->rank, 1);
  EXPECT_EQ(job_.failure()->pid, 711);
  EXPECT_THAT(job_.closing_lines(), IsEmpty());
}

TEST_F(SupervisionOfAnElasticJob, AWorkerThatIsNotNeededMayFail) {
  (void)job_.worker_ended(1, {killed(SIGKILL), {}, {}, now_}, false);
  for (const int rank : {0, 2}) end_worker(rank, exited(0));
  EXPECT_EQ(job_.exit_code(), 0);
}

TEST_F(SupervisionOfAnElasticJob, AJobThatCannotGoOnEnds) {
  actions_ = job_.end_elastic_job("too few workers", now_);
  EXPECT_THAT(actions_.notices, ElementsAre("the job ends: too few workers"));
  pass_time(Supervision::kOwnErrorTime);
  EXPECT_EQ(actions_.forward_signal, SIGTERM);
  for (const int rank : {0, 1, 2}) end_worker(rank, killed(SIGTERM));
  EXPECT_EQ(job_.exit_code(), 1);
  EXPECT_THAT(job_.closing_lines().front(), "the job has ended: too few workers");
}

TEST_F(SupervisionOfAnElasticJob, WorkersEndAfterTheirNextCommit) {
  actions_ = job_.end_at_next_commit("the driver was killed", seconds(9), now_);
  EXPECT_THAT(actions_.notices, ElementsAre("the job ends after the next commit, within 9 s: the "
                                            "driver was killed"));
  EXPECT_FALSE(actions_.forward_signal || actions_.kill_everything);
  EXPECT_TRUE(job_.ends_at_next_commit() && job_.is_ending());
  EXPECT_EQ(job_.own_failure()->why, "the driver was killed");
  for (const int rank : {0, 1, 2}) end_worker(rank, exited(kEndedEarlyExitCode));
  EXPECT_TRUE(job_.is_finished());
  EXPECT_EQ(job_.exit_code(), kEndedEarlyExitCode);
  EXPECT_THAT(job_.closing_lines(), ElementsAre("the job has ended: the driver was killed",
                                                "ranks 0-2: exited with code 75"));
}

TEST_F(SupervisionOfAnElasticJob, WorkersThatAreLateForTheirLastCommitAreKilled) {
  (void)job_.end_at_next_commit("the driver was killed", seconds(9), now_);
  end_worker(0, exited(kEndedEarlyExitCode));
  pass_time(seconds(8));
  expect_nothing();
  pass_time(seconds(1));
  EXPECT_TRUE(actions_.kill_everything);
  for (const int rank : {1, 2}) end_worker(rank, killed(SIGKILL));
  EXPECT_EQ(job_.exit_code(), 1);
}

TEST_F(SupervisionOfAnElasticJob, AJobThatHasFinishedInItsLastStepHasSucceeded) {
  (void)job_.end_at_next_commit("the driver was killed", seconds(9), now_);
  for (const int rank : {0, 1, 2}) end_worker(rank, exited(0));
  EXPECT_EQ(job_.exit_code(), 0);
  EXPECT_THAT(job_.closing_lines(), IsEmpty());
}

TEST_F(SupervisionOfAnElasticJob, ASignalEndsTheLastStep) {
  (void)job_.end_at_next_commit("the driver was killed", seconds(9), now_);
  receive_signal(SIGTERM);
  EXPECT_EQ(actions_.forward_signal, SIGTERM);
  EXPECT_FALSE(job_.ends_at_next_commit());
  (void)job_.end_at_next_commit("again", seconds(9), now_);
  EXPECT_FALSE(job_.ends_at_next_commit()) << "it ends already";
  for (const int rank : {0, 1, 2}) end_worker(rank, killed(SIGTERM));
  EXPECT_EQ(job_.exit_code(), 128 + SIGTERM);
}

TEST_F(SupervisionOfAnElasticJob, ANodeMayEndAfterTheNextCommitEvenIfAnotherNodeHasFailed) {
  (void)job_.other_node_failed({.why = "node 0 (hen) ends"}, now_);
  (void)job_.end_at_next_commit("the driver was killed", seconds(9), now_);
  pass_time(Supervision::kOwnErrorTime);
  expect_nothing();
  for (const int rank : {0, 1, 2}) end_worker(rank, exited(kEndedEarlyExitCode));
  EXPECT_EQ(job_.exit_code(), kEndedEarlyExitCode);
}

TEST_F(SupervisionOfAnElasticJob, ItsFirstFailureIsShownWhenItCannotGoOn) {
  end_worker(1, exited(5));
  end_worker(0, exited(1));
  (void)job_.end_elastic_job("too few workers", now_);
  end_worker(2, exited(1));
  EXPECT_EQ(job_.exit_code(), 5);
  EXPECT_EQ(job_.failure()->rank, 1);
  EXPECT_THAT(job_.closing_lines(), IsEmpty());
}

TEST(SupervisionOfASecondNode, NamesRanksOfTheJob) {
  const TimePoint now = TimePoint{} + seconds(1000);
  Supervision node({710, 711}, kGrace, 3);
  // The record blames a rank of the job: 4 is the second worker here, 0 is on another node.
  (void)node.worker_ended(0, {exited(1), report_blaming(4), {}, now});
  EXPECT_EQ(node.own_failure()->why, "rank 3 (pid 710) has exited with code 1");
  // The other nodes are told about rank 4, because it may also be the cause of their failures.
  EXPECT_EQ(node.own_failure()->rank, 4U);
  EXPECT_FALSE(node.own_failure()->blamed_rank.has_value());
  Supervision node_copy = node;
  const Actions actions = node_copy.handle_deadline(now + Supervision::kOwnErrorTime);
  EXPECT_THAT(actions.notices, ElementsAre(HasSubstr("ending rank 4 with SIGTERM")));
  (void)node.worker_ended(1, {exited(7), {}, {}, now});
  EXPECT_EQ(node.failure()->rank, 4);
  EXPECT_EQ(node.failure()->other_ends, "rank 3: exited with code 1");
  Supervision other_node({710}, kGrace, 3);
  (void)other_node.worker_ended(0, {exited(1), report_blaming(0), {}, now});
  EXPECT_EQ(other_node.failure()->rank, 3);
  EXPECT_EQ(other_node.own_failure()->rank, 3U);
  EXPECT_EQ(other_node.own_failure()->blamed_rank, 0U);
}

}  // namespace
}  // namespace farandole
