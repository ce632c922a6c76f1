// Expected failures are values. Status says what went wrong, and its code says what the caller
// should do next. Result<T> is either a value or a Status that is not ok. A bug in the engine is
// not reported by a Status: CHECK stops the process.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace farandole {

// Each code stands for one way in which the caller can continue.
enum class StatusCode : std::uint8_t {
  kOk,
  kRetry,         // not a failure: the same call may succeed later
  kRebuildGroup,  // a member is gone: the group has ended, but a new one can be formed
  kFixCall,       // the call itself is wrong: correct it; the engine continues
  kStop,          // this process cannot continue (system limits, broken installation)
};

// Cheap to copy. An ok status allocates no memory.
class [[nodiscard]] Status {
 public:
  Status() = default;

  static Status retry(std::string message) { return {StatusCode::kRetry, std::move(message)}; }
  static Status rebuild_group(std::string message) {
    return {StatusCode::kRebuildGroup, std::move(message)};
  }
  static Status fix_call(std::string message) { return {StatusCode::kFixCall, std::move(message)}; }
  static Status stop(std::string message) { return {StatusCode::kStop, std::move(message)}; }

  bool ok() const { return problem_ == nullptr; }
  StatusCode code() const { return ok() ? StatusCode::kOk : problem_->code; }
  // A text for people: what is wrong, with which value, on which rank, and what to do. Empty if ok.
  const std::string& message() const {
    static const std::string empty;
    return ok() ? empty : problem_->message;
  }

  friend bool operator==(const Status& a, const Status& b) {
    return a.code() == b.code() && a.message() == b.message();
  }

 private:
  struct Problem {
    Problem(StatusCode problem_code, std::string problem_message)
        : code(problem_code), message(std::move(problem_message)) {}
    StatusCode code;
    std::string message;
  };

  Status(StatusCode code, std::string message)
      : problem_(std::make_shared<const Problem>(code, std::move(message))) {}

  std::shared_ptr<const Problem> problem_;  // shared by all copies; null if ok
};

// Holds a T, or a Status that is not ok. Reading the value of a failed Result aborts.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::move(value)) {}        // NOLINT(google-explicit-constructor)
  Result(Status status) : content_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (std::get<Status>(content_).ok()) std::abort();
  }

  bool ok() const { return std::holds_alternative<T>(content_); }
  Status status() const { return ok() ? Status() : std::get<Status>(content_); }

  T& value() & { return checked(); }
  const T& value() const& { return const_cast<Result*>(this)->checked(); }
  T&& value() && { return std::move(checked()); }
  T& operator*() & { return checked(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(checked()); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &value(); }

 private:
  T& checked() {
    if (!ok()) std::abort();
    return std::get<T>(content_);
  }

  std::variant<T, Status> content_;
};

}  // namespace farandole
