"""The exceptions, sorted by what the program does next.

The binding raises them too: one class for each kind of failure that the engine knows.
"""

from __future__ import annotations


class FarandoleError(RuntimeError):
    """A call failed. On its own: this process cannot go on (system limits, a forked child)."""


class CallError(FarandoleError, ValueError):
    """The call itself is wrong: correct it; later calls work.

    Raised at once where this process can see the mistake, and on every rank when it is known that
    the ranks disagree (another shape, dtype, operation ...).
    """


class GroupLostError(FarandoleError):
    """A member left or died: this group is over. The text names the rank and the cause."""
