"""Make secret keys for programs with services of their own. Jobs here need no keys."""

from __future__ import annotations

import secrets

KEY_BYTES = 32


def make_secret_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)
