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

TEST_F(ExitReportTest, AWorkerThatBeganNoFormationFailsTheFirst) {
  report_exit(*server_, 1, "rank 1 (pid 12) has exited with code 0");
  EXPECT_TRUE(exists(keys::complete(1)));
  EXPECT_FALSE(exists(keys::complete(0)));
  EXPECT_FALSE(exists(keys::complete(2)));
}

TEST_F(ExitReportTest, AWorkerThatEndsInAFormationFailsItAndTheNext) {
  ASSERT_TRUE(server_->add(keys::formations(1), 1).ok());
  report_exit(*server_, 1, "rank 1 (pid 12) has exited with code 0");
  EXPECT_TRUE(exists(keys::complete(1)));
  EXPECT_TRUE(exists(keys::complete(2)));
  EXPECT_FALSE(exists(keys::complete(3)));
}

TEST_F(ExitReportTest, AWorkerThatEndsAfterAFormationFailsTheNext) {
  ASSERT_TRUE(server_->add(keys::formations(1), 1).ok());
  ASSERT_TRUE(server_->set(keys::complete(1), {})
                  .ok());  // a member writes this value when the formation is complete
  report_exit(*server_, 1, "rank 1 (pid 12) has exited with code 0");
  EXPECT_TRUE(exists(keys::complete(2)));
}

}  // namespace
}  // namespace farandole
