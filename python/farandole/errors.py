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


class WorkerError(FarandoleError):
    """A worker of a job that this program has started has failed.

    An exception of a worker arrives in words, not as an object.
    """

    def __init__(
        self,
        text: str,
        rank: int = -1,
        exit_code: int | None = None,
        exception: tuple[str, str, str] = ("", "", ""),
    ) -> None:
        super().__init__(text)
        self.rank = rank
        # Of the process, 128 + N after signal N; None if it is not known.
        self.exit_code = exit_code
        # Empty unless the function has raised: the type, such as "ValueError", and so on.
        self.exception_type, self.exception_text, self.remote_traceback = exception


def text_for_others(error: Exception) -> str:
    """What the other ranks are told when this one cannot do its part."""
    return str(error) if isinstance(error, CallError) else f"{type(error).__name__}: {error}"
