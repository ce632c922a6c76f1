"""Make secret keys for programs that run their own services. Farandole's jobs need no keys."""

from __future__ import annotations

import secrets

KEY_BYTES = 32


def make_secret_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)
