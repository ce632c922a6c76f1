"""A server to which strangers connect instead of a job: `decoy.py ADDRESS PORTS`.

It handles connections as a job does. It keeps 64 connections for each port, and closes the oldest
connection if there are more. It also closes a connection that sends more than one byte at once.
While strangers connect to this server, they slow down a job only because they use the same cores.
So a measurement with this server shows how much shared cores cost a job. The server prints its
endpoints.
"""

from __future__ import annotations

import argparse
import contextlib
import selectors
import socket
from collections import deque

CONNECTIONS_MAX = 64  # for each port; equal to ListenOptions::handshakes_max


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
            connection, _ = listener.accept()
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_READ)
            accepted.append(connection)
            if len(accepted) > CONNECTIONS_MAX:
                close(selector, accepted.popleft())


def read(selector: selectors.BaseSelector, connection: socket.socket) -> None:
    if connection.fileno() < 0:  # an earlier event of the same select() closed it
        return
    try:
        stays_open = len(connection.recv(1 << 16)) == 1
    except OSError:
        stays_open = False
    if not stays_open:
        close(selector, connection)


def close(selector: selectors.BaseSelector, connection: socket.socket) -> None:
    if connection.fileno() >= 0:
        selector.unregister(connection)
        connection.close()


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
