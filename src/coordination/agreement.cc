#include "coordination/agreement.h"

#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/try.h"
#include "control/tree.h"
#include "control/tree_relay.h"
#include "coordination/coordinator.h"
#include "coordination/follower.h"

namespace farandole {
// Connects the follower of this member with the coordinator: directly on member 0, and on the other
// members by messages, which the caller delivers.
class Agreement::Parts {
 public:
  Parts(int member, std::vector<int> ranks, const AgreementOptions& options,
        const std::vector<int>& hosts)
      : member_(member),
        this_member_(member),
        ranks_(std::move(ranks)),
        follower_(rank_of(member), options),
        relay_(tree_position_of(member, hosts.empty() ? std::vector<int>(ranks_.size()) : hosts)) {
    if (!relay_.is_root()) return;
    coordinator_.emplace(ranks_, options);
    if (ranks_.size() > 1 && options.fusion_bytes > 0) follower_.enable_fusion_watch();
  }

  Follower& follower() { return follower_; }

  void set_time(TimePoint now) { now_ = now; }

  Status receive(int from, std::span<const std::byte> message) {
    const auto status = from == member_           ? Status::stop("it comes from this rank itself")
                        : from == relay_.parent() ? receive_from_parent(message)
                                                  : receive_from_child(from, message);
    if (status.ok()) return status;
    return Status::stop(format_text(
        "rank {} got a control message from rank {} that is wrong: {}. Do all ranks run the same "
        "version of Farandole?",
        rank_of(member_), rank_of(from), status.message()));
  }

  std::optional<OutgoingMessage> next_message() {
    flush();
    return relay_.next_message();
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

  Status receive_from_parent(std::span<const std::byte> message) {
    if (is_acknowledgement(message)) return relay_.record_acknowledgement();
    FARANDOLE_TRY(follower_.receive(message, now_));
    relay_.pass_down(Bytes(message.begin(), message.end()));
    return {};
  }

  Status receive_from_child(int from, std::span<const std::byte> message) {
    FARANDOLE_TRY_ASSIGN(const auto announcements, relay_.receive_from_child(from, message));
    if (!coordinator_) {
      relay_.add(announcements);
      return {};
    }
    for (const auto& item : announcements.items)
      FARANDOLE_TRY(coordinator_->receive(announcements.from, item));
    return {};
  }

  // Sends the follower's announcements (or passes them to the coordinator of this member), then the
  // coordinator's decisions. The function loops, because a decision may cause new announcements.
  void flush() {
    for (bool has_more = true; has_more;) {
      has_more = false;
      while (auto item = follower_.next_announcement()) {
        if (!coordinator_) {
          relay_.add({this_member_, {*std::move(item)}});
          continue;
        }
        const auto announce_status = coordinator_->receive(this_member_, *item);
        CHECK(announce_status.ok(), "our own announcements are valid");
      }
      if (!coordinator_ || !coordinator_->has_message()) continue;
      const auto stream = *coordinator_->next_message();
      relay_.pass_down(stream);
      const auto decision_status = follower_.receive(stream, now_);
      CHECK(decision_status.ok(), "our own decisions are valid");
      has_more = true;
    }
  }

  int member_;
  const MemberSet this_member_;  // a set of only this member
  std::vector<int> ranks_;
  Follower follower_;
  TreeRelay relay_;
  std::optional<Coordinator> coordinator_;
  TimePoint now_;
};

Agreement::Agreement(int member, std::vector<int> ranks, const AgreementOptions& options,
                     const std::vector<int>& hosts)
    : parts_(std::make_unique<Parts>(member, std::move(ranks), options, hosts)) {}

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

void Agreement::record_completion() { parts_->follower().record_completion(); }

void Agreement::record_misprediction() { parts_->follower().record_misprediction(); }

bool Agreement::take_rollback() { return parts_->follower().take_rollback(); }

}  // namespace farandole
