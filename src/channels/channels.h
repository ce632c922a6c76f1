// Channels: this rank's channels to ranks on other hosts. It makes the connections, moves the
// frames of the channels, and wakes this rank's sleeping thread when something arrives.
//
// Of two ranks, the lower one dials: it makes the connection. Both ranks know the lanes of a group,
// so both know when a lane needs a channel. Only the sender of a message knows that the message
// needs a channel. If the sender is the higher rank, it knocks: it makes a connection that carries
// no data, and the lower rank then dials the sender. The lower rank notices the knock at any time,
// even while its program makes no call.
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
    // The time limit for connecting to a rank.
    std::chrono::milliseconds connect_timeout = std::chrono::seconds(30);
    TcpOptions tcp{};
    bool seals_data = true;  // see Link; must be equal on all ranks and in `listener`
    std::function<std::vector<SocketAddress>(int rank)> addresses_of = {};
  };
  // A channel that can no longer be used.
  struct Failure {
    int rank = 0;
    std::string text = {};
    // True if the channel was used only for messages and the peer has sent no frame. In this case,
    // the peer may still be alive.
    bool peer_may_live = false;
  };

  // `context` and `doorbells` must outlive this object. `listener` must accept links to this rank
  // in this epoch.
  Channels(const TlsContext& context, std::unique_ptr<TcpListener> listener, Doorbells& doorbells,
           const Options& options);
  ~Channels();
  Channels(const Channels&) = delete;
  Channels& operator=(const Channels&) = delete;

  // Starts the thread "farandole-net". Errors: kStop.
  Status start();
  // Blocks until all existing channels are connected. Call it before another thread uses this
  // object. Errors: kRebuildGroup if a channel cannot be connected; kRetry if `interrupted` returns
  // true. `interrupted` is called about every 100 ms and may be empty.
  Status wait_until_connected(const std::function<bool()>& interrupted);
  // Whether a channel is not connected yet.
  bool is_connecting() const { return connecting_ > 0; }
  // From now on, the thread "farandole-net" runs `on_traffic` when another process wants to
  // connect, or when data has arrived and no thread has received it for a second. Without this, the
  // kernel of a peer would regard this rank as dead if the program computes for long. After each
  // run of `on_traffic`, the holder of the progress lock must soon call
  // request_accept_and_receive_all(), advance() and ring_on_arrival(). `on_traffic` must not block
  // or allocate memory.
  void watch_traffic(std::function<void()> on_traffic);
  // The next advance() accepts connections and receives from all channels.
  void request_accept_and_receive_all();

  // Sends everything and waits until the peers' hosts have received it, but at most for `limit`.
  // Then ends the thread and closes the connections.
  void stop(Duration limit);
  // For a forked child, in which the thread "farandole-net" does not exist: closes this object's
  // descriptors. The object must then be leaked.
  void abandon_after_fork();

  // Only the holder of the progress lock may call the functions from here to ring_on_arrival().
  // This function returns the channel to a rank, for a lane. It begins to connect a new channel.
  PeerChannel& channel_for_lane(int rank, TimePoint now);
  // Like channel_for_lane(), but for messages. The other rank may not know yet that this rank needs
  // the channel.
  PeerChannel& channel_for_messages(int rank, TimePoint now);
  // Makes connections, sends and receives as far as this is possible without blocking. Returns
  // whether anything was done. A receive is a system call, even if nothing has arrived. To save
  // system calls, advance() receives only from the channels that await frames and from one further
  // channel, which changes with each call of advance().
  bool advance();
  // The next advance() receives from all channels.
  void request_receive_from_all() { receives_from_all_ = true; }
  // Sends as much as is possible without blocking, but receives nothing. Returns whether bytes were
  // sent or a channel has failed.
  bool send();
  // Whether advance() must be called even if this rank waits for nothing: bytes must be sent, or a
  // connection is being made.
  bool has_work() const { return is_connecting() || is_accepting_ || wants_to_send(); }
  // Whether a channel has something to send. A channel that is not connected yet counts, too.
  bool wants_to_send() const;
  // Returns the failures since the last call. If a rank has said goodbye, the end of its connection
  // is not a failure.
  std::vector<Failure> take_failures() { return std::exchange(failures_, {}); }
  // Calls `visit` with each peer's rank and the channel to this rank, even if the channel has
  // failed.
  template <class Visit>  // void(int rank, PeerChannel&)
  void for_each(Visit visit) {
    for (auto& [rank, entry] : entries_) visit(rank, *entry.channel);
  }

  // Prepares for sleep: the next event that gives advance() work rings this rank's bell once. Call
  // it after prepare_sleep() of the doorbells and after a last advance() that received from all
  // channels.
  void ring_on_arrival();
  // The latest time at which advance() must be called again.
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

  // Returns the entry of a rank; creates it if there is none. A new channel counts as connecting.
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
  int last_polled_rank_ = -1;     // the rank whose channel had the last turn to receive
  bool receives_from_all_ = false;
  std::vector<Failure> failures_;
  Descriptor epoll_;  // watches each socket for one event (EPOLLONESHOT)
  Descriptor stop_event_;
  bool is_accepting_ = false;
  Guarded<std::function<void()>> on_traffic_;
  std::atomic<std::uint64_t> ring_on_arrival_calls_ = 0;  // how often ring_on_arrival() was called
  std::thread thread_;
};

}  // namespace farandole
