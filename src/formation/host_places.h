// Host places: if a launcher other than `farandole run` has started the ranks of a job, the ranks
// find out here which of them are on the same host. They need this information before they share a
// LocalStore. Each rank publishes a text, its place; ranks with the same place can share a
// LocalStore.
#pragma once

#include <string>

#include "rendezvous/store.h"

namespace farandole {

// Returns the place of this process: the boot id of the kernel, the network namespace and the user.
// Processes for which all three are equal find each other by the names of Unix sockets.
std::string own_place();

// Publishes `place` as the place of `rank`, waits for the places of all ranks, and returns how many
// ranks are at `place`. Errors: kRebuildGroup if ranks are missing at the limit, or if a rank ends
// during the wait; kFixCall if another process has this rank, and then all other ranks fail, too;
// the errors of the Store.
Result<int> count_ranks_at(const std::string& place, int rank, int size, Store& store,
                           const WaitLimit& limit);

}  // namespace farandole
