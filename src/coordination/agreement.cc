#include "coordination/agreement.h"

#include <deque>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "coordination/coordinator.h"
#include "coordination/follower.h"

namespace farandole {
namespace {

constexpr int kCoordinator = 0;

}  // namespace

// Connects a member's follower with the coordinator: directly on the coordinator's own member,
// otherwise by messages that the caller carries.
class Agreement::Parts {
 public:
  Parts(int member, std::vector<int> ranks, const AgreementOptions& options)
      : member_(member), ranks_(std::move(ranks)), follower_(rank_of(member), options) {
    if (member != kCoordinator) return;
    coordinator_.emplace(ranks_, options);
    if (ranks_.size() > 1 && options.fusion_bytes > 0) follower_.enable_fusion_watch();
  }

  Follower& follower() { return follower_; }

  void set_time(TimePoint now) { now_ = now; }

  Status receive(int from, std::span<const std::byte> message) {
    const auto status = dispatch(from, message);
    if (status.ok()) return status;
    return Status::stop(format_text(
        "rank {} got a control message from rank {} that is wrong: {}. Do all ranks run the same "
        "version of Farandole?",
        rank_of(member_), rank_of(from), status.message()));
  }

  std::optional<OutgoingMessage> next_message() {
    flush();
    if (outgoing_.empty()) return std::nullopt;
    auto message = std::move(outgoing_.front());
    outgoing_.pop_front();
    return message;
  }

  const Decision* next_decision() {
    flush();
    return follower_.next_decision();
  }

 private:
  int rank_of(int member) const {
    CHECK(member >= 0 && static_cast<std::size_t>(member) < ranks_.size(), "it is a member");
    return ranks_[static_cast<std::size_t>(member)];
  }

  Status dispatch(int from, std::span<const std::byte> message) {
    if (from == member_) return Status::stop("it comes from this rank itself");
    if (coordinator_) return coordinator_->receive(from, message);
    if (from != kCoordinator)
      return Status::stop(format_text("only rank {} decides here", rank_of(kCoordinator)));
    return follower_.receive(message, now_);
  }

  // Sends the follower's announcements (or passes them to the coordinator of this member), then the
  // coordinator's decisions. It loops because a decision may cause new announcements.
  void flush() {
    while (follower_.has_message() || (coordinator_ && coordinator_->has_message())) {
      auto message = follower_.next_message();
      if (message && coordinator_) {
        const auto announced = coordinator_->receive(kCoordinator, *message);
        CHECK(announced.ok(), "our own announcements are valid");
      } else if (message) {
        outgoing_.push_back({kCoordinator, *std::move(message)});
      } else {
        broadcast(*coordinator_->next_message());
      }
    }
  }

  void broadcast(Bytes stream) {
    const auto members = static_cast<int>(ranks_.size());
    for (int to = 0; to < members; ++to)
      if (to != kCoordinator) outgoing_.push_back({to, stream});
    const auto decided = follower_.receive(stream, now_);
    CHECK(decided.ok(), "our own decisions are valid");
  }

  int member_;
  std::vector<int> ranks_;
  Follower follower_;
  std::optional<Coordinator> coordinator_;
  std::deque<OutgoingMessage> outgoing_;
  TimePoint now_;
};

Agreement::Agreement(int member, std::vector<int> ranks, const AgreementOptions& options)
    : parts_(std::make_unique<Parts>(member, std::move(ranks), options)) {}

Agreement::~Agreement() = default;

void Agreement::submit(CallId call_id, const InternedSignature& interned,
                       const SubmissionContext& context, TimePoint now) {
  parts_->follower().submit(call_id, interned, context, now);
}

Status Agreement::receive(int from, std::span<const std::byte> message, TimePoint now) {
  parts_->set_time(now);
  return parts_->receive(from, message);
}

void Agreement::tick(TimePoint now) {
  parts_->set_time(now);
  parts_->follower().tick(now);
}

std::optional<TimePoint> Agreement::deadline() const { return parts_->follower().deadline(); }

std::optional<OutgoingMessage> Agreement::next_message() { return parts_->next_message(); }

const Decision* Agreement::next_decision() { return parts_->next_decision(); }

void Agreement::completed() { parts_->follower().completed(); }

void Agreement::mispredicted() { parts_->follower().mispredicted(); }

bool Agreement::take_rollback() { return parts_->follower().take_rollback(); }

}  // namespace farandole
