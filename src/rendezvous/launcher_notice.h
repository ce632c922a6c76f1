// LauncherNotice: a message from the launcher of an elastic job to a worker, over a socket between
// these two (FARANDOLE_LAUNCHER_DESCRIPTOR). If the socket ends, the launcher has ended.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/bytes.h"

namespace farandole {

// The time limit for workers to end after their launcher or driver was lost. In this time, the
// workers finish the step and save their state. The limit is below 10 s so that all workers have
// ended 10 s after the loss.
inline constexpr std::chrono::seconds kEndLimit{9};
// The exit code of a worker that has ended before its program was finished, but after all ranks had
// agreed on the last step and had saved their state: EX_TEMPFAIL of sysexits.h, "try again later".
inline constexpr int kEndedEarlyExitCode = 75;

struct LauncherNotice {
  enum class Kind : std::uint8_t {
    // If the job cannot go on without this launcher, the launcher sends this notice before all
    // other notices. If the launcher is then lost, the worker ends with its next commit, and the
    // kernel does not kill the worker before this commit. The message carries two descriptors, from
    // which the launcher reads the worker's standard output and error. If the launcher is lost, the
    // worker reads from them itself, so that its writes neither fail nor block.
    kOutlive,
    kEnd,  // the worker must end with its next commit
    // A member of the worker's group is lost together with its host; the member's process may still
    // run. If the worker is still in `epoch`, its calls fail as if the member had died.
    kMemberLost,
  };
  Kind kind = Kind::kEnd;
  std::chrono::milliseconds limit{};  // kEnd: the time limit of the worker
  std::string why{};                  // kEnd: the reason, for the user
  std::int64_t epoch = 0;             // kMemberLost
  std::int32_t rank = 0;              // kMemberLost: the rank of the lost member in this epoch

  Bytes encode() const;
  // Empty if the bytes are not a notice.
  static std::optional<LauncherNotice> decode(std::span<const std::byte> bytes);
};

}  // namespace farandole
