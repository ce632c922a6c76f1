// The hosts of a job, as users list them: in the value of -H, or in a hostfile. The formats are
// those of Open MPI, Hydra and Horovod. All functions are pure.
//
// The names and users become arguments of ssh, so the parsers reject texts that ssh or a shell
// could read as anything but a name, such as "-oProxyCommand=x".
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "farandole/status.h"

namespace farandole {

// One host of a job, as the user named it.
struct HostEntry {
  std::string name;  // a host name or an IP address, without brackets
  std::string user;  // empty: not given
  int slots = 1;     // how many workers the host may get
};

// Both parsers return at least one host. If a host is listed again with the same user, its slots
// are added to those of the first entry. A job has at most kNodesMax hosts, and a host at most
// kWorkersMax slots. Errors: kFixCall.

// Parses the value of -H: "hen:2,owl:4", "alice@hen:2", "[fd00::1]:4", or "hen" for one slot.
// Blanks around an entry are ignored.
Result<std::vector<HostEntry>> parse_hosts(std::string_view text);

// Parses the text of a hostfile: one host per line; "#" begins a comment. A line is an entry as in
// -H. "slots=2" may follow an entry without slots. "max_slots=4" or "max-slots=4" may also follow;
// it is checked and then ignored. `path` is only for the error texts. A line without a number of
// slots has `slots_default`.
Result<std::vector<HostEntry>> parse_hostfile(std::string_view text, const std::string& path,
                                              int slots_default = 1);

// Takes hosts from the front of the list until they have `workers` slots. The last of these hosts
// keeps only the slots that are needed for the remaining workers. Without `workers`, takes all
// hosts. `workers` must be positive. Errors: kFixCall if there are too few slots, or more workers
// than a job can have.
Result<std::vector<HostEntry>> assign_workers(const std::vector<HostEntry>& hosts,
                                              std::optional<int> workers);

// How many slots the hosts have together.
int slots_of(const std::vector<HostEntry>& hosts);

}  // namespace farandole
