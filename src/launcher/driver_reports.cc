#include "launcher/driver_reports.h"

#include <string>

#include "base/format.h"
#include "launcher/driver_lines.h"

namespace farandole {

void DriverReports::report_addresses(const NodeLink& link) {
  if (!has_driver_ || has_reported_addresses_) return;
  const auto addresses = link.listening_addresses();
  if (addresses.empty()) return;
  has_reported_addresses_ = true;
  std::string line(kListensLine);
  for (const SocketAddress& address : addresses) line.append(" ").append(address.text());
  write(line);
}

void DriverReports::report_job_begin(int node) {
  if (node == 0) write(kBeginsLine);
}

void DriverReports::report_node_change(std::string_view line_beginning, int node) {
  write(format_text("{}{}", line_beginning, node));
}

void DriverReports::report_group(int node, std::int64_t epoch) {
  if (node == 0) write(format_text("{}{}", kEpochLine, epoch));
}

void DriverReports::report_job_end(int node, int exit_code) {
  if (node == 0) write(kJobIsOverLine);
  if (exit_code == 255) write(kExitCode255Line);
}

}  // namespace farandole
