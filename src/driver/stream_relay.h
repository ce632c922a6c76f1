// StreamRelay: carries the bytes of many descriptors over one connection to another StreamRelay,
// and back. The driver uses it because ssh is its only connection to another host.
//
// Each stream has its own flow control: at most kRelayWindowBytes of it are on the way or wait at
// the other relay. So an unread stream does not delay other streams, and memory is bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "base/poller.h"
#include "driver/relay_frames.h"
#include "farandole/status.h"

namespace farandole {

inline constexpr std::size_t kRelayWindowBytes = 1 << 20;

// One end of a stream. The other relay has the other end, with the same id. A stream goes in one
// direction, or in both.
struct RelayStream {
  std::uint32_t id = 0;
  Descriptor source{};  // we send what can be read here
  Descriptor sink{};    // where we write the data of the other relay; becomes non-blocking
  // If this function is set, it gets the received bytes, and there is no `sink`.
  std::function<void(std::string_view)> consume{};
  // Whether this stream stays behind the other streams. If so, when the relay has read bytes from
  // `source`, it first sends the bytes that the other sources hold at this time. In the same way,
  // received bytes for `consume` wait until the other sinks have got all bytes that arrived before
  // them. So a report about a process arrives after the last bytes of that process.
  bool follows_others = false;
};

// Only one thread may use it. It never blocks. SIGPIPE must be blocked or ignored.
class StreamRelay {
 public:
  // `from_peer` and `to_peer` are the connection; both become non-blocking. `first_bytes` is sent
  // before the first frame. Errors: kStop.
  static Result<StreamRelay> create(Descriptor from_peer, Descriptor to_peer,
                                    std::vector<RelayStream> streams,
                                    std::string_view first_bytes = {});

  // Can be polled: it is readable when serve() has something to do.
  int descriptor() const { return poller_.descriptor(); }
  void serve();

  // Call it when the processes at our sources have ended. Each source then ends after the bytes
  // that it holds now.
  void end_sources();
  // Whether nothing is left to send: all sources have ended and all their bytes are sent, or the
  // peer does not read any more.
  bool has_sent_everything() const;

  // Call it when the process at the other end of the connection has ended. Reads the bytes that
  // this process has left.
  void peer_process_ended();
  bool peer_is_gone() const { return peer_is_gone_; }
  // Whether the peer is gone, and everything that has arrived from it is written.
  bool has_written_everything() const;
  // The error that ended the connection; ok if the connection ended without an error.
  const Status& failure() const { return failure_; }

 private:
  struct Mark {
    std::size_t stream;
    std::uint64_t position;  // a number of bytes since the start of the stream
  };
  // Bytes that wait until each stream in `marks` has reached the position of its mark.
  struct HeldBytes {
    std::string bytes;
    std::vector<Mark> marks;
  };
  // Bytes that wait to be written.
  class Queue {
   public:
    void push(std::string_view bytes) { bytes_ += bytes; }
    std::string_view front() const { return std::string_view(bytes_).substr(first_unsent_); }
    void pop(std::size_t count);
    std::size_t size() const { return bytes_.size() - first_unsent_; }

   private:
    std::string bytes_;
    std::size_t first_unsent_ = 0;
  };
  struct Stream {
    RelayStream ends;
    std::size_t credit = kRelayWindowBytes;  // how many more bytes we may send
    std::uint64_t bytes_sent = 0;
    bool source_is_watched = false;
    Queue pending_bytes{};  // received, but not written yet
    std::uint64_t bytes_received = 0;
    std::uint64_t bytes_written = 0;
    // The peer has got new credit for this many of the `bytes_written`.
    std::uint64_t bytes_credited = 0;
    bool has_ended = false;  // no more bytes will arrive
    bool sink_is_watched = false;
    std::deque<HeldBytes> held_bytes{};  // bytes to send, or received bytes for `consume`
  };

  StreamRelay(Poller poller, Descriptor from_peer, Descriptor to_peer);
  void read_peer();
  Status handle(const RelayFrame& frame);
  Status receive(Stream& stream, std::string_view bytes);
  void write_peer();
  void end_sending();
  void handle_peer_loss(Status why);
  bool may_read(const Stream& stream) const;
  void read_source(std::size_t index);
  void end_source(std::size_t index);
  void send(Stream& stream, std::string_view bytes);
  void write_sink(std::size_t index);
  void drop_sink(std::size_t index);
  void count_written(Stream& stream, std::size_t count);
  std::vector<Mark> marks_of_sources(std::size_t excluded_stream) const;
  std::vector<Mark> marks_of_sinks(std::size_t excluded_stream) const;
  bool is_sent(const Mark& mark) const;
  bool is_written(const Mark& mark) const;
  void release_held_bytes(Stream& stream);
  // Returns false if the descriptor cannot be watched.
  bool set_watched(int descriptor, bool& is_watched, bool is_wanted, Poller::Interest interest,
                   std::uint64_t tag);
  void update_watches();

  Poller poller_;
  Descriptor from_peer_;
  Descriptor to_peer_;  // invalid if the peer does not read any more
  RelayFrameReader reader_;
  std::vector<char> buffer_;  // for reading
  Queue outgoing_;            // frames for the peer
  bool to_peer_is_watched_ = false;
  std::vector<Stream> streams_;
  bool sources_are_complete_ = false;
  bool peer_is_gone_ = false;
  Status failure_;
};

}  // namespace farandole
