// ProcessContext: what the engines of one process share. It owns nothing: each part goes with the
// last engine or tensor that uses it.
#pragma once

#include <map>
#include <memory>

#include "base/guarded.h"
#include "farandole/engine.h"
#include "rendezvous/store.h"
#include "transport/shm/shared_heap.h"

namespace farandole {

// The memory of an engine's flight record.
struct FlightMemory {
  std::shared_ptr<Segment> segment;  // shared with nobody
  std::shared_ptr<void> claim;  // no other engine of this process writes there while this lives
};

// Any thread.
class ProcessContext {
 public:
  // The heap that engines or tensors of this process use already, unless it has more than `bytes`,
  // which peers might not be able to map; otherwise a new one. Owned by its engines and blocks.
  // Errors: as SharedHeap::create().
  Result<std::shared_ptr<SharedHeap>> heap(std::size_t bytes);
  // The connection over the launcher's descriptor, owned by its engines. Errors: as
  // StoreClient::connect().
  Result<std::shared_ptr<Store>> launcher_store(int descriptor);
  // The launcher's memory, or some that nobody reads: without a descriptor (−1), and while another
  // engine writes there. Errors: kFixCall, kStop.
  Result<FlightMemory> flight_memory(int descriptor);

 private:
  struct Parts {
    std::weak_ptr<SharedHeap> heap;
    std::map<int, std::weak_ptr<Store>> stores;        // by descriptor
    std::map<int, std::weak_ptr<void>> flight_claims;  // by descriptor
  };

  Guarded<Parts> parts_;
};

// The launcher's memory for a rank's flight record. Errors: kFixCall if it is something else.
Result<std::shared_ptr<Segment>> attach_flight_memory(int descriptor);

}  // namespace farandole
