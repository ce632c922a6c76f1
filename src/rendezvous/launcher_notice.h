// LauncherNotice: what the launcher of an elastic job tells a worker, over a socket that only these
// two have (FARANDOLE_LAUNCHER_DESCRIPTOR). The end of this socket is the end of the launcher.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/bytes.h"

namespace farandole {

// How long workers may take to end after their launcher or driver was lost: for the rest of the
// step, and for what they save. So all have ended 10 s after the loss.
inline constexpr std::chrono::seconds kEndLimit{9};
// The exit code of a worker that has ended early, after all ranks have agreed on the step and have
// saved what they were told to save: EX_TEMPFAIL of sysexits.h, "try again later".
inline constexpr int kEndedEarly = 75;

struct LauncherNotice {
  enum class Kind : std::uint8_t {
    // The first message, if the job cannot go on without this launcher: if the socket ends, the
    // worker shall end with its next commit, and until then nobody kills it. The message comes with
    // two descriptors, from which the launcher reads the worker's standard output and error. If the
    // launcher is lost, the worker reads them itself, so that its writes neither fail nor block.
    kOutlive,
    kEnd,  // the worker shall end with its next commit
    // A member of the worker's group is lost with its host, perhaps without having ended. If the
    // group is that of this epoch, the worker's calls fail as if the member had died.
    kMemberLost,
  };
  Kind kind = Kind::kEnd;
  std::chrono::milliseconds limit{};  // kEnd: how long the worker may take
  std::string why{};                  // kEnd: for the user
  std::int64_t epoch = 0;             // kMemberLost
  std::int32_t rank = 0;              // kMemberLost: that of the member in this epoch

  Bytes encode() const;
  // Empty if the bytes are not a notice.
  static std::optional<LauncherNotice> decode(std::span<const std::byte> bytes);
};

}  // namespace farandole
