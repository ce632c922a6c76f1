// TimelineCollection: at the end of a job over several nodes, node 0's launcher adds the events of
// all other nodes to its own timeline file. It asks the other launchers for pieces of their files,
// a few at a time. So the collection works even if the files are larger than the memory or the disk
// is slow. If something fails, the user gets a warning, and the files of the other nodes stay where
// they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "nodes/node_layout.h"
#include "nodes/node_link.h"
#include "rendezvous/store_server.h"
#include "timeline/trace_file.h"
#include "timeline/trace_reader.h"
#include "timeline/trace_text.h"

namespace farandole {

// Returns the head of the files in which the ranks of the job write their timelines. The name of
// the job in it is empty if no rank has called init().
TraceHead trace_head_of_job(const StoreServer& store, TimePoint now);

// Only one thread may use it. No function waits for another process.
class TimelineCollection {
 public:
  // Shows one line to the user.
  using ShowLine = std::function<void(const std::string& line)>;
  // The timeline that the user has requested for this node.
  struct Target {
    std::string path;           // empty: none
    std::size_t bytes_max = 0;  // Knobs::timeline_bytes
  };

  // `link` is borrowed.
  TimelineCollection(const NodeLayout& layout, NodeLink& link, Target target, ShowLine show);
  // Call it when a node has left or joined the job.
  void nodes_changed(const NodeLayout& layout) { layout_ = layout; }

  // Call it when all nodes have ended. `head` is the head of the job's files, which only node 0
  // must know.
  void begin(const TraceHead& head, TimePoint now);
  // Instead of begin(): warns the user of node 0 that no timelines are collected.
  void warn_not_collected(const std::string& why) const;
  // Handles a question of node 0, or an answer to a question of ours.
  void handle(const NodeMessage& message, TimePoint now);
  // Call it each time after waiting for events.
  void handle_deadline(TimePoint now);
  // Node 0: ends the collection, and warns the user about the nodes that have not sent all events.
  void give_up(const std::string& why);

  bool is_over() const { return is_over_; }
  // When to call handle_deadline().
  TimePoint deadline() const;

 private:
  // What node 0 knows about another node.
  struct Sender {
    TraceReader::Ranks ranks;
    std::string incomplete_line{};  // the beginning of a line that has not arrived completely yet
  };

  Status open_own_file(const TraceHead& head, std::string& first_event);
  void request_timelines(const std::string& job, const std::string& first_event);
  void store_piece(const TimelinePiece& piece);
  // If the text cannot be added, returns the reason; otherwise returns an empty string.
  std::string append(Sender& sender, const std::string& text);
  void finish_node(std::uint32_t node, const std::string& why);
  void end_if_complete();
  void answer(const TimelineWanted& wanted);
  Status open_reader(const TimelineWanted& wanted);
  Status send_piece();
  void send_end(const std::string& why);

  NodeLayout layout_;
  NodeLink& link_;
  Target target_;
  ShowLine show_;
  bool is_over_ = false;
  bool has_shown_wait_ = false;
  TimePoint begin_time_{};
  TimePoint last_progress_{};

  // The state of node 0.
  std::optional<TraceFile> file_;
  std::map<std::uint32_t, Sender> senders_;  // the nodes that still send
  // The nodes that have not sent all events, by reason.
  std::map<std::string, std::vector<int>> incomplete_nodes_;

  // The state of the other nodes.
  std::optional<TraceReader> reader_;
  std::string unsent_;
  bool has_sent_all_ = false;
};

}  // namespace farandole
