// StoreClient: a worker's side of the Store that its launcher serves over an inherited Unix socket.
// Several threads may wait at the same time: one of them reads the socket and hands the others
// their replies.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/guarded.h"
#include "rendezvous/store.h"
#include "rendezvous/store_messages.h"
#include "transport/unix_socket.h"

namespace farandole {

// Beyond Store's errors every call may say kStop: the launcher is gone, or does not answer.
class StoreClient final : public Store {
 public:
  // Borrows the descriptor that FARANDOLE_RENDEZVOUS_DESCRIPTOR names: works on a duplicate, and
  // marks the original close-on-exec. At most one client per descriptor at a time. Errors: kFixCall
  // if it is not the launcher's socket.
  static Result<std::unique_ptr<StoreClient>> connect(int borrowed_descriptor);
  // Where another rank keeps the Store (rendezvous/meeting.h).
  static std::unique_ptr<StoreClient> over(UnixSocket socket);

  Status set(const std::string& key, StoreValue value) override;
  Result<StoreValue> wait(const std::string& key, const WaitLimit& limit) override;
  Result<std::int64_t> add(const std::string& key, std::int64_t delta) override;
  Status remove(const std::string& key) override;

 private:
  struct Answer {
    StoreReply reply;
    std::vector<Descriptor> descriptors;
  };
  struct Inbox {
    std::uint64_t next_number = 0;
    bool somebody_reads = false;
    Status broken;  // not ok: the connection is over
    std::map<std::uint64_t, std::optional<Answer>> awaited;
  };

  StoreClient(UnixSocket socket, std::string keeper);
  Result<Answer> call(StoreRequest request, const std::vector<Descriptor>& descriptors,
                      const WaitLimit& limit);
  Result<Answer> await(const StoreRequest& request, const WaitLimit& limit);
  // The answer if it is there, looking for it until `deadline`; kRetry if it is not.
  Result<Answer> look(std::uint64_t number, TimePoint deadline);
  void read_one(TimePoint deadline);
  void deliver(UnixMessage message);
  void stop_reading(Status broken);
  Status explain(const Status& failure) const;
  WaitLimit answer_limit() const;
  Status send(const StoreRequest& request, const std::vector<Descriptor>& descriptors);

  const std::function<bool()> never_;  // nobody interrupts
  UnixSocket socket_;
  const std::string keeper_;  // who serves, as errors call it
  Guarded<Inbox> inbox_;
};

}  // namespace farandole
