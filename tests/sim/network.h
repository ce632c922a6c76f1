// The simulated network and the order of events: FIFO channels with random delays, and the queue of
// events. A tap may change the messages that are sent; most planted bugs work that way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "envelope.h"
#include "frames.h"
#include "host_parts.h"
#include "random.h"
#include "referee.h"
#include "script.h"
#include "story.h"
#include "wire_watch.h"

namespace farandole::sim {

// The events.
struct Deliver {  // the first message of a channel arrives
  int group;
  int from;  // member
  int to;
};
struct Settle {  // a member's oldest write that the others cannot see yet becomes visible to them
  int group;
  int member;
};
struct Run {  // a worker does everything that it can do now
  int worker;
};
struct Die {
  int worker;
};
struct ShowLeave {  // from now on, other workers can see that a worker has left the job
  int worker;
};
struct NotifyWorker {  // a worker is notified which other workers have died or left
  int worker;
};
struct DeliverFrame {  // the first frame of a channel arrives at a host part
  int group;
  int from;  // host part
  int to;
  bool is_entry;
};
struct NotifyHostOfDeath {  // a host is notified of the death of a worker on another host
  int host;
  int worker;
};
struct PauseHost {
  int host;
  Time end;
};
using Event = std::variant<Deliver, Settle, Run, Die, ShowLeave, NotifyWorker, DeliverFrame,
                           NotifyHostOfDeath, PauseHost>;

class Timeline {
 public:
  Time now() const { return now_; }
  void add(Time time, Event event);
  // Returns the next event, and advances the time to this event. Empty if no events are left.
  std::optional<Event> take_next();

 private:
  struct Entry {
    Time time;
    std::uint64_t number;  // events at the same time happen in the order in which they were added
    Event event;

    bool operator>(const Entry& other) const {
      return std::tie(time, number) > std::tie(other.time, other.number);
    }
  };

  Time now_ = 0;
  std::uint64_t events_added_ = 0;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> entries_;
};

// Returns the messages to send in place of this one.
using Tap = std::function<std::vector<Envelope>(Envelope)>;

struct Taps {
  Tap messages = {};
  FrameTap frames = {};
};

// Control messages, entries and ends of groups travel in channels of their own, in order. So no
// rule may depend on the order between two of these channels, although the product sends them on
// one connection.
class Network {
 public:
  Network(const Hosts& hosts, Timeline& timeline, Random& random, Referee& referee, Taps taps);

  void send(Envelope envelope);
  // Takes the message of a Deliver event that has happened.
  Envelope take(const Deliver& deliver);
  void send_frame(const RoutedFrame& frame);
  RoutedFrame take_frame(const DeliverFrame& arrive);
  // Tells a host that a worker on another host has died.
  void send_death(int from_host, int to_host, int worker);
  int entries_in_flight(int group) const {
    return entries_in_flight_[static_cast<std::size_t>(group)];
  }
  // How many partitions have delayed at least one message or frame.
  std::uint64_t partitions_used() const { return partitions_used_.size(); }
  // Adds one Settle event for each of the last `count` writes of a member to its board, in the
  // order of the writes.
  void schedule_settles(int group, int member, int count);
  // The time at which the other members see all writes that a member has made so far on its board.
  Time settled_at(int group, int member) const;
  std::uint64_t messages() const { return messages_; }

 private:
  struct Channel {
    std::deque<Bytes> messages;
    Time last_arrival = 0;
  };

  struct FrameChannel {
    std::deque<Frame> frames;
    Time last_arrival = 0;
  };

  void enqueue(Envelope envelope);
  void enqueue(const RoutedFrame& frame);
  Time draw_arrival_time(int from_host, int to_host, Traffic traffic);

  WireWatch& watch(int group) { return watches_[static_cast<std::size_t>(group)]; }

  const Hosts& hosts_;
  Timeline& timeline_;
  Random& random_;
  Referee& referee_;
  Taps taps_;
  int delay_max_;
  std::vector<WireWatch> watches_;                         // by group
  std::map<std::tuple<int, int, int>, Channel> channels_;  // by group, from, to
  std::map<std::tuple<int, int, int, bool>, FrameChannel>
      frame_channels_;                                     // keys as in DeliverFrame
  std::map<std::pair<int, int>, Time> last_settle_times_;  // by group, member
  std::vector<int> entries_in_flight_;                     // by group
  std::set<const Partition*> partitions_used_;
  std::uint64_t messages_ = 0;
};

}  // namespace farandole::sim
