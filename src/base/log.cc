#include "base/log.h"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <array>

#include "base/format.h"
namespace farandole {
namespace {

struct LevelRow {
  Level level;
  std::string_view name;  // the word of the knob log_level
  spdlog::level::level_enum spdlog_level;
};

// Indexed by Level.
constexpr std::array<LevelRow, 6> kLevels = {{
    {Level::kTrace, "trace", spdlog::level::trace},
    {Level::kDebug, "debug", spdlog::level::debug},
    {Level::kInfo, "info", spdlog::level::info},
    {Level::kWarning, "warning", spdlog::level::warn},
    {Level::kError, "error", spdlog::level::err},
    {Level::kFatal, "fatal", spdlog::level::critical},
}};

const LevelRow& row_of(Level level) { return kLevels[static_cast<std::size_t>(level)]; }

// spdlog's level names differ from the words of the knob. So the pattern has no level name, and our
// own text of each line contains the word of the knob.
std::string pattern_for(const Log::Options& options) {
  return options.hide_time ? "%v" : "%Y-%m-%d %H:%M:%S.%e %v";
}

}  // namespace

Result<Level> level_named(std::string_view name) {
  for (const LevelRow& row : kLevels)
    if (row.name == name) return row.level;
  return Status::fix_call(format_text(
      "`{}` is not a log level; use trace, debug, info, warning, error or fatal", name));
}

struct Log::Implementation {
  explicit Implementation(const Options& options)
      : prefix(options.tag.empty() ? "farandole" : format_text("farandole {}", options.tag)),
        logger("farandole", std::make_shared<spdlog::sinks::stderr_sink_mt>()) {
    logger.set_pattern(pattern_for(options));
    logger.set_level(row_of(options.level).spdlog_level);
    logger.flush_on(spdlog::level::trace);
  }

  std::string prefix;
  mutable spdlog::logger logger;  // thread-safe by itself
};

Log::Log(const Options& options) : implementation_(std::make_unique<Implementation>(options)) {}

Log::~Log() = default;

void Log::operator()(Level level, std::string_view text) const {
  const LevelRow& row = row_of(level);
  if (!implementation_->logger.should_log(row.spdlog_level)) return;
  implementation_->logger.log(row.spdlog_level,
                              format_text("{} {}: {}", implementation_->prefix, row.name, text));
}

}  // namespace farandole
