"""Print a table at the end of the run: the outcome of each check on each version of torch."""

from __future__ import annotations

import pytest

WIDTH = 12


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    rows = [
        dict(report.user_properties)
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        if dict(report.user_properties).get("torch")
    ]
    if not rows:
        return
    checks = [name for name in max(rows, key=len) if name != "torch"]
    terminalreporter.section("what works on each version of torch")
    for row in [{"torch": "torch", **{name: name for name in checks}}, *rows]:
        cells = [row.get(name, "not run") for name in ("torch", *checks)]
        terminalreporter.line("".join(f"{cell:<{WIDTH}}" for cell in cells).rstrip())
