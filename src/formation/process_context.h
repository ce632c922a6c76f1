// ProcessContext: finds the objects that the engines of one process share. It owns the job's
// secret, because the secret can be read only once; the job's Store, if this process serves the
// Store or the job is elastic; the failpoint; and, for an elastic job, the watch over the launcher
// and the shared data of the timelines. The other objects are destroyed with the last engine or
// tensor that uses them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/guarded.h"
#include "farandole/engine.h"
#include "formation/failpoint.h"
#include "formation/launcher_watch.h"
#include "network/tcp/interfaces.h"
#include "network/tcp/tls_session.h"
#include "rendezvous/job_name.h"
#include "rendezvous/local_store.h"
#include "rendezvous/remote_store.h"
#include "timeline/timeline.h"
#include "transport/shm/shared_heap.h"

namespace farandole {

// The memory of an engine's flight record.
struct FlightMemory {
  std::shared_ptr<Segment> segment;  // this is the only owner
  // While the reservation exists, no other engine writes to `segment`.
  std::shared_ptr<void> reservation;
};

// Any thread may call its functions.
class ProcessContext {
 public:
  // Returns the heap that engines or tensors of this process already use. Creates a new heap if
  // there is none. Also creates a new heap if the existing heap is larger than `bytes`, because
  // peers might not be able to map a heap of this size. Engines and allocated blocks own the heap.
  // Errors: as SharedHeap::create().
  Result<std::shared_ptr<SharedHeap>> heap(std::size_t bytes);
  // Returns the connection to the launcher. The engines that use the connection own it. Errors: as
  // StoreClient::connect().
  Result<std::shared_ptr<LocalStore>> launcher_store(int descriptor);
  // Returns the connection to the job's Store at options.places. The engines that use the
  // connection own it. Errors: as RemoteStore::connect().
  Result<std::shared_ptr<Store>> job_store(const RemoteStore::Options& options,
                                           const WaitLimit& limit);
  // Serves the job's Store at options.places, in a thread, as long as the context exists. Returns a
  // connection to the Store; later calls of job_store() return the same connection. Rank 0 calls it
  // if a launcher other than `farandole run` has started the ranks. If this process already serves
  // the Store or is connected to it (as another rank of the whole job), returns the existing
  // connection. The limit is for the lookup of the host names in the places. Errors: kFixCall (a
  // place that is not on this host), kRetry, kStop.
  Result<std::shared_ptr<Store>> serve_job_store(const RemoteStore::Options& options,
                                                 const InterfaceChoice& interfaces,
                                                 const WaitLimit& limit);
  // If this process serves the job's Store, waits until the other ranks have left the job. Errors:
  // kRetry (interrupted).
  Status wait_for_other_ranks(const std::function<bool()>& interrupted);
  // Returns the secret of the job, ready for connections. The first call reads the secret from the
  // file, or from the descriptor, where it waits for the secret until the deadline. Later calls
  // return the same secret. Errors: kFixCall (no descriptor and no file, or not 32 bytes), kStop.
  Result<std::shared_ptr<const TlsContext>> tls_context(const Knobs& knobs, TimePoint deadline);
  // The last epoch of an elastic job in which this process was a member; 0: none.
  std::int64_t epoch() { return state_.lock()->epoch; }
  void set_epoch(std::int64_t epoch) { state_.lock()->epoch = epoch; }
  // The epoch in which this process got the training state of an elastic job; 0: not yet.
  std::int64_t state_epoch() { return state_.lock()->state_epoch; }
  void set_has_state() {
    auto state = state_.lock();
    state->state_epoch = state->epoch;
  }
  // Whether this process knows that some worker of the job has had the training state.
  bool knows_state() { return state_.lock()->knows_state; }
  void set_knows_state() { state_.lock()->knows_state = true; }
  // The name of the elastic job, which its members remember. Empty before the first group.
  std::optional<ElasticJobName> elastic_job_name() { return state_.lock()->elastic_job_name; }
  void set_elastic_job_name(ElasticJobName name) {
    state_.lock()->elastic_job_name = std::move(name);
  }
  // The data that all timelines of this elastic worker share; null before
  // make_timeline_state().
  std::shared_ptr<Timeline::SharedState> timeline_state() { return state_.lock()->timeline_state; }
  // Makes the data that timeline_state() returns, for the timeline that `knobs` describe.
  // Does nothing if the data exists already.
  void make_timeline_state(int slot, const Knobs& knobs);
  // Keeps the connection to the job's Store, even while the process has no engine.
  void keep_job_store(std::shared_ptr<Store> store) {
    state_.lock()->kept_job_store = std::move(store);
  }
  std::shared_ptr<Store> kept_job_store() { return state_.lock()->kept_job_store; }
  // Watches the launcher from now on, as long as the context exists. A second call has no effect.
  // Errors: as LauncherWatch::start().
  Status watch_launcher(int descriptor);
  // Like LauncherWatch::watch_members(); has no effect without a watch.
  void watch_members(std::int64_t epoch, std::function<void(int rank)> handler);
  // Like LauncherWatch::announced_end(); empty without a watch.
  std::string announced_end(TimePoint deadline = {});
  // Returns null if the text is empty. All engines with the same text share the failpoint, so the
  // failpoint counts the passes of all groups of the process. Errors: as Failpoint::parse().
  Result<std::shared_ptr<Failpoint>> failpoint(const std::string& text);
  // Returns the launcher's memory for a flight record. Without a descriptor (−1), or while another
  // engine writes to that memory, returns new memory with an open descriptor instead. Errors:
  // kFixCall, kStop.
  Result<FlightMemory> flight_memory(int descriptor);

 private:
  // Returns the Store that this process serves at these places or to which it is connected; null if
  // there is none.
  std::shared_ptr<Store> existing_job_store(const std::string& places);

  struct State {
    std::weak_ptr<SharedHeap> heap;
    std::map<int, std::weak_ptr<LocalStore>> stores;         // by descriptor
    std::map<std::string, std::weak_ptr<Store>> job_stores;  // by RemoteStore::Options::places
    std::map<int, std::weak_ptr<void>> flight_reservations;  // by descriptor
    std::shared_ptr<const TlsContext> tls;                   // also owned by connections
    std::shared_ptr<Store> served_store;                     // also owned by engines
    std::shared_ptr<Store> kept_job_store;                   // only in an elastic job
    std::string served_places;
    std::int64_t epoch = 0;
    std::shared_ptr<LauncherWatch> launcher_watch;  // shared with calls that use it
    std::int64_t state_epoch = 0;
    bool knows_state = false;
    std::optional<ElasticJobName> elastic_job_name;
    std::shared_ptr<Timeline::SharedState> timeline_state;  // also owned by timelines
    std::string failpoint_text;
    std::shared_ptr<Failpoint> failpoint;  // also owned by engines
  };

  Guarded<State> state_;
};

// Maps the launcher's memory for a rank's flight record. Errors: kFixCall if the descriptor does
// not refer to such memory.
Result<std::shared_ptr<Segment>> attach_flight_memory(int descriptor);

}  // namespace farandole
