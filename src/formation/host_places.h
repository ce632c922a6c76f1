// Host places: how the ranks of a job that another launcher has started find out which of them are
// on the same host, before they share a LocalStore. Each rank publishes a text that is the same for
// ranks that can share a LocalStore.
#pragma once

#include <string>

#include "rendezvous/store.h"

namespace farandole {

// The place of this process: this boot of the kernel, the network namespace and the user. Processes
// that share all three find each other by the names of Unix sockets.
std::string own_place();

// Publishes `place` as that of `rank`, waits for those of all ranks, and returns how many ranks are
// at this place. Errors: kRebuildGroup with the missing ranks at the limit, or if a rank ends
// meanwhile; kFixCall if another process has this rank, which then fails on all ranks; those of the
// Store.
Result<int> count_ranks_at(const std::string& place, int rank, int size, Store& store,
                           const WaitLimit& limit);

}  // namespace farandole
