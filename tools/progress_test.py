"""Test the progress messages of `./dev`."""

from __future__ import annotations

import threading

import pytest

from progress import heartbeat


def test_speaks_until_the_work_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    before = threading.active_count()
    thrice = threading.Event()

    def record(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            thrice.set()

    monkeypatch.setattr("progress.say", record)
    with heartbeat("installing", interval_s=0.001):
        assert thrice.wait(60)
    assert said[0] == "installing"
    assert all(text.startswith("still installing (") for text in said[1:])
    assert threading.active_count() == before


def test_a_failure_passes_through_and_ends_it() -> None:
    before = threading.active_count()
    with pytest.raises(SystemExit), heartbeat("installing"):
        raise SystemExit(1)
    assert threading.active_count() == before
