#include "rendezvous/local_store.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/check.h"
#include "base/format.h"
#include "base/try.h"

namespace farandole {

Bytes new_host_token() {
  std::array<std::uint64_t, 2> random{};
  // For so few bytes, getrandom() always returns all bytes. Shortly after the boot, it may wait
  // until the kernel has random numbers.
  while (::getrandom(random.data(), sizeof(random), 0) != sizeof(random))
    CHECK(errno == EINTR, "the kernel has random numbers");
  ByteWriter writer;
  writer.put_text(format_text("{:016x}{:016x}", random[0], random[1]));
  return writer.take();
}

Result<LocalValue> LocalStore::receive(const std::string& key, const WaitLimit& limit) {
  FARANDOLE_TRY_ASSIGN(auto values, receive_all({key}, "", limit));
  return *std::move(values.front());
}

Result<StoreValues> LocalStore::wait_for_all(const std::vector<std::string>& keys,
                                             const std::string& end_key, const WaitLimit& limit) {
  FARANDOLE_TRY_ASSIGN(auto values, receive_all(keys, end_key, limit));
  StoreValues bytes;
  for (auto& value : values)
    bytes.push_back(value ? std::optional(std::move(value->bytes)) : std::nullopt);
  return bytes;
}

}  // namespace farandole
