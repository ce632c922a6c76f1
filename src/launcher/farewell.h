// Farewell: what the launcher says in the Store when a worker has ended, so that nobody waits for
// that worker in init() until the time is over.
#pragma once

#include <string>

#include "rendezvous/store_server.h"

namespace farandole {

// In the formation that the worker has begun last and in the next one, unless something was said
// there already: nobody forms a group with it any more. `how`: "rank 1 (pid 12) has exited …".
void say_farewell(StoreServer& store, int rank, const std::string& how);

}  // namespace farandole
