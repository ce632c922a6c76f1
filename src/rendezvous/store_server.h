// StoreServer: a Store that the job's launcher or one of its ranks serves. It has no thread: a loop
// of the serving process polls ready_descriptor() and calls serve_ready(). No behaviour of the
// workers can make serve_ready() block.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "farandole/status.h"
#include "network/connection.h"
#include "rendezvous/store_channel.h"
#include "rendezvous/store_messages.h"
#include "rendezvous/store_table.h"
#include "transport/unix_socket.h"

namespace farandole {

// Only one thread at a time may use it.
class StoreServer {
 public:
  // `name` is the name of the serving process in error texts ("the launcher"). Errors: kStop.
  static Result<std::unique_ptr<StoreServer>> create(std::string name);

  // Returns the socket that a worker inherits. The socket is close-on-exec, so the launcher must
  // clear this flag in the child. `name` is the worker's name in messages ("rank 3"). Errors:
  // kStop.
  Result<Descriptor> add_client(std::string name);
  // Adds a client of this host that has connected by itself. Errors: kStop.
  Status adopt_client(std::string name, UnixSocket socket);
  // Adds a client of another host, which gets no descriptors. Errors: kStop.
  Status adopt_remote_client(std::string name, std::unique_ptr<Connection> connection);

  // For the serving process itself: Store::set, Store::add, and reads without a wait.
  Status set(const std::string& key, Bytes value);
  Result<std::int64_t> add(const std::string& key, std::int64_t delta);
  void remove(const std::string& key) { (void)table_.remove_all({key}); }
  // Removes all keys that begin with the prefix.
  void remove_with_prefix(const std::string& prefix) { table_.remove_with_prefix(prefix); }
  // Returns the value of a key that holds an i64; empty if there is no such value.
  std::optional<std::int64_t> number_at(const std::string& key) const;
  // Returns the bytes of a key's value; empty if the key does not exist.
  std::optional<Bytes> bytes_at(const std::string& key) const;
  // Returns the value of a key that holds a text; empty if there is no such value.
  std::optional<std::string> text_at(const std::string& key) const;

  // Called when a client's connection has ended, with the client's name and the existing keys that
  // the client has set.
  using EndWatcher =
      std::function<void(const std::string& client, const std::vector<std::string>& keys)>;
  // Call it before the first client is added.
  void set_end_watcher(EndWatcher watcher) { end_watcher_ = std::move(watcher); }

  // A borrowed descriptor that is readable when serve_ready() has work.
  int ready_descriptor() const { return epoll_.get(); }
  // Serves all requests that have arrived, without blocking. Returns a line for every client that
  // was dropped because it misbehaved. Also returns a line for every ended client that had
  // connected by itself.
  std::vector<std::string> serve_ready();
  // Whether an answer with descriptors is unsent. The kernel may refuse further descriptors of this
  // user until a worker has read some. ready_descriptor() does not show when a worker has read
  // some.
  bool has_unsent_descriptors() const;
  std::size_t clients() const { return clients_.size(); }
  bool has_key_with_prefix(const std::string& prefix) const {
    return table_.has_key_with_prefix(prefix);
  }

 private:
  struct Answer {
    Bytes bytes;
    std::vector<SharedStoreValue> values;  // with the descriptors of the message
  };
  struct Client {
    std::string name;
    std::unique_ptr<StoreChannel> channel;
    std::deque<Answer> outbox;  // while it is not empty, no requests of this client are read
    std::size_t outbox_bytes = 0;
    std::size_t wait_count = 0;
    bool connected_by_itself = false;
    std::vector<std::string> keys{};   // the keys that the client has set; only for end_watcher_
    std::uint32_t watched_events = 0;  // the events that epoll watches
    bool disconnected = false;
    std::string complaint;
  };
  struct Waiter {
    std::uint64_t client;
    std::uint64_t number;
    StoreWait wait;
  };

  StoreServer(std::string name, Descriptor epoll)
      : name_(std::move(name)), epoll_(std::move(epoll)) {}
  Status add_connection(Client client);
  template <class Value, class Read>
  std::optional<Value> value_at(const std::string& key, const Read& read) const;
  void read_requests(std::uint64_t id);
  void serve(std::uint64_t id, StoreRequest request, std::vector<Descriptor> descriptors);
  void begin_wait(std::uint64_t id, StoreRequest request);
  void cancel_wait(std::uint64_t id, std::uint64_t number);
  void answer_waiters(const std::string& key);
  void answer_with_values(const Waiter& waiter);
  void reject(std::uint64_t id, std::uint64_t number, Status status);
  void reply(std::uint64_t id, const StoreReply& reply, std::vector<SharedStoreValue> values);
  static void send_answer(Client& client, Answer answer);
  static void flush(Client& client);
  void update_watched_events(std::uint64_t id, Client& client);
  std::vector<std::string> drop_disconnected_clients();
  void remember_key(Client& client, const std::string& key) const;
  void erase_missing_keys(std::vector<std::string>& keys) const;

  std::string name_;
  EndWatcher end_watcher_;
  Descriptor epoll_;
  StoreTable table_;
  std::uint64_t next_client_ = 0;
  std::map<std::uint64_t, Client> clients_;
  std::list<Waiter> waiters_;
};

}  // namespace farandole
