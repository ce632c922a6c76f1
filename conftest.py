"""Let signals reach the programs that the tests start.

A shell without job control starts background commands with SIGINT and SIGQUIT ignored, and nohup
ignores SIGHUP. Programs inherit ignored signals, so tests that send these signals would wait for
ever.
"""

from __future__ import annotations

import signal

for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        # A program that the tests start gets the default action back, because exec resets handlers.
        signal.signal(number, lambda *_: None)
