"""Keys for those who build services of their own; jobs here need none."""

from __future__ import annotations

import secrets

KEY_BYTES = 32


def make_secret_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)
