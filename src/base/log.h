// Log: lines for people on standard error, tagged with the rank.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "farandole/status.h"

namespace farandole {

enum class Level : std::uint8_t { kTrace, kDebug, kInfo, kWarning, kError, kFatal };

// Returns the level with this name in lower case. Errors: kFixCall.
Result<Level> level_named(std::string_view name);

// Any thread may log, and lines do not mix. Each process or engine makes one Log and passes this
// Log to its parts.
class Log {
 public:
  struct Options {
    Level level = Level::kWarning;  // less severe lines are dropped
    bool hide_time = false;
    std::string tag{};  // shown in each line, such as "rank 3"; may be empty
  };
  explicit Log(const Options& options);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  void operator()(Level level, std::string_view text) const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace farandole
