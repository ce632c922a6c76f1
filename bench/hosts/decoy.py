"""A program that strangers may connect to instead of a job: `decoy.py ADDRESS PORTS`.

It treats them as a job does: it keeps 64 connections for each port, closes the oldest one if there
are more, and closes a connection that has sent more than a byte at once. So a comparison with it
shows what strangers cost a job just because they use the same cores. It prints its endpoints.
"""

from __future__ import annotations

import argparse
import contextlib
import selectors
import socket
from collections import deque

CONNECTIONS_MAX = 64  # for each port, as ListenOptions::handshakes_max


def serve(listeners: list[socket.socket]) -> None:
    selector = selectors.DefaultSelector()
    for listener in listeners:
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ, deque[socket.socket]())
    while True:
        for key, _ in selector.select():
            if isinstance(key.data, deque):
                accept(selector, key.fileobj, key.data)  # type: ignore[arg-type]
            else:
                read(selector, key.fileobj)  # type: ignore[arg-type]


def accept(
    selector: selectors.BaseSelector, listener: socket.socket, accepted: deque[socket.socket]
) -> None:
    with contextlib.suppress(BlockingIOError):
        while True:
            one, _ = listener.accept()
            one.setblocking(False)
            selector.register(one, selectors.EVENT_READ)
            accepted.append(one)
            if len(accepted) > CONNECTIONS_MAX:
                close(selector, accepted.popleft())


def read(selector: selectors.BaseSelector, one: socket.socket) -> None:
    if one.fileno() < 0:  # closed since select() returned
        return
    try:
        keeps = len(one.recv(1 << 16)) == 1
    except OSError:
        keeps = False
    if not keeps:
        close(selector, one)


def close(selector: selectors.BaseSelector, one: socket.socket) -> None:
    if one.fileno() >= 0:
        selector.unregister(one)
        one.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address")
    parser.add_argument("ports", type=int)
    arguments = parser.parse_args()
    listeners = [socket.create_server((arguments.address, 0)) for _ in range(arguments.ports)]
    names = [f"{arguments.address}:{listener.getsockname()[1]}" for listener in listeners]
    print(*names, flush=True)
    serve(listeners)


if __name__ == "__main__":
    main()
