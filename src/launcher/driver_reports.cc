#include "launcher/driver_reports.h"

#include <string>

#include "base/format.h"
#include "launcher/driver_lines.h"

namespace farandole {

void DriverReports::addresses(const NodeLink& link) {
  if (!has_driver_ || told_addresses_) return;
  const auto addresses = link.listening_addresses();
  if (addresses.empty()) return;
  told_addresses_ = true;
  std::string line(kListens);
  for (const SocketAddress& address : addresses) line.append(" ").append(address.text());
  write(line);
}

void DriverReports::job_begins(int node) {
  if (node == 0) write(kBegins);
}

void DriverReports::node_changed(std::string_view what, int node) {
  write(format_text("{}{}", what, node));
}

void DriverReports::group_formed(int node, std::int64_t epoch) {
  if (node == 0) write(format_text("{}{}", kEpoch, epoch));
}

void DriverReports::job_ends(int node, int exit_code) {
  if (node == 0) write(kJobIsOver);
  if (exit_code == 255) write(kExitCodeIs255);
}

}  // namespace farandole
