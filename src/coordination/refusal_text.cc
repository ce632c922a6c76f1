#include "coordination/refusal_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "base/check.h"
#include "coordination/messages.h"

namespace farandole {
namespace {

constexpr std::size_t kVariantsShownMax = 8;
constexpr std::size_t kNameShownBytesMax = 200;
constexpr std::size_t kShapeBytesMax = 200;
constexpr std::size_t kRanksBytesMax = 300;

// Which parts of the signatures are not the same everywhere.
struct Differences {
  bool operation = false;
  bool dtype = false;
  bool device = false;
  bool shape = false;
  bool reduce_op = false;
  bool root_rank = false;
  bool prescale = false;
  bool postscale = false;
};

Differences differences_of(const std::vector<Variant>& variants) {
  Differences differences;
  const auto& first = variants.front().signature;
  for (const auto& [signature, ranks] : variants) {
    differences.operation |= signature.operation != first.operation;
    differences.dtype |= signature.dtype != first.dtype;
    differences.device |= signature.device != first.device;
    differences.shape |= signature.dimensions != first.dimensions;
    differences.reduce_op |= signature.reduce_op != first.reduce_op;
    differences.root_rank |= signature.root_rank != first.root_rank;
    differences.prescale |= !same_bits(signature.prescale, first.prescale);
    differences.postscale |= !same_bits(signature.postscale, first.postscale);
  }
  return differences;
}

// Of another operation everything else differs as well: that would only distract.
std::string words_of(const Differences& differences) {
  if (differences.operation) return "the operation differs";
  std::vector<std::string_view> words;
  if (differences.dtype) words.emplace_back("dtype");
  if (differences.device) words.emplace_back("device");
  if (differences.shape) words.emplace_back("shape");
  if (differences.reduce_op) words.emplace_back("reduce op");
  if (differences.root_rank) words.emplace_back("root rank");
  if (differences.prescale) words.emplace_back("prescale");
  if (differences.postscale) words.emplace_back("postscale");
  std::string text = words.size() == 1 ? "the " : "";
  for (std::size_t index = 0; index < words.size(); ++index) {
    if (index > 0) text += index + 1 == words.size() ? " and " : ", ";
    text += words[index];
  }
  return text + (words.size() == 1 ? " differs" : " differ");
}

std::string shape_of(const Signature& signature) {
  std::string text = "[";
  std::string_view separator;
  if (row_of(signature.operation).shape_rule == ShapeRule::kAllButFirst) {
    text += "*";
    separator = ", ";
  }
  for (const auto dimension : signature.dimensions) {
    text += fmt::format("{}{}", separator, dimension);
    separator = ", ";
  }
  return shortened(text + "]", kShapeBytesMax);
}

std::string value_of(const Signature& signature, const Differences& differences) {
  const auto& row = row_of(signature.operation);
  std::vector<std::string> words;
  if (differences.operation) words.emplace_back(row.name);
  if (row.shape_rule != ShapeRule::kNone) {
    words.emplace_back(row_of(signature.dtype).name);
    words.emplace_back(shape_of(signature));
    if (differences.device) words.emplace_back(find_row(signature.device)->name);
  }
  if (differences.reduce_op && row.reduces)
    words.emplace_back(fmt::format("reduce op {}", name_of(signature.reduce_op)));
  if (differences.root_rank && row.rooted)
    words.emplace_back(fmt::format("root rank {}", signature.root_rank));
  if (differences.prescale && row.reduces)
    words.emplace_back(fmt::format("prescale {}", signature.prescale));
  if (differences.postscale && row.reduces)
    words.emplace_back(fmt::format("postscale {}", signature.postscale));
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace

std::string rank_list(std::vector<int> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (first > 0) text += ", ";
    text += std::to_string(ranks[first]);
    if (last > first) text += "–" + std::to_string(ranks[last]);
    first = last + 1;
  }
  return text;
}

std::string refusal_text(std::vector<Variant> variants) {
  CHECK(variants.size() >= 2, "one variant is no mismatch");
  for (auto& variant : variants) std::sort(variant.ranks.begin(), variant.ranks.end());
  std::sort(variants.begin(), variants.end(),
            [](const Variant& a, const Variant& b) { return a.ranks < b.ranks; });

  const auto differences = differences_of(variants);
  const auto& first = variants.front().signature;
  std::string text =
      fmt::format("{}`{}` was submitted differently on different ranks: {}. ",
                  differences.operation ? "" : fmt::format("{} ", row_of(first.operation).name),
                  shortened(first.name, kNameShownBytesMax), words_of(differences));

  const auto shown = std::min(variants.size(), kVariantsShownMax);
  for (std::size_t index = 0; index < shown; ++index) {
    text += fmt::format("{}{}: {}", index > 0 ? "; " : "",
                        shortened(rank_list(variants[index].ranks), kRanksBytesMax),
                        value_of(variants[index].signature, differences));
  }
  if (const auto rest = variants.size() - shown; rest > 0)
    text += fmt::format("; and {} more {}", rest, rest == 1 ? "variant" : "variants");
  text += ". Submit the same on every rank, or give different tensors different names";
  return shortened(text, kRefusalTextBytesMax);
}

std::string joined_text(const Signature& signature, std::vector<int> joined_ranks) {
  CHECK(!joined_ranks.empty(), "somebody has joined");
  std::vector<std::string_view> going_on;
  for (const auto& row : kOperations)
    if (row.runs_joined) going_on.push_back(row.name);
  const auto& row = row_of(signature.operation);
  const bool one = joined_ranks.size() == 1;
  return fmt::format(
      "{0} `{1}` cannot run: {2} {3} joined and {3} no more data; until all have joined, only {4} "
      "goes on. Call {0} before the first rank joins, or after join has returned",
      row.name, shortened(signature.name, kNameShownBytesMax),
      shortened(rank_list(std::move(joined_ranks)), kRanksBytesMax), one ? "has" : "have",
      fmt::join(going_on, ", "));
}

}  // namespace farandole
