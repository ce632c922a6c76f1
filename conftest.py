"""What all tests need: signals that reach the programs that the tests start.

A shell without job control starts background commands with SIGINT and SIGQUIT ignored, and nohup
ignores SIGHUP. Programs inherit that, so tests that send these signals would wait for ever.
"""

from __future__ import annotations

import signal

for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        # After exec, a signal with a handler has its default action again.
        signal.signal(number, lambda *_: None)
