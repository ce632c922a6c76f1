// Exit report: what the launcher writes to the store when a worker has ended. Without it, the other
// ranks would wait for that worker in init() until their time-out.
#pragma once

#include <string>

#include "rendezvous/store_server.h"

namespace farandole {

// Makes two formations of the group fail: the last formation that the worker has begun, and the
// formation after it. Neither can succeed without this worker. Values that are already in the store
// stay. `end_text` describes the exit: "rank 1 (pid 12) has exited …".
void report_exit(StoreServer& store, int rank, const std::string& end_text);

}  // namespace farandole
