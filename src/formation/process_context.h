// ProcessContext: finds what the engines of one process share. It owns only three of these parts:
// the job's secret, because it can be read only once; the job's Store, if this process serves it or
// the job is elastic; and the watch over the launcher of an elastic job. The others are destroyed
// with the last engine or tensor that uses them.
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
  std::shared_ptr<Segment> segment;  // has no other owner
  std::shared_ptr<void>
      reservation;  // while this exists, no other engine of the process writes there
};

// Any thread may call its functions.
class ProcessContext {
 public:
  // Returns the heap that engines or tensors of this process already use. Creates a new heap if
  // there is none, or if the heap in use is larger than `bytes`, because peers might not be able to
  // map that heap. Engines and allocated blocks own the heap. Errors: as SharedHeap::create().
  Result<std::shared_ptr<SharedHeap>> heap(std::size_t bytes);
  // Returns the connection to the launcher. The engines that use the connection own it. Errors: as
  // StoreClient::connect().
  Result<std::shared_ptr<LocalStore>> launcher_store(int descriptor);
  // Returns the connection to the job's Store at options.places. The engines that use the
  // connection own it. Errors: as RemoteStore::connect().
  Result<std::shared_ptr<Store>> job_store(const RemoteStore::Options& options,
                                           const WaitLimit& limit);
  // Serves the job's Store at options.places, in a thread, as long as the context exists. Returns a
  // connection to it, as does job_store() from then on. For rank 0, if another launcher has started
  // the ranks. If this process already serves the Store or is connected to it (as another rank of
  // the whole job), returns that connection. Tries to find the places until the limit. Errors:
  // kFixCall (a place that is not on this host), kRetry, kStop.
  Result<std::shared_ptr<Store>> serve_job_store(const RemoteStore::Options& options,
                                                 const InterfaceChoice& interfaces,
                                                 const WaitLimit& limit);
  // If this process serves the job's Store, waits until the other ranks have left the job. Errors:
  // kRetry (interrupted).
  Status wait_for_other_ranks(const std::function<bool()>& interrupted);
  // Returns the secret of the job, ready for connections. The first call reads it from the
  // descriptor, for which it waits until the deadline, or from the file. Later calls return the
  // same. Errors: kFixCall (no descriptor and no file, or not 32 bytes), kStop.
  Result<std::shared_ptr<const TlsContext>> tls(const Knobs& knobs, TimePoint deadline);
  // The epoch of an elastic job in which this process was last; 0: none.
  std::int64_t epoch() { return parts_.lock()->epoch; }
  void set_epoch(std::int64_t epoch) { parts_.lock()->epoch = epoch; }
  // In which epoch this process got the state of the training of an elastic job; 0: not yet.
  std::int64_t state_epoch() { return parts_.lock()->state_epoch; }
  void set_has_state() {
    auto parts = parts_.lock();
    parts->state_epoch = parts->epoch;
  }
  // Whether this process knows that somebody in the job had that state.
  bool knows_state() { return parts_.lock()->knows_state; }
  void set_knows_state() { parts_.lock()->knows_state = true; }
  // What the members of an elastic job remember. Empty before the first group.
  std::optional<ElasticJobName> elastic_job_name() { return parts_.lock()->elastic_job_name; }
  void set_elastic_job_name(ElasticJobName name) {
    parts_.lock()->elastic_job_name = std::move(name);
  }
  // What the timelines of this worker of an elastic job share; null before
  // make_continued_timeline().
  std::shared_ptr<Timeline::Continued> continued_timeline() {
    return parts_.lock()->continued_timeline;
  }
  // Makes it, with the timeline of the knobs, if it does not exist yet.
  void make_continued_timeline(int slot, const Knobs& knobs);
  // Keeps the connection to the job's Store, also while there is no engine.
  void keep_store(std::shared_ptr<Store> store) { parts_.lock()->kept_store = std::move(store); }
  std::shared_ptr<Store> kept_store() { return parts_.lock()->kept_store; }
  // Watches the launcher from now on, as long as the context exists. A second call does nothing.
  // Errors: as LauncherWatch::start().
  Status watch_launcher(int descriptor);
  // As LauncherWatch::watch_members(); does nothing without a watch.
  void watch_members(std::int64_t epoch, std::function<void(int rank)> handler);
  // As LauncherWatch::announced_end(); empty without a watch.
  std::string announced_end(TimePoint deadline = {});
  // Returns null if the text is empty. All engines with the same text share the failpoint, so it
  // counts over all groups of the process. Errors: as Failpoint::parse().
  Result<std::shared_ptr<Failpoint>> failpoint(const std::string& text);
  // Returns the launcher's memory. Without a descriptor (−1), or while another engine writes there,
  // returns new memory instead, whose descriptor is open. Errors: kFixCall, kStop.
  Result<FlightMemory> flight_memory(int descriptor);

 private:
  // The Store that this process serves at these places, or to which it has a connection; else null.
  std::shared_ptr<Store> known_job_store(const std::string& places);

  struct Parts {
    std::weak_ptr<SharedHeap> heap;
    std::map<int, std::weak_ptr<LocalStore>> stores;         // by descriptor
    std::map<std::string, std::weak_ptr<Store>> job_stores;  // by RemoteStore::Options::places
    std::map<int, std::weak_ptr<void>> flight_reservations;  // by descriptor
    std::shared_ptr<const TlsContext> tls;                   // also owned by connections
    std::shared_ptr<Store> served_store;                     // also owned by engines
    std::shared_ptr<Store> kept_store;                       // of an elastic job
    std::string served_places;
    std::int64_t epoch = 0;
    std::shared_ptr<LauncherWatch> launcher_watch;  // shared with calls that use it
    std::int64_t state_epoch = 0;
    bool knows_state = false;
    std::optional<ElasticJobName> elastic_job_name;
    std::shared_ptr<Timeline::Continued> continued_timeline;  // also owned by timelines
    std::string failpoint_text;
    std::shared_ptr<Failpoint> failpoint;  // also owned by engines
  };

  Guarded<Parts> parts_;
};

// Maps the launcher's memory for a rank's flight record. Errors: kFixCall if the descriptor does
// not refer to such memory.
Result<std::shared_ptr<Segment>> attach_flight_memory(int descriptor);

}  // namespace farandole
