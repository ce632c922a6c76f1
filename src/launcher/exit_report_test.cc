#include "launcher/exit_report.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "rendezvous/keys.h"

namespace farandole {
namespace {

// A key exists if the server rejects a second value for it.
class ExitReportTest : public ::testing::Test {
 protected:
  bool exists(const std::string& key) { return !server_->set(key, {}).ok(); }

  std::unique_ptr<StoreServer> server_ = StoreServer::create("the launcher").value();
};

TEST_F(ExitReportTest, AWorkerThatNeverBeganFailsTheFirstFormation) {
  report_exit(*server_, 1, 3, "rank 1 (pid 12) has exited with code 0");
  EXPECT_TRUE(exists(keys::member(1, 1)));
  EXPECT_TRUE(exists(keys::complete(1)));
  // Other ranks may wait for rank 2, which has not come yet.
  EXPECT_TRUE(exists(keys::member(1, 2)));
  EXPECT_FALSE(exists(keys::member(0, 1)));
  EXPECT_FALSE(exists(keys::member(2, 1)));
}

TEST_F(ExitReportTest, AWorkerThatHadBegunFailsThatFormationAndTheNext) {
  ASSERT_TRUE(server_->add(keys::formations(1), 1).ok());
  ASSERT_TRUE(server_->set(keys::complete(1), {}).ok());  // written by a member
  report_exit(*server_, 1, 3, "rank 1 (pid 12) has exited with code 0");
  EXPECT_TRUE(exists(keys::member(1, 1)));
  EXPECT_TRUE(exists(keys::member(2, 1)));
  EXPECT_TRUE(exists(keys::complete(2)));
  // The members themselves have ended this formation, so the report adds no keys to it.
  EXPECT_FALSE(exists(keys::member(1, 0)));
  EXPECT_TRUE(exists(keys::member(2, 0)));
}

}  // namespace
}  // namespace farandole
