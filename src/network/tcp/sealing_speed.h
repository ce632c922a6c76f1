// How fast this processor seals data for connections between hosts.
#pragma once

#include <chrono>

#include "farandole/status.h"

namespace farandole {

// Seals records of 16 KiB with AES-128-GCM, the cipher of TlsSession, for `time`. Returns the bytes
// per second of one core. Blocks for this time. Opening data takes about as long as sealing it.
// Errors: kStop if OpenSSL cannot seal.
Result<double> measure_sealing_speed(std::chrono::milliseconds time);

}  // namespace farandole
