// NodeChannel: sends and receives whole messages over the connection between two launchers.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "farandole/status.h"
#include "network/connection.h"
#include "network/frame.h"
#include "nodes/node_messages.h"

namespace farandole {

// One thread may use it; no function blocks.
class NodeChannel {
 public:
  explicit NodeChannel(std::unique_ptr<Connection> connection)
      : connection_(std::move(connection)) {}

  void send(const NodeMessage& message);
  // Sends waiting messages until the connection is full, and returns the messages that have
  // arrived.
  std::vector<NodeMessage> advance();
  // Ends the connection because of an error.
  void fail(Status why) { status_ = std::move(why); }
  // ok while the connection works. If it has ended, the reason: kRebuildGroup or kStop.
  const Status& status() const { return status_; }
  bool has_unsent() const { return !unsent_.empty() || connection_->has_unsent(); }
  int descriptor() const { return connection_->descriptor(); }
  const ConnectionPeer& peer() const { return connection_->peer(); }

 private:
  Status flush();
  Result<bool> receive_into(std::vector<NodeMessage>& messages);

  std::unique_ptr<Connection> connection_;
  Bytes unsent_;
  std::size_t unsent_start_ = 0;
  std::uint64_t sent_frame_count_ = 0;
  FrameHeaderReader header_;
  bool reads_payload_ = false;
  Bytes payload_;
  std::size_t payload_filled_ = 0;
  Status status_;
};

}  // namespace farandole
