// Tests that docs/simulator.md shows what the workloads cost now.
#include "workloads.h"

#include <gmock/gmock.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>

namespace farandole::sim {
namespace {

TEST(Workloads, CostsEqualThoseOnThePage) {
  std::ifstream file(SIM_PAGE);
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_THAT(page, testing::HasSubstr(workload_report(8)))
      << "python3 tools/ablations.py --write brings the page up to date";
}

}  // namespace
}  // namespace farandole::sim
