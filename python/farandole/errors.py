"""The exceptions. Each class says what the program can do next.

CallError, GroupLostError and FarandoleError itself stand for the failures that the engine reports
(StatusCode in C++), and the C++ binding raises them too. The other classes exist in Python only.
"""

from __future__ import annotations

import re


class FarandoleError(RuntimeError):
    """A call failed. The subclasses say more. An error of this class itself means that this process
    cannot continue: a limit of the system was reached, or the process is a forked child."""

    # If an error leaves a function while TensorFlow traces the function, AutoGraph replaces the
    # error by a new one with more text. The new error has the same class only if the class has this
    # constructor.
    __init__ = Exception.__init__


class CallError(FarandoleError, ValueError):
    """The call itself is wrong. Correct it; later calls work.

    If the call is malformed, the error is raised at once, on this rank only. If the call of one
    rank is invalid, or the ranks disagree (about a shape, dtype, operation ...), the error is
    raised on every rank.
    """


class MisuseError(CallError, AssertionError):
    """A call was made at the wrong time. The error is also an AssertionError, because Horovod
    raises an AssertionError in these cases."""


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
        # The exit code of the worker's process, 128 + N after signal N; None if it is unknown.
        self.exit_code = exit_code
        # The exception that the worker's function has raised: the name of its type, its text and
        # its traceback. All three are empty if the function has raised no exception.
        self.exception_type, self.exception_text, self.remote_traceback = exception


# Finds the class and the text of a failed call's error inside the text of a framework's error.
# TensorFlow appends the name of its operation to the text.
_FAILED_CALL_PATTERN = re.compile(
    r"\b(CallError|GroupLostError|FarandoleError): (.*?)(?: \[Op:Farandole.*|\n\t \[\[.*)?\Z",
    re.DOTALL,
)


def error_of_failed_call(text: str) -> FarandoleError | None:
    """Return the error of a call that failed inside a program of a framework. `text` is the text of
    the framework's error. Return None if that error has another cause."""
    match = _FAILED_CALL_PATTERN.search(text)
    if match is None:
        return None
    classes = {cls.__name__: cls for cls in (CallError, GroupLostError, FarandoleError)}
    return classes[match[1]](match[2])


def text_for_other_ranks(error: Exception) -> str:
    """Return the text that tells the other ranks about an error of this rank."""
    return str(error) if isinstance(error, CallError) else f"{type(error).__name__}: {error}"
