// StreamRelay: carries the bytes of many descriptors over one connection to another StreamRelay,
// and back. The driver uses it because ssh is its only connection to another host.
//
// Each stream has its own flow control: at most kRelayWindowBytes of it are on the way or wait at
// the other relay. So a stream that nobody reads delays no other stream, and memory is bounded.
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
  Descriptor sink{};    // we write here what the other relay has sent; it becomes non-blocking
  // In place of `sink`: is called with the bytes.
  std::function<void(std::string_view)> taker{};
  // Whether what is read from `source` is sent after everything that could be read at that time
  // from the other sources, and whether `taker` is called after the other sinks have got what
  // arrived before. So a report about a process comes after the last bytes of that process.
  bool follows_others = false;
};

// Only one thread may use it. It never blocks. SIGPIPE must be blocked or ignored.
class StreamRelay {
 public:
  // `from_peer` and `to_peer` are the connection; both become non-blocking. `before` is sent before
  // the first frame. Errors: kStop.
  static Result<StreamRelay> create(Descriptor from_peer, Descriptor to_peer,
                                    std::vector<RelayStream> streams, std::string_view before = {});

  // Can be polled: it is readable when serve() has something to do.
  int descriptor() const { return poller_.descriptor(); }
  void serve();

  // The processes at our sources have ended: each source ends when what it holds now is sent.
  void end_sources();
  // Whether all sources have ended, and all of their bytes are sent (or the peer reads no more).
  bool has_sent_everything() const;

  // The process at the other end of the connection has ended: reads what it has left.
  void peer_process_ended();
  bool peer_is_gone() const { return peer_is_gone_; }
  // Whether the peer is gone, and everything that has arrived from it is written.
  bool has_written_everything() const;
  // Why the connection was given up; ok if it has just ended.
  const Status& failure() const { return failure_; }

 private:
  struct Mark {
    std::size_t stream;
    std::uint64_t position;  // in the bytes of that stream
  };
  // Bytes that wait for other streams.
  struct Held {
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
    std::size_t credit = kRelayWindowBytes;  // how much we may send
    std::uint64_t sent = 0;
    bool source_is_watched = false;
    Queue pending{};  // received, but not written yet
    std::uint64_t received = 0;
    std::uint64_t written = 0;
    std::uint64_t credited = 0;  // the part of `written` for which the peer has got new credit
    bool has_end = false;        // no more bytes will arrive
    bool sink_is_watched = false;
    std::deque<Held> held{};  // of the source, or for the taker
  };

  StreamRelay(Poller poller, Descriptor from_peer, Descriptor to_peer);
  void read_peer();
  Status handle(const RelayFrame& frame);
  Status receive(Stream& stream, std::string_view bytes);
  void write_peer();
  void end_sending();
  void lose_peer(Status why);
  bool may_read(const Stream& stream) const;
  void read_source(std::size_t index);
  void end_source(std::size_t index);
  void send(Stream& stream, std::string_view bytes);
  void write_sink(std::size_t index);
  void fail_sink(std::size_t index);
  void has_written(Stream& stream, std::size_t count);
  std::vector<Mark> marks_of_sources(std::size_t except) const;
  std::vector<Mark> marks_of_sinks(std::size_t except) const;
  bool is_sent(const Mark& mark) const;
  bool is_written(const Mark& mark) const;
  void release_held(Stream& stream);
  // Returns false if the descriptor cannot be watched.
  bool set_watched(int descriptor, bool& is_watched, bool wanted, Poller::Interest what,
                   std::uint64_t tag);
  void watch();

  Poller poller_;
  Descriptor from_peer_;
  Descriptor to_peer_;  // invalid: the peer reads no more
  RelayFrameReader reader_;
  std::vector<char> buffer_;  // for reading
  Queue out_;                 // frames for the peer
  bool to_peer_is_watched_ = false;
  std::vector<Stream> streams_;
  bool sources_are_complete_ = false;
  bool peer_is_gone_ = false;
  Status failure_;
};

}  // namespace farandole
