"""Keys and digests for programs that run their own services. Farandole's jobs need no keys."""

from __future__ import annotations

import hashlib
import hmac
import secrets

SECRET_LENGTH = 32  # bytes
DIGEST_LENGTH = 32
HOROVOD_SECRET_KEY = "_HOROVOD_SECRET_KEY"  # the name of an environment variable


def make_secret_key() -> bytes:
    return secrets.token_bytes(SECRET_LENGTH)


def compute_digest(key: bytes, message: bytes) -> bytes:
    """Return the HMAC-SHA256 of the message."""
    return hmac.new(key, message, hashlib.sha256).digest()


def check_digest(key: bytes, message: bytes, digest: bytes) -> bool:
    return hmac.compare_digest(compute_digest(key, message), digest)
