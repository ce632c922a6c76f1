#include "launcher/timeline_collection.h"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>
#include <variant>

#include "base/format.h"
#include "base/try.h"
#include "base/visible_text.h"
#include "nodes/roll_call.h"
#include "rendezvous/keys.h"
#include "timeline/timeline.h"
#include "timeline/trace_text.h"

namespace farandole {
namespace {

// If no piece of a timeline arrives for this time, the job ends without the missing events.
constexpr auto kProgressTimeout = std::chrono::seconds(30);
// After this time, the user learns why the job has not ended yet.
constexpr auto kWaitNoticeDelay = std::chrono::seconds(5);
constexpr std::size_t kPieceBytes = 60'000;  // fits into a frame
// The largest number of pieces that are requested and have not arrived yet: pieces of one node, and
// pieces of all nodes together.
constexpr std::uint32_t kNodePiecesMax = 8;
constexpr std::uint32_t kJobPiecesMax = 64;
// A sender skips the lines of other ranks. After this number of reads, it sends a piece even if the
// piece is not full.
constexpr int kReadsPerPieceMax = 64;

// Returns how long the file may become. The events of all ranks together stay below `bytes_max`,
// apart from the last events of calls that had begun before the file was full. Only a job that has
// started its timeline several times has a much longer file.
std::size_t bytes_with_slack(std::size_t bytes_max) {
  return bytes_max + bytes_max / 4 + (std::size_t{1} << 20);
}

bool are_lines_of(std::string_view text, const TraceReader::Ranks& ranks) {
  while (!text.empty()) {
    const auto rank = rank_of_trace_line(text.substr(0, text.find('\n')));
    if (!rank || !ranks.contains(*rank)) return false;
    text.remove_prefix(text.find('\n') + 1);
  }
  return true;
}

}  // namespace

TraceHead trace_head_of_job(const StoreServer& store, TimePoint now) {
  TraceHead head{.job = store.text_at(keys::job_name()).value_or(""), .zero = now};
  if (const auto zero_ns = store.number_at(keys::timeline_zero()))
    head.zero = TimePoint(std::chrono::nanoseconds(*zero_ns));
  head.epoch_us = microseconds_since_1970(now - head.zero);
  return head;
}

TimelineCollection::TimelineCollection(const NodeLayout& layout, NodeLink& link, Target target,
                                       ShowLine show)
    : layout_(layout), link_(link), target_(std::move(target)), show_(std::move(show)) {}

void TimelineCollection::begin(const TraceHead& head, TimePoint now) {
  begin_time_ = last_progress_ = now;
  if (layout_.node == 0) {
    std::string first_event;
    if (target_.path.empty()) {
      // There is nothing to collect.
    } else if (head.job.empty()) {
      // A launcher without workers may have replaced a lost launcher. Then groups may have been
      // formed before this launcher started, so it does not know the job's name.
      if (layout_.local_size() == 0)
        warn_not_collected("no group was formed since this launcher has started");
    } else if (const Status opened = open_own_file(head, first_event); opened.ok()) {
      request_timelines(head.job, first_event);
    } else {
      warn_not_collected(
          opened.message() +
          "; if the program changes its working directory, give --timeline an absolute path");
    }
    end_if_complete();
  }
  handle_deadline(now);
}

void TimelineCollection::warn_not_collected(const std::string& why) const {
  if (layout_.node != 0 || target_.path.empty()) return;
  show_("the timelines of the other nodes stay in their own files: " + why);
}

Status TimelineCollection::open_own_file(const TraceHead& head, std::string& first_event) {
  // If node 0 has no workers, its file may exist already, because another node writes to the same
  // file. Otherwise, open() makes the file.
  FARANDOLE_TRY_ASSIGN(file_, layout_.local_size() == 0
                                  ? TraceFile::open(target_.path, head)
                                  : TraceFile::open_existing(target_.path, head.job));
  FARANDOLE_TRY_ASSIGN(const TraceReader reader, TraceReader::open(target_.path, head.job, {}));
  first_event = reader.first_event();
  return {};
}

void TimelineCollection::request_timelines(const std::string& job, const std::string& first_event) {
  int first_rank = layout_.local_size();
  for (int node = 1; node < layout_.nodes(); ++node) {
    const int ranks = layout_.workers.at(static_cast<std::size_t>(node));
    senders_.emplace(static_cast<std::uint32_t>(node), Sender{.ranks = {first_rank, ranks}});
    first_rank += ranks;
  }
  const auto pieces_per_node =
      kJobPiecesMax / static_cast<std::uint32_t>(std::max(1, layout_.nodes() - 1));
  link_.tell(TimelineWanted{.pieces = std::clamp(pieces_per_node, 1U, kNodePiecesMax),
                            .job = job,
                            .first_event = first_event});
}

void TimelineCollection::handle(const NodeMessage& message, TimePoint now) {
  if (const auto* wanted = std::get_if<TimelineWanted>(&message)) {
    answer(*wanted);
  } else if (const auto* piece = std::get_if<TimelinePiece>(&message)) {
    store_piece(*piece);
  } else if (const auto* end = std::get_if<TimelineEnd>(&message)) {
    finish_node(end->node, escape_controls(end->why));
  } else {
    return;
  }
  last_progress_ = now;
}

void TimelineCollection::store_piece(const TimelinePiece& piece) {
  const auto sender = senders_.find(piece.node);
  if (sender == senders_.end()) return;
  const std::string why = append(sender->second, piece.text);
  if (why.empty())
    link_.tell_node(static_cast<int>(piece.node),
                    TimelineWanted{.pieces = 1, .job = "", .first_event = ""});
  else
    finish_node(piece.node, why);
}

std::string TimelineCollection::append(Sender& sender, const std::string& text) {
  std::string lines = std::exchange(sender.incomplete_line, {}) + text;
  const std::size_t end = lines.rfind('\n') + 1;
  sender.incomplete_line = lines.substr(end);
  lines.resize(end);
  if (sender.incomplete_line.size() > kTraceLineBytesMax || !are_lines_of(lines, sender.ranks))
    return "its launcher has sent a text that is not the timeline of its ranks";
  if (lines.empty()) return {};
  if (file_->bytes() + lines.size() > bytes_with_slack(target_.bytes_max))
    return "the file would become longer than --timeline-bytes allows";
  return file_->append(lines).message();
}

void TimelineCollection::finish_node(std::uint32_t node, const std::string& why) {
  if (senders_.erase(node) == 0) return;
  if (!why.empty()) incomplete_nodes_[why].push_back(static_cast<int>(node));
  end_if_complete();
}

void TimelineCollection::end_if_complete() {
  if (!senders_.empty() || std::exchange(is_over_, true)) return;
  if (file_) file_->close();
  link_.tell(TimelineWanted());
  for (auto& [why, nodes] : incomplete_nodes_) {
    std::ranges::sort(nodes);
    show_(format_text("the timeline `{}` may lack events of {}: {}", target_.path,
                      node_list_text(nodes), why));
  }
}

void TimelineCollection::give_up(const std::string& why) {
  while (!senders_.empty()) finish_node(senders_.begin()->first, why);
}

void TimelineCollection::handle_deadline(TimePoint now) {
  if (layout_.node != 0) {
    is_over_ = is_over_ || !link_.is_connected(0) || now >= last_progress_ + kProgressTimeout;
    return;
  }
  for (auto sender = senders_.begin(); sender != senders_.end();) {
    const std::uint32_t node = (sender++)->first;
    if (!link_.is_connected(static_cast<int>(node))) finish_node(node, "its launcher has ended");
  }
  if (now >= last_progress_ + kProgressTimeout)
    give_up(format_text("its launcher has sent nothing for {} s", kProgressTimeout.count()));
  if (!is_over_ && now >= begin_time_ + kWaitNoticeDelay && !std::exchange(has_shown_wait_, true))
    show_("collecting the timelines of the other nodes; Ctrl-C ends this");
}

TimePoint TimelineCollection::deadline() const {
  const TimePoint limit = last_progress_ + kProgressTimeout;
  return layout_.node != 0 || has_shown_wait_ ? limit
                                              : std::min(limit, begin_time_ + kWaitNoticeDelay);
}

void TimelineCollection::answer(const TimelineWanted& wanted) {
  is_over_ = is_over_ || wanted.pieces == 0;
  if (is_over_ || has_sent_all_) return;
  if (!reader_) {
    const Status opened = open_reader(wanted);
    if (!opened.ok() || !reader_) return send_end(opened.message());
  }
  const std::uint32_t pieces = std::min(wanted.pieces, kNodePiecesMax);
  for (std::uint32_t i = 0; i < pieces && !has_sent_all_; ++i)
    if (const Status sent = send_piece(); !sent.ok()) return send_end(sent.message());
}

// Leaves reader_ empty if there are no events to send: this node has no timeline, or node 0 has the
// same file.
Status TimelineCollection::open_reader(const TimelineWanted& wanted) {
  if (target_.path.empty()) return {};
  const TraceReader::Ranks own_ranks{layout_.first_rank(), layout_.local_size()};
  FARANDOLE_TRY_ASSIGN(TraceReader reader, TraceReader::open(target_.path, wanted.job, own_ranks));
  if (reader.first_event() != wanted.first_event) reader_ = std::move(reader);
  return {};
}

Status TimelineCollection::send_piece() {
  for (int i = 0; i < kReadsPerPieceMax && unsent_.size() < kPieceBytes && !reader_->at_end();
       ++i) {
    FARANDOLE_TRY_ASSIGN(const std::string lines, reader_->next());
    unsent_ += lines;
  }
  link_.tell(TimelinePiece{.node = static_cast<std::uint32_t>(layout_.node),
                           .text = unsent_.substr(0, kPieceBytes)});
  unsent_.erase(0, kPieceBytes);
  if (unsent_.empty() && reader_->at_end()) send_end("");
  return {};
}

void TimelineCollection::send_end(const std::string& why) {
  has_sent_all_ = true;
  reader_.reset();
  unsent_.clear();
  link_.tell(TimelineEnd{.node = static_cast<std::uint32_t>(layout_.node), .why = why});
}

}  // namespace farandole
