// The name of the host on which this process runs, and the path of our program on all hosts.
#pragma once

#include <string>

#include "remote/host_list.h"

namespace farandole {

// Returns an entry for this host, with its host name and 0 slots.
HostEntry own_host();

// Whether an entry means this host and this user. Such an entry names no user, and its name is
// localhost, an address of this host, or the host name of this host.
bool is_own_host(const HostEntry& host);

// The path of our program, which the other hosts must have, too.
std::string path_of_program();

}  // namespace farandole
