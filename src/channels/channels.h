// Channels: this rank's channels to ranks on other hosts. It makes the connections, moves their
// frames, and wakes this rank's sleeping thread when something arrives.
//
// Of two ranks, the lower one dials. If a lane needs the channel, both ranks know it, because both
// compute the same lanes. If a message needs the channel, only its sender knows it, and the sender
// may be the higher rank. Then the sender knocks: it makes a connection that carries nothing, and
// the lower rank dials back. The lower rank notices a knock at any time, even while its program
// makes no call.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/guarded.h"
#include "base/time_point.h"
#include "channels/peer_channel.h"
#include "network/tcp/dialer.h"
#include "network/tcp/tcp_listener.h"
#include "transport/shm/doorbells.h"

namespace farandole {

class Channels {
 public:
  struct Options {
    int rank = 0;
    std::uint64_t job = 0;
    std::uint64_t epoch = 0;
    // How long connecting to a rank may take.
    std::chrono::milliseconds connect_timeout = std::chrono::seconds(30);
    TcpOptions tcp{};
    bool seals_data = true;  // see Link; must be the same on all ranks and in the listener
    std::function<std::vector<SocketAddress>(int rank)> addresses_of = {};
  };
  // A channel that can no longer be used.
  struct Failure {
    int rank = 0;
    std::string text = {};
    // True if the channel was only for messages, and the peer has sent nothing. Then the peer may
    // be alive.
    bool only_messages = false;
  };

  // `context` and `doorbells` are borrowed. The listener accepts links to this rank in this epoch.
  Channels(const TlsContext& context, std::unique_ptr<TcpListener> listener, Doorbells& doorbells,
           const Options& options);
  ~Channels();
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  // Starts the thread "farandole-net". Errors: kStop.
  Status start();
  // Blocks until all channels so far are connected. Call it before another thread uses this object.
  // Errors: kRebuildGroup if a channel cannot be connected; kRetry if `interrupted` returns true.
  // `interrupted` is called about every 100 ms, and may be empty.
  Status wait_until_connected(const std::function<bool()>& interrupted);
  // Whether a channel is not connected yet.
  bool is_connecting() const { return connecting_ > 0; }
  // From now on, the thread "farandole-net" runs `on_traffic` when another process wants to
  // connect, and when something that has arrived waits for a second because nobody drives.
  // Otherwise, the kernel of a peer would take this rank for dead while its program computes. Soon
  // after that, the holder of the progress lock must call begin_serving(), advance() and arm().
  // `on_traffic` must not block or allocate memory.
  void serve(std::function<void()> on_traffic);
  // The next advance() accepts connections and receives from all channels.
  void begin_serving();

  // Ends the thread, and closes the connections. Before that, sends everything and waits until the
  // peers' hosts have received it, but at most for `limit`.
  void stop(Duration limit);
  // For a forked child, in which the thread "farandole-net" does not exist: closes this object's
  // descriptors. The object must then be leaked.
  void abandon_after_fork();

  // The functions from here to arm() are for the holder of the progress lock.
  // Returns the channel to a rank, for a lane. Begins to connect the channel if it is new.
  PeerChannel& for_lane(int rank, TimePoint now);
  // The same, for messages. The other rank need not know that this rank wants the channel.
  PeerChannel& for_messages(int rank, TimePoint now);
  // Makes connections, sends and receives as far as it can. Returns whether anything has moved.
  // Never blocks. A receive is a system call, even if nothing has arrived. So a call receives only
  // from the channels that await frames and, in turn, from one other channel.
  bool advance();
  // The next advance() receives from all channels.
  void receive_from_all() { receives_from_all_ = true; }
  // Sends as far as it can, but receives nothing. Returns whether anything has moved or failed.
  bool send();
  // Whether advance() must be called even if this rank waits for nothing: something is to be sent,
  // or a connection is being made.
  bool has_work() const { return is_connecting() || is_serving_ || wants_to_send(); }
  // Whether a channel has something to send, even if it is not connected yet.
  bool wants_to_send() const;
  // The failures since the last call. A rank that has said goodbye does not fail.
  std::vector<Failure> take_failures() { return std::exchange(failures_, {}); }
  // Calls `visit` with each peer's rank and its channel, even if the channel has failed.
  template <class Visit>  // void(int rank, PeerChannel&)
  void for_each(Visit visit) {
    for (auto& [rank, entry] : entries_) visit(rank, *entry.channel);
  }

  // Prepares for sleep: from now on, the first event that gives advance() something to do rings
  // this rank's bell, once. Call it after prepare_sleep() of the doorbells and a last advance()
  // that received from all channels.
  void arm();
  // advance() must be called again at this time at the latest.
  TimePoint deadline() const;

 private:
  struct Entry {
    std::unique_ptr<PeerChannel> channel;
    std::unique_ptr<Dialer> dialer =
        {};                        // dials the peer or, if our rank is the higher one, knocks
    TimePoint connect_deadline{};  // the channel fails if it is not connected by then
    bool failed = false;
    bool only_messages = false;
  };

  // Makes the entry if it is new. Its channel then counts as connecting.
  Entry& entry_of(int rank);
  void dial(int rank, Entry& entry, TimePoint now);
  bool connect(TimePoint now);
  bool accept(TimePoint now);
  bool advance_channel(int rank, Entry& entry, PeerChannel::Receive receive);
  bool advance_dialer(int rank, Entry& entry, TimePoint now);
  void attach(Entry& entry, std::unique_ptr<Connection> connection);
  void fail(int rank, Entry& entry, std::string text);
  void watch_once(int descriptor, std::uint32_t events) const;
  void report_traffic();
  void run();

  const TlsContext& context_;
  std::unique_ptr<TcpListener> listener_;
  Doorbells& doorbells_;
  const Options options_;
  std::map<int, Entry> entries_;  // by rank
  int connecting_ = 0;            // channels without a connection
  int last_in_turn_ = -1;         // the rank whose channel was the last to receive in turn
  bool receives_from_all_ = false;
  std::vector<Failure> failures_;
  Descriptor epoll_;  // the sockets, each armed for one event
  Descriptor stop_event_;
  bool is_serving_ = false;
  Guarded<std::function<void()>> on_traffic_;
  std::atomic<std::uint64_t> armed_ = 0;  // how often arm() was called
  std::thread thread_;
};

}  // namespace farandole
