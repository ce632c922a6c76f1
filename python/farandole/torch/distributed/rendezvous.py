"""Let the ranks of torch.distributed find each other, under any launcher.

torch needs a store, a rank and a size. By default, torch takes its rank and size from RANK and
WORLD_SIZE, and rank 0 opens the store at MASTER_ADDR and MASTER_PORT; `farandole run` and torchrun
set these variables. With the init_method farandole://, rank and size come from the engine, and the
store is a file without a name in the memory of rank 0, so that no port is opened.

The engine's ranks find each other through the launcher of `farandole run`. Under other launchers,
they use a random text, the rendezvous ID, which rank 0 writes into torch's store. If only the
members make a group, they use such a text under every launcher. If this group is on several hosts,
its keys in the launcher's stores begin with the text.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from farandole import core, lifecycle
from farandole.errors import CallError
from farandole.objects import broadcast_object

Rendezvous = tuple[dist.Store, int, int]


def rendezvous_handler(url: str, **options: Any) -> Iterator[Rendezvous]:
    """Provide store, rank and size for the scheme farandole://."""
    lifecycle.check_has_state("init_process_group()")
    _init_if_needed(lifecycle.init)
    rank, size = lifecycle.rank(), lifecycle.size()
    if lifecycle.local_size() < size and lifecycle.is_elastic():
        raise CallError(
            "torch.distributed cannot be used in an elastic job over several hosts, because its "
            "store is in the memory of rank 0, which ranks on other hosts cannot open: use the "
            "calls of farandole.torch, such as DistributedOptimizer, instead"
        )
    if lifecycle.local_size() < size:
        raise CallError(
            "farandole:// keeps torch's store in the memory of rank 0, which ranks on other hosts "
            "cannot open: call init_process_group() without init_method, with RANK, WORLD_SIZE, "
            "MASTER_ADDR and MASTER_PORT in the environment; `farandole run` and torchrun set them"
        )
    path, prefix = broadcast_object(_shared.next_store() if rank == 0 else None, 0)
    _shared.has_own_store = True
    yield dist.PrefixStore(prefix, dist.FileStore(path, size)), rank, size
    raise CallError("a rendezvous can be used only once: call init_process_group() again")


class _SharedState:
    """The state that the process groups of torch.distributed in this process share."""

    # The engine, if torch.distributed has started it; None if the program has called init().
    engine: core.Engine | None = None
    group_count = 0  # the number of process groups that use the engine
    # The path of the file for all stores. The file is never closed, because another rank might
    # still write to it, and no other file may get the number of its descriptor.
    store_path = ""
    store_count = 0
    # torch's store of the last process group. With env://, rank 0 serves it. The store must outlive
    # the group: another rank may connect to the same store for its next group, before this rank has
    # made that group.
    last_store: dist.Store | None = None
    has_own_store = False  # whether farandole:// has provided the store of the last default group

    def next_store(self) -> tuple[str, str]:
        """Return the path by which the other ranks open the file, and the prefix of this store's
        keys."""
        if not self.store_path:
            self.store_path = f"/proc/{os.getpid()}/fd/{os.memfd_create('farandole-store')}"
        self.store_count += 1
        return self.store_path, f"{self.store_count}/"


_shared = _SharedState()


def _init_if_needed(init: Callable[[], None]) -> None:
    if not lifecycle.is_initialized():
        init()
        _shared.engine = lifecycle.engine()


def leave() -> None:
    """Undo one join(). The last leave() also leaves the job, unless the program called init()."""
    _shared.group_count -= 1
    if _shared.group_count > 0:
        return
    if lifecycle.is_initialized() and lifecycle.engine() is _shared.engine:
        lifecycle.shutdown()
    _shared.engine = None


def join(store: dist.Store, rank: int, size: int) -> None:
    """Join the job with torch's rank and size, if this process is not in a job yet."""
    if lifecycle.is_elastic() and not _shared.has_own_store:
        # With a store that farandole:// has not provided, the next group would wait for ranks that
        # have left the job.
        raise CallError(
            'in an elastic job, call init_process_group("farandole", '
            'init_method="farandole://"): RANK, WORLD_SIZE and MASTER_ADDR in the environment are '
            "those of the start"
        )
    if _has_our_launcher():
        _init_if_needed(lifecycle.init)
    else:
        _init_if_needed(lambda: _init_without_our_launcher(store, rank, size))
    if (lifecycle.rank(), lifecycle.size()) == (rank, size):
        _shared.group_count += 1
        _shared.last_store = store
        return
    raise CallError(
        f"this process is rank {rank} of {size} for torch.distributed, but rank "
        f"{lifecycle.rank()} of {lifecycle.size()} for farandole: start all ranks with one launcher"
    )


def start_engine_of_some_ranks(store: dist.Store, rank: int, size: int) -> core.Engine:
    """Return an engine for only the ranks that use this store; the engine of all ranks remains.
    `rank` is the number of this rank among these ranks."""
    rendezvous_id, remote_ranks = _agreed_rendezvous_id(store, rank, size)
    if not _has_our_launcher():
        _check_secret(remote_ranks)
    return lifecycle.start_engine_of_some_ranks(
        rendezvous_id, rank, size, on_one_host=not remote_ranks
    )


def _has_our_launcher() -> bool:
    return "FARANDOLE_RENDEZVOUS_DESCRIPTOR" in os.environ


def _init_without_our_launcher(store: dist.Store, rank: int, size: int) -> None:
    rendezvous_id, remote_ranks = _agreed_rendezvous_id(store, rank, size)
    _check_secret(remote_ranks)
    lifecycle.init_with_rendezvous_id(rendezvous_id, rank, size, on_one_host=not remote_ranks)


def _check_secret(remote_ranks: Sequence[int]) -> None:
    if remote_ranks and not os.environ.get("FARANDOLE_SECRET"):
        raise CallError(
            f"ranks {', '.join(map(str, remote_ranks))} are on another host, or in another network "
            "namespace, than rank 0, so the ranks need a secret: make a file with `farandole "
            "secret FILE`, which all hosts can read, and set FARANDOLE_SECRET=FILE for all ranks; "
            "or start the job with `farandole run`, or all ranks on one host"
        )


def _agreed_rendezvous_id(store: dist.Store, rank: int, size: int) -> tuple[str, list[int]]:
    """Return a secret random text, which is the same on all ranks, and the ranks that are not on
    the host of rank 0. Several process groups may use the same store one after another, so each use
    of the store gets a number."""
    use_number = store.add(f"farandole/uses/{rank}", 1)
    store.set(f"farandole/{use_number}/host/{rank}", _host_id())
    if rank == 0:
        store.set(f"farandole/{use_number}/text", secrets.token_hex(16))
    hosts = [store.get(f"farandole/{use_number}/host/{peer}").decode() for peer in range(size)]
    remote_ranks = [peer for peer in range(size) if hosts[peer] != hosts[0]]
    return store.get(f"farandole/{use_number}/text").decode(), remote_ranks


def _host_id() -> str:
    """Return a text that is the same on ranks with the same host and network namespace. Such ranks
    can connect by abstract Unix sockets."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot_id} {os.readlink('/proc/self/ns/net')}"
