#include "coordination/rejection_text.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/rank_names.h"
#include "base/visible_text.h"
#include "control/messages.h"

namespace farandole {
namespace {

constexpr std::size_t kVariantsShownMax = 8;
constexpr std::size_t kCallErrorsShownMax = 4;
constexpr std::size_t kNumbersShownMax = 8;
constexpr std::size_t kValueBytesMax = 200;
constexpr std::size_t kRanksBytesMax = 60;

// One property of a signature that may differ; it becomes a column of the table. Two values are
// equal if their texts are equal.
struct Attribute {
  std::string_view name;
  std::string (*value)(const Signature& signature);
  bool (*applies)(const OperationRow& row);
  // whether the table shows the property even if it is equal on all ranks, because it helps users
  // to recognize the tensor
  bool shown_always = false;
};

std::string shape_of(const Signature& signature) {
  std::string text = "[";
  std::string_view separator;
  if (row_of(signature.operation).shape_rule == ShapeRule::kAllButFirst) {
    text += "*";
    separator = ", ";
  }
  for (const auto dimension : signature.dimensions) {
    text += format_text("{}{}", separator, dimension);
    separator = ", ";
  }
  return text + "]";
}

bool applies_always(const OperationRow& /*row*/) { return true; }
bool has_tensor(const OperationRow& row) { return row.shape_rule != ShapeRule::kNone; }
bool reduces(const OperationRow& row) { return row.reduces; }
bool is_rooted(const OperationRow& row) { return row.rooted; }

// The operation comes first, because it decides which other properties have a meaning. The shape
// comes last, because it may be long.
constexpr std::array<Attribute, 8> kAttributes = {{
    {"operation", [](const Signature& s) { return std::string(row_of(s.operation).name); },
     applies_always},
    {"dtype", [](const Signature& s) { return std::string(row_of(s.dtype).name); }, has_tensor,
     true},
    {"device", [](const Signature& s) { return std::string(find_row(s.device)->name); },
     has_tensor},
    {"reduce op", [](const Signature& s) { return std::string(name_of(s.reduce_op)); }, reduces},
    {"root rank", [](const Signature& s) { return std::to_string(s.root_rank); }, is_rooted},
    {"prescale", [](const Signature& s) { return format_text("{}", s.prescale); }, reduces},
    {"postscale", [](const Signature& s) { return format_text("{}", s.postscale); }, reduces},
    {"shape", shape_of, has_tensor, true},
}};

using Attributes = std::vector<const Attribute*>;

Attributes attributes_that_differ(const std::vector<Variant>& variants) {
  const auto& first = variants.front().signature;
  Attributes differing;
  for (const auto& attribute : kAttributes) {
    const bool differs = std::ranges::any_of(variants, [&](const Variant& variant) {
      return attribute.value(variant.signature) != attribute.value(first);
    });
    if (differs) differing.push_back(&attribute);
  }
  return differing;
}

Attributes table_columns(const std::vector<Variant>& variants, const Attributes& differing) {
  Attributes columns;
  for (const auto& attribute : kAttributes) {
    const bool has_meaning = std::ranges::any_of(variants, [&](const Variant& variant) {
      return attribute.applies(row_of(variant.signature.operation));
    });
    const bool differs = std::ranges::find(differing, &attribute) != differing.end();
    if (has_meaning && (differs || attribute.shown_always)) columns.push_back(&attribute);
  }
  return columns;
}

// Returns "dtype and shape differ", for example. If the operation differs, the text names only the
// operation, because other properties are then not comparable.
std::string difference_text(const Attributes& differing) {
  if (differing.size() == 1 || differing.front()->name == "operation")
    return format_text("the {} differs", differing.front()->name);
  std::string text;
  for (std::size_t index = 0; index < differing.size(); ++index) {
    if (index > 0) text += index + 1 == differing.size() ? " and " : ", ";
    text += differing[index]->name;
  }
  return text + " differ";
}

// Lists as many ranks as fit into a line of the table. If not all fit, their total number follows.
std::string short_rank_list(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  auto full_list = ranks_text(ranks);
  if (full_list.size() <= kRanksBytesMax) return full_list;
  const auto count = format_text(" … ({} ranks)", ranks.size());
  return full_list.substr(0, full_list.rfind(',', kRanksBytesMax - count.size()) + 1) + count;
}

// Names the ranks outside the majority; empty if there is no majority. The variant with the most
// ranks must come first.
std::string minority_text(const std::vector<Variant>& variants) {
  std::vector<int> minority_ranks;
  for (const auto& variant : std::span(variants).subspan(1))
    minority_ranks.insert(minority_ranks.end(), variant.ranks.begin(), variant.ranks.end());
  if (minority_ranks.size() >= variants.front().ranks.size()) return {};
  return format_text("; {} {} from the others", short_rank_list(minority_ranks),
                     minority_ranks.size() == 1 ? "differs" : "differ");
}

using TableRow = std::vector<std::string>;

std::string table_text(const std::vector<TableRow>& rows) {
  std::vector<int> widths(rows.front().size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], columns_of(row[i]));
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += format_text("{}{}{:{}}", i == 0 ? "  " : "   ", row[i], "",
                          widths[i] - columns_of(row[i]));
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

// Returns a table of the calls that ranks have submitted under one name, with one row per variant.
std::string table_text(std::span<const Variant> variants, const Attributes& columns) {
  std::vector<TableRow> rows(1, TableRow{""});
  for (const auto* const column : columns) rows.front().emplace_back(column->name);
  for (const auto& [signature, ranks] : variants) {
    auto& row = rows.emplace_back(1, short_rank_list(ranks));
    for (const auto* const column : columns) {
      const bool applies = column->applies(row_of(signature.operation));
      row.push_back(applies ? shortened(column->value(signature), kValueBytesMax) : "-");
    }
  }
  return table_text(rows);
}

std::string more_variants_text(std::span<const Variant> variants) {
  std::vector<int> ranks;
  for (const auto& variant : variants)
    ranks.insert(ranks.end(), variant.ranks.begin(), variant.ranks.end());
  return format_text("  and {} more {}: {}\n", variants.size(),
                     variants.size() == 1 ? "variant" : "variants", short_rank_list(ranks));
}

}  // namespace

std::string mismatch_text(std::vector<Variant> variants) {
  CHECK(variants.size() >= 2, "a mismatch has at least two variants");
  for (auto& variant : variants) std::ranges::sort(variant.ranks);
  // The smallest variants come last.
  std::ranges::sort(variants, [](const Variant& a, const Variant& b) {
    return a.ranks.size() != b.ranks.size() ? a.ranks.size() > b.ranks.size() : a.ranks < b.ranks;
  });

  const auto differing = attributes_that_differ(variants);
  CHECK(!differing.empty(), "variants differ");
  const auto& first = variants.front().signature;
  const bool operations_differ = differing.front()->name == "operation";
  const auto operation_prefix =
      operations_differ ? std::string() : format_text("{} ", row_of(first.operation).name);
  const auto shown_count = std::min(variants.size(), kVariantsShownMax);
  const auto hidden_variants = std::span(variants).subspan(shown_count);
  return format_text(
      "{}`{}` was submitted differently on different ranks: {}{}\n{}{}"
      "Submit the same on every rank, or give different tensors different names",
      operation_prefix, shortened(first.name, kNameShownBytesMax), difference_text(differing),
      minority_text(variants),
      table_text(std::span(variants).first(shown_count), table_columns(variants, differing)),
      hidden_variants.empty() ? "" : more_variants_text(hidden_variants));
}

std::string unnamed_text(const Signature& signature, const RanksByNumber& ranks_by_number) {
  CHECK(ranks_by_number.size() >= 2, "the numbers differ");
  const auto operation = row_of(signature.operation).name;
  std::vector<std::string> numbers_with_ranks;
  for (const auto& [number, ranks] : ranks_by_number) {
    if (numbers_with_ranks.size() == kNumbersShownMax) break;
    numbers_with_ranks.push_back(format_text("number {} on {}", number, short_rank_list(ranks)));
  }
  const auto hidden_count = ranks_by_number.size() - numbers_with_ranks.size();
  return format_text(
      "{0} `{1}` is not the same call on all ranks: among the unnamed {0} calls, it is {2}{3}. The "
      "engine numbers such names from 0 again after the program has waited for the results of all "
      "of these calls, and the ranks have not done so before the same call. Give these calls "
      "names, or wait for the same number of results on every rank before each of them",
      operation, shortened(signature.name, kNameShownBytesMax), join_text(numbers_with_ranks, "; "),
      hidden_count == 0 ? "" : format_text(" … ({} more numbers)", hidden_count));
}

std::string call_error_text(std::vector<Variant> variants) {
  std::erase_if(variants, [](const Variant& one) { return !one.signature.has_call_error(); });
  CHECK(!variants.empty(), "at least one rank has submitted the call");
  for (auto& variant : variants) std::ranges::sort(variant.ranks);
  std::ranges::sort(variants, {}, &Variant::ranks);
  const auto shown_count = std::min(variants.size(), kCallErrorsShownMax);
  std::string text;
  for (const auto& [signature, ranks] : std::span(variants).first(shown_count))
    text += format_text("{}{}: {}", text.empty() ? "" : "\n", short_rank_list(ranks),
                        signature.call_error);
  if (shown_count == variants.size()) return text;
  std::vector<int> hidden_ranks;
  for (const auto& variant : std::span(variants).subspan(shown_count))
    hidden_ranks.insert(hidden_ranks.end(), variant.ranks.begin(), variant.ranks.end());
  return text + format_text("\nsimilar problems on {}", short_rank_list(std::move(hidden_ranks)));
}

std::string joined_text(const Signature& signature, const std::vector<int>& joined_ranks) {
  CHECK(!joined_ranks.empty(), "at least one rank has joined");
  std::vector<std::string_view> runnable_operations;
  for (const auto& row : kOperations)
    if (row.allowed_while_joined) runnable_operations.push_back(row.name);
  const auto& row = row_of(signature.operation);
  const bool is_single_rank = joined_ranks.size() == 1;
  return format_text(
      "{0} `{1}` cannot run: {2} {3} joined and {3} no more data; until all have joined, only {4} "
      "can be called. Call {0} before the first rank joins, or after join has returned",
      row.name, shortened(signature.name, kNameShownBytesMax), short_rank_list(joined_ranks),
      is_single_rank ? "has" : "have", join_text(runnable_operations, " and "));
}

}  // namespace farandole
