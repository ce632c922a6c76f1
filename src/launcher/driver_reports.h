// DriverReports: the lines that a launcher writes to its driver (driver_lines.h). Without a driver,
// it writes nothing.
#pragma once

#include <cstdint>
#include <string_view>

#include "nodes/node_link.h"
#include "output/job_output.h"

namespace farandole {

// Only one thread may use it.
class DriverReports {
 public:
  // `output` must outlive this object.
  DriverReports(bool has_driver, JobOutput& output) : has_driver_(has_driver), output_(output) {}

  // Says once where node 0 listens, as soon as it does.
  void addresses(const NodeLink& link);
  // The ranks are known. Only node 0 says so.
  void job_begins(int node);
  // `what` is one of the beginnings of lines in driver_lines.h that precede the number of a node.
  void node_changed(std::string_view what, int node);
  void job_ends(int node, int exit_code);
  // Only node 0 says so.
  void group_formed(int node, std::int64_t epoch);

 private:
  void write(std::string_view line) {
    if (has_driver_) output_.write_to_driver(line);
  }

  bool has_driver_;
  JobOutput& output_;
  bool told_addresses_ = false;
};

}  // namespace farandole
