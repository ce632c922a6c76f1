// AES-128-GCM with the vector instructions of newer processors, as a cipher of OpenSSL.
#pragma once

namespace farandole {

// Returns the properties to give to SSL_CTX_new_ex() and EVP_CIPHER_fetch(), so that OpenSSL uses
// the fastest AES-128-GCM that this processor can run. Null stands for OpenSSL's own, which other
// processors use. Thread-safe. The first call adds a provider to OpenSSL's default context.
const char* fastest_cipher();

}  // namespace farandole
