// Reads any text as an address, as a range of addresses and as a host name. An invalid text must be
// rejected with an error. The address of a valid text must stay the same when it is printed and
// read again.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "network/tcp/host_name.h"
#include "network/tcp/socket_address.h"

using namespace farandole;  // NOLINT(google-build-using-namespace)

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto address = SocketAddress::parse(text);
  if (address.ok()) {
    CHECK(*SocketAddress::parse(address->text()) == *address, "what is printed can be read");
    CHECK(*socket_address_of(kernel_address_of(*address).get()) == *address, "nothing is lost");
  } else {
    CHECK(address.status().code() == StatusCode::kFixCall, "a text cannot stop us");
  }
  const auto range = AddressRange::parse(text);
  CHECK(!range.ok() || range->contains(range->first), "a range contains its first address");
  if (check_host_name(text).ok())
    CHECK(text.find_first_of(" ;|&$`\n'\"\\/") == std::string::npos && text[0] != '-',
          "a host name is harmless as an argument of a command");
  return 0;
}
