#include "base/signature.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string_view>
#include <tuple>

#include "base/digest.h"
#include "base/format.h"

namespace farandole {
namespace {

std::uint64_t bits_of(double scale) { return std::bit_cast<std::uint64_t>(scale); }

std::string problem_of_scale(const Signature& signature, std::string_view scale_name,
                             double scale) {
  const auto& row = row_of(signature.operation);
  const auto name = shortened(signature.name, kNameShownBytesMax);
  if (!std::isfinite(scale))
    return format_text("{} `{}`: the {} is {}; it must be finite", row.name, name, scale_name,
                       scale);
  if (!row.reduces && scale != 1)
    return format_text("{} `{}`: the {} is {}; without a reduction it must be 1", row.name, name,
                       scale_name, scale);
  return {};
}

}  // namespace

bool operator==(const Signature& a, const Signature& b) {
  const auto fields = [](const Signature& s) {
    return std::tie(s.name, s.operation, s.dtype, s.device, s.reduce_op, s.root_rank, s.dimensions,
                    s.call_error);
  };
  return fields(a) == fields(b) && have_same_bits(a.prescale, b.prescale) &&
         have_same_bits(a.postscale, b.postscale);
}

bool have_same_bits(double a, double b) { return bits_of(a) == bits_of(b); }

std::uint64_t digest_of(std::string_view name) {
  Digest digest;
  digest.add(name);
  return digest.value();
}

std::uint64_t digest_of(const Signature& signature) {
  Digest digest;
  digest.add(signature.name);
  digest.add(static_cast<std::uint64_t>(signature.operation));
  digest.add(static_cast<std::uint64_t>(signature.dtype));
  digest.add(static_cast<std::uint64_t>(signature.device));
  digest.add(static_cast<std::uint64_t>(signature.reduce_op));
  digest.add(static_cast<std::uint64_t>(signature.root_rank));
  digest.add(bits_of(signature.prescale));
  digest.add(bits_of(signature.postscale));
  digest.add(signature.dimensions.size());
  for (const auto dimension : signature.dimensions)
    digest.add(static_cast<std::uint64_t>(dimension));
  digest.add(signature.call_error);
  return digest.value();
}

InternedSignature::InternedSignature(Signature interned)
    : signature(std::move(interned)),
      digest(digest_of(signature)),
      name_digest(digest_of(std::string_view(signature.name))),
      bytes(0),
      fusion_key(0),
      problem(problem_of(signature)) {
  if (!problem.empty()) return;
  bytes = *byte_count(signature.dtype, signature.dimensions);
  if (signature.has_call_error() || !may_be_fused(signature.operation, signature.reduce_op)) return;
  Digest key;
  key.add(static_cast<std::uint64_t>(signature.operation));
  key.add(static_cast<std::uint64_t>(signature.dtype));
  key.add(static_cast<std::uint64_t>(signature.device));
  key.add(static_cast<std::uint64_t>(signature.reduce_op));
  key.add(bits_of(signature.prescale));
  key.add(bits_of(signature.postscale));
  fusion_key = key.value();
}

std::string problem_of(const Signature& signature) {
  const auto& name = signature.name;
  if (name.empty()) return "the name is empty";
  if (name.size() > kNameBytesMax) {
    return format_text("the name `{}` has {} bytes, at most {} are allowed", shortened(name, 80),
                       name.size(), kNameBytesMax);
  }
  const auto problem_with_value = [&name](std::string_view problem, std::int64_t value) {
    return format_text("`{}`: {} ({})", shortened(name, kNameShownBytesMax), problem, value);
  };
  if (static_cast<std::size_t>(signature.operation) >= kOperations.size())
    return problem_with_value("this number is not an operation",
                              static_cast<int>(signature.operation));
  if (static_cast<std::size_t>(signature.dtype) >= kDTypes.size())
    return problem_with_value("this number is not an element type",
                              static_cast<int>(signature.dtype));
  if (find_row(signature.device) == nullptr)
    return problem_with_value("this number is not a device", static_cast<int>(signature.device));
  if (static_cast<std::size_t>(signature.reduce_op) >= kReduceOpNames.size())
    return problem_with_value("this number is not a reduction",
                              static_cast<int>(signature.reduce_op));
  if (signature.call_error.size() > kCallErrorBytesMax)
    return problem_with_value("the text of its call error is too long",
                              static_cast<int>(signature.call_error.size()));
  if (signature.dimensions.size() > kDimensionsMax) {
    return format_text("`{}` has {} dimensions, at most {} are allowed",
                       shortened(name, kNameShownBytesMax), signature.dimensions.size(),
                       kDimensionsMax);
  }
  if (!byte_count(signature.dtype, signature.dimensions))
    return format_text("`{}` has the shape [{}], which no tensor has",
                       shortened(name, kNameShownBytesMax), join_text(signature.dimensions, ", "));
  const auto problem = problem_of_scale(signature, "prescale", signature.prescale);
  return problem.empty() ? problem_of_scale(signature, "postscale", signature.postscale) : problem;
}

std::optional<std::int64_t> byte_count(DType dtype, std::span<const std::int64_t> shape) {
  constexpr std::int64_t kBytesMax = std::int64_t{1} << 62;
  auto bytes = static_cast<std::int64_t>(row_of(dtype).bytes);
  bool is_empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    is_empty |= dimension == 0;
    if (dimension > 1 && bytes >= kBytesMax / dimension) return std::nullopt;
    bytes *= std::max<std::int64_t>(dimension, 1);
  }
  return is_empty ? 0 : bytes;
}

std::string shortened(const std::string& text, std::size_t bytes_max) {
  if (text.size() <= bytes_max) return text;
  constexpr std::string_view kEllipsis = "…";
  std::size_t end = bytes_max > kEllipsis.size() ? bytes_max - kEllipsis.size() : 0;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end).append(kEllipsis);
}

}  // namespace farandole
