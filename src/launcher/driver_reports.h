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

  // Writes the addresses at which node 0 listens, once, after it has begun to listen.
  void report_addresses(const NodeLink& link);
  // Call it on each node when the ranks are known. Only node 0 writes a line.
  void report_job_begin(int node);
  // `line_beginning` is a constant of driver_lines.h. In the line, the number of the node follows
  // this beginning.
  void report_node_change(std::string_view line_beginning, int node);
  void report_job_end(int node, int exit_code);
  // Only node 0 writes a line.
  void report_group(int node, std::int64_t epoch);

 private:
  void write(std::string_view line) {
    if (has_driver_) output_.write_to_driver(line);
  }

  bool has_driver_;
  JobOutput& output_;
  bool has_reported_addresses_ = false;
};

}  // namespace farandole
