// The text that `farandole doctor -H` shows: a table of the hosts, the connections between them,
// and the problems. The functions are pure.
#pragma once

#include <string>
#include <vector>

#include "probe/survey.h"
#include "probe/verdict.h"

namespace farandole {

struct ReportStyle {
  int columns = 100;  // the width of the terminal
  bool has_colors = false;
};

// With more than 8 hosts, the report has a summary instead of the tables. The last line says
// whether a job over the hosts works.
std::string hosts_report(const Survey& survey, const std::vector<Problem>& problems,
                         const ReportStyle& style);

}  // namespace farandole
