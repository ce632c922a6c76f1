#include "rank_list.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/format.h"

namespace farandole {
namespace {

std::optional<int> parse_rank(std::string_view text) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [number_end, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && number_end == end && number >= 0 ? std::optional(number)
                                                                  : std::nullopt;
}

}  // namespace

Result<std::set<int>> parse_rank_list(std::string_view text, int workers) {
  std::set<int> ranks;
  for (;;) {
    const auto end = std::min(text.find(','), text.size());
    const std::string_view item = text.substr(0, end);
    const auto dash = std::min(item.find('-'), item.size());
    const auto first = parse_rank(item.substr(0, dash));
    const auto last = dash == item.size() ? first : parse_rank(item.substr(dash + 1));
    if (!first || !last || *first > *last)
      return Status::fix_call(
          format_text("\"{}\" is neither a rank such as 3 nor a range such as 2-3", item));
    if (*last >= workers)
      return Status::fix_call(
          format_text("rank {} is not in this job of {} {}; its last rank is {}", *last, workers,
                      workers == 1 ? "worker" : "workers", workers - 1));
    for (int rank = *first; rank <= *last; ++rank) ranks.insert(rank);
    if (end == text.size()) return ranks;
    text.remove_prefix(end + 1);
  }
}

}  // namespace farandole
