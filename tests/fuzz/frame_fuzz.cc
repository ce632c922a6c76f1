// Reads any bytes as frame headers. A header must be rejected, or be equal to the header that we
// would send. The first byte of the input sets the size of the pieces in which the other bytes
// arrive.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "network/frame.h"

namespace {

using namespace farandole;  // NOLINT(google-build-using-namespace)

void read_headers(std::span<const std::byte> stream, std::size_t piece_bytes) {
  FrameHeaderReader reader;
  FrameHeaderBytes header_bytes{};
  while (!stream.empty()) {
    const std::size_t count = std::min({piece_bytes, stream.size(), reader.space().size()});
    const std::size_t offset = kFrameHeaderBytes - reader.space().size();
    std::ranges::copy(stream.first(count), reader.space().begin());
    std::ranges::copy(stream.first(count),
                      header_bytes.begin() + static_cast<std::ptrdiff_t>(offset));
    reader.mark_filled(count);
    stream = stream.subspan(count);
    if (!reader.complete()) continue;
    const auto header = reader.take();
    if (!header.ok()) return;
    CHECK(header->length <= payload_bytes_max(header->type), "a payload has a limit");
    CHECK(encode_frame_header(*header) == header_bytes, "a header has one form");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  read_headers(std::as_bytes(std::span(data + 1, size - 1)), 1U + data[0]);
  return 0;
}
