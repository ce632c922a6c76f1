// Exit report: what the launcher says in the Store when a worker has ended, so that nobody waits
// for that worker in init() until the time is over.
#pragma once

#include <string>

#include "rendezvous/store_server.h"

namespace farandole {

// Ends the formation that the worker has begun last, and the next one, unless their ends were said
// already: nobody forms a group with it any more. Speaks for all `size` ranks that have not come
// yet, since the others wait for these, too. `how`: "rank 1 (pid 12) has exited …".
void report_exit(StoreServer& store, int rank, int size, const std::string& how);

}  // namespace farandole
