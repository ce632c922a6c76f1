// AES-128-GCM with the vector instructions of newer processors, as a cipher of OpenSSL.
#pragma once

namespace farandole {

// Returns a property query for SSL_CTX_new_ex() and EVP_CIPHER_fetch(). With it, OpenSSL uses the
// fastest AES-128-GCM of this processor. Use it only for TLS 1.3. Returns null if OpenSSL must use
// its own cipher. Thread-safe. The first call loads two providers into OpenSSL's default context:
// ours and "default".
const char* fastest_cipher_properties();

}  // namespace farandole
