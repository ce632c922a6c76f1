"""The exceptions. Each class says what the program can do next.

There is one class for each kind of failure that the engine knows. The C++ binding raises them too.
"""

from __future__ import annotations


class FarandoleError(RuntimeError):
    """A call failed. If the error is of this class itself and not of a subclass, this process
    cannot continue: a limit of the system was reached, or the process is a forked child."""


class CallError(FarandoleError, ValueError):
    """The call itself is wrong. Correct it; later calls work.

    If the arguments cannot be a call at all, it is raised at once, on this rank only. If the call
    of one rank is invalid, or the ranks disagree (about a shape, dtype, operation ...), it is
    raised on every rank.
    """


class MisuseError(CallError, AssertionError):
    """A call was made at the wrong time. It is also an AssertionError, because Horovod raises
    that."""


class GroupLostError(FarandoleError):
    """A member has left or died, so the group has ended. The text names the rank and the cause."""


class WorkerError(FarandoleError):
    """A worker has failed, in a job that this program has started.

    The error contains the worker's exception as text only, not as an object.
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
        # All three are empty unless the function has raised. The type is a name ("ValueError").
        self.exception_type, self.exception_text, self.remote_traceback = exception


def text_for_others(error: Exception) -> str:
    """Return what the other ranks are told if this one cannot do its part."""
    return str(error) if isinstance(error, CallError) else f"{type(error).__name__}: {error}"
