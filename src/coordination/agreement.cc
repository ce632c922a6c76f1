#include "coordination/agreement.h"

#include <fmt/format.h>

#include <deque>
#include <utility>

#include "base/check.h"
#include "coordination/coordinator.h"
#include "coordination/follower.h"

namespace farandole {
namespace {

constexpr int kCoordinator = 0;

}  // namespace

// Joins a member's follower with the coordinator: by messages through the caller, or, on the
// coordinator's own member, by the same messages handed over directly.
class Agreement::Parts {
 public:
  Parts(int member, std::vector<int> ranks, std::size_t names_max)
      : member_(member), ranks_(std::move(ranks)), follower_(rank_of(member)) {
    if (member == kCoordinator) coordinator_.emplace(ranks_, names_max);
  }

  Status submit(Signature signature) { return follower_.submit(std::move(signature)); }

  Status receive(int from, std::span<const std::byte> message) {
    const auto status = hand_over(from, message);
    if (status.ok()) return status;
    return Status::stop(fmt::format(
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

  std::optional<Decision> next_decision() {
    flush();
    return follower_.next_decision();
  }

 private:
  int rank_of(int member) const {
    CHECK(member >= 0 && static_cast<std::size_t>(member) < ranks_.size(), "this is a member");
    return ranks_[static_cast<std::size_t>(member)];
  }

  Status hand_over(int from, std::span<const std::byte> message) {
    if (from == member_) return Status::stop("it comes from this rank itself");
    if (coordinator_) return coordinator_->receive(from, message);
    if (from != kCoordinator)
      return Status::stop(fmt::format("only rank {} decides here", rank_of(kCoordinator)));
    return follower_.receive(message);
  }

  // Announcements go out or, on the coordinator's member, straight to it; then what was decided. A
  // decision can make our follower announce again, hence the loop.
  void flush() {
    if (!coordinator_) {
      while (auto message = follower_.next_message())
        outgoing_.push_back({kCoordinator, *std::move(message)});
      return;
    }
    for (;;) {
      if (const auto message = follower_.next_message()) {
        const auto announced = coordinator_->receive(kCoordinator, *message);
        CHECK(announced.ok(), "our own announcements are right");
      } else if (auto stream = coordinator_->next_message()) {
        broadcast(*std::move(stream));
      } else {
        return;
      }
    }
  }

  void broadcast(Bytes stream) {
    const auto members = static_cast<int>(ranks_.size());
    for (int to = 0; to < members; ++to)
      if (to != kCoordinator) outgoing_.push_back({to, stream});
    const auto decided = follower_.receive(stream);
    CHECK(decided.ok(), "our own decisions are right");
  }

  int member_;
  std::vector<int> ranks_;
  Follower follower_;
  std::optional<Coordinator> coordinator_;
  std::deque<OutgoingMessage> outgoing_;
};

Agreement::Agreement(int member, std::vector<int> ranks, std::size_t names_max)
    : parts_(std::make_unique<Parts>(member, std::move(ranks), names_max)) {}

Agreement::~Agreement() = default;

Status Agreement::submit(Signature signature) { return parts_->submit(std::move(signature)); }

Status Agreement::receive(int from, std::span<const std::byte> message) {
  return parts_->receive(from, message);
}

std::optional<OutgoingMessage> Agreement::next_message() { return parts_->next_message(); }

std::optional<Decision> Agreement::next_decision() { return parts_->next_decision(); }

}  // namespace farandole
