"""The workers of a job as an HTML table, for notebooks."""

from __future__ import annotations

import html
import reprlib
from collections.abc import Iterable

from farandole.jobs.launched_worker import Worker

_TEXT_CHARACTERS_MAX = 120
_HEADINGS = ("rank", "host", "pid", "state", "exit code", "result or error")


def html_table(caption: str, workers: Iterable[Worker]) -> str:
    """Return a table with one row for each worker. All text in it is escaped."""
    heading = "".join(f"<th>{text}</th>" for text in _HEADINGS)
    rows = "".join(_table_row(worker) for worker in workers)
    return (
        f"<table><caption>{html.escape(caption)}</caption>"
        f"<thead><tr>{heading}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _table_row(worker: Worker) -> str:
    # _outcome_text() comes first, because it changes worker.state if the result cannot be
    # unpickled.
    outcome = _outcome_text(worker)
    code = "" if worker.exit_code is None else worker.exit_code
    cells = (worker.rank, worker.address, worker.pid or "", worker.state, code, outcome)
    return "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>"


def _outcome_text(worker: Worker) -> str:
    """Return the result or the first line of the error, as text; "" while the worker runs."""
    result, failure = worker.result, worker.failure
    if failure is None:
        if worker.state != "done":
            return ""
        shortener = reprlib.Repr()
        shortener.maxother = shortener.maxstring = _TEXT_CHARACTERS_MAX
        try:
            text = shortener.repr(result)
        except Exception as error:  # the other rows must still be shown
            text = f"a {type(result).__name__}, whose repr() raised a {type(error).__name__}"
    else:
        text = str(failure).partition("\n")[0]
    line = " ".join(text.split())
    if len(line) > _TEXT_CHARACTERS_MAX:
        line = line[: _TEXT_CHARACTERS_MAX - 1] + "…"
    return line
