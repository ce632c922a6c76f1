"""Test the progress messages of `./dev`."""

from __future__ import annotations

import threading

import pytest

from progress import heartbeat


def test_reports_until_the_work_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    threads_before = threading.active_count()
    three_messages = threading.Event()

    def record(text: str) -> None:
        messages.append(text)
        if len(messages) == 3:
            three_messages.set()

    monkeypatch.setattr("progress.say", record)
    with heartbeat("installing", interval_s=0.001):
        assert three_messages.wait(60)
    assert messages[0] == "installing"
    assert all(text.startswith("still installing (") for text in messages[1:])
    assert threading.active_count() == threads_before


def test_a_failure_passes_through_and_ends_the_heartbeat() -> None:
    threads_before = threading.active_count()
    with pytest.raises(SystemExit), heartbeat("installing"):
        raise SystemExit(1)
    assert threading.active_count() == threads_before
