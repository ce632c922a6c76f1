"""The exceptions, by what the program can do next.

There is one class for each kind of failure that the engine knows. The binding raises them too.
"""

from __future__ import annotations


class FarandoleError(RuntimeError):
    """A call failed. If it is not a subclass, this process cannot continue (system limits, a forked
    child)."""


class CallError(FarandoleError, ValueError):
    """The call itself is wrong. Correct it; later calls work.

    If this process can see the mistake, it is raised at once, on this rank only. If the ranks
    disagree (about a shape, dtype, operation ...), it is raised on every rank.
    """


class MisuseError(CallError, AssertionError):
    """A call at the wrong time. Also an AssertionError, because Horovod raises that."""


class GroupLostError(FarandoleError):
    """A member has left or died, so the group has ended. The text names the rank and the cause."""


class WorkerError(FarandoleError):
    """A worker of a job that this program has started has failed.

    It contains a worker's exception as text only, not as an object.
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
        # The exit code of its process, 128 + N after signal N; None if it is unknown.
        self.exit_code = exit_code
        # All empty unless the function has raised. The type is a name, such as "ValueError".
        self.exception_type, self.exception_text, self.remote_traceback = exception


def text_for_others(error: Exception) -> str:
    """Return what the other ranks are told if this one cannot do its part."""
    return str(error) if isinstance(error, CallError) else f"{type(error).__name__}: {error}"
