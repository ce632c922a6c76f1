// StoreClient: a worker's connection to the process that serves the Store: the launcher or another
// rank. If several threads wait at the same time, one of them reads the channel and passes the
// replies to the other threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/guarded.h"
#include "rendezvous/local_store.h"
#include "rendezvous/store_channel.h"
#include "rendezvous/store_messages.h"

namespace farandole {

// Every call may also return kStop if the process that serves the Store has ended or does not
// answer.
class StoreClient final : public LocalStore {
 public:
  // Connects over the descriptor that FARANDOLE_RENDEZVOUS_DESCRIPTOR names. The descriptor is
  // borrowed: the client uses a duplicate and marks the original close-on-exec. A descriptor may
  // have at most one client at a time. Errors: kFixCall if it is not the launcher's socket.
  static Result<std::unique_ptr<StoreClient>> connect(int borrowed_descriptor);
  // Connects to a Store that another rank serves (rendezvous/named_store.h).
  static std::unique_ptr<StoreClient> from_socket(UnixSocket socket);
  // Connects over any channel. `owner` is the process that serves the Store, for error texts.
  StoreClient(std::unique_ptr<StoreChannel> channel, std::string owner);

  Status share(const std::string& key, LocalValue value) override;
  Result<LocalValues> receive_all(const std::vector<std::string>& keys, const std::string& end_key,
                                  const WaitLimit& limit) override;
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override;
  Status remove_all(const std::vector<std::string>& keys) override;
  Status replace(const std::string& key, Bytes value, const WaitLimit& limit) override;
  Result<TimePoint> clock() override;

 private:
  struct Answer {
    StoreReply reply;
    std::vector<Descriptor> descriptors;
  };
  struct Inbox {
    std::uint64_t next_number = 0;
    bool is_being_read = false;
    Status connection_status;  // not ok if the connection has ended
    std::map<std::uint64_t, std::optional<Answer>> awaited_answers;  // by request number
  };

  Status share(const std::string& key, LocalValue value, const WaitLimit& limit);
  // Removes at most kKeysPerRemoval keys.
  Status remove_in_one_request(std::vector<std::string> keys, const WaitLimit& limit);
  Result<Answer> send_and_await(StoreRequest request, const std::vector<Descriptor>& descriptors,
                                const WaitLimit& limit);
  Result<Answer> await_answer(const StoreRequest& request, const WaitLimit& limit);
  // Waits for the answer. Returns kRetry at the deadline.
  Result<Answer> await_answer_until(std::uint64_t number, TimePoint deadline);
  void read_one_message(TimePoint deadline);
  void deliver(UnixMessage message);
  void stop_reading(Status connection_status);
  Status malformed_message_error() const;
  Status explained_error(const Status& failure) const;
  WaitLimit answer_limit() const;
  Status send(const StoreRequest& request, const std::vector<Descriptor>& descriptors);

  const std::function<bool()> never_interrupted_;  // for calls that cannot be interrupted
  const std::unique_ptr<StoreChannel> channel_;
  const std::string owner_;  // the process that serves the Store, for error texts
  Guarded<Inbox> inbox_;
};

}  // namespace farandole
