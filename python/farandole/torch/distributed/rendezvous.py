"""Let the ranks of torch.distributed find each other, under any launcher.

torch needs a store, a rank and a size. By default it takes them from RANK, WORLD_SIZE, MASTER_ADDR
and MASTER_PORT, which `farandole run` and torchrun set, and rank 0 opens a store at that port. With
the init_method farandole://, rank and size come from the engine, and the store is a file without a
name in the memory of rank 0, so that no port is opened.

The engine's ranks find each other through the launcher of `farandole run`. Under other launchers,
they use a random text that rank 0 writes into torch's store. The ranks of a group that only they
make always use such a text: for a group on several hosts, it begins their keys in the launcher's
Stores.
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
    _join(lifecycle.init)
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


class _Shared:
    """What the process groups of torch.distributed in this process share."""

    # The engine, if torch.distributed has started it; None if the program has called init().
    engine: core.Engine | None = None
    groups = 0  # the number of process groups that use the engine
    # The path of the file for all stores. The file is never closed, because another rank might
    # still write to it, and no other file may get the number of its descriptor.
    path = ""
    stores = 0
    # torch's store of the last process group. With env://, rank 0 serves it. The store must outlive
    # the group, because another rank may already connect to it for the next group.
    served: dist.Store | None = None
    has_own_store = False  # whether farandole:// has provided the store of the last default group

    def next_store(self) -> tuple[str, str]:
        """Return the path by which the other ranks open the file, and the prefix of this store's
        keys."""
        if not self.path:
            self.path = f"/proc/{os.getpid()}/fd/{os.memfd_create('farandole-store')}"
        self.stores += 1
        return self.path, f"{self.stores}/"


_shared = _Shared()


def _join(init: Callable[[], None]) -> None:
    if not lifecycle.is_initialized():
        init()
        _shared.engine = lifecycle.engine()


def leave() -> None:
    """Undo one join(). The last call also leaves the job, unless the program itself joined it."""
    _shared.groups -= 1
    if _shared.groups > 0:
        return
    if lifecycle.is_initialized() and lifecycle.engine() is _shared.engine:
        lifecycle.shutdown()
    _shared.engine = None


def join(store: dist.Store, rank: int, size: int) -> None:
    """Join the job with torch's rank and size, if this process is not in a job yet."""
    if lifecycle.is_elastic() and not _shared.has_own_store:
        # Otherwise, the next group would wait for ranks that are not in the job any more.
        raise CallError(
            'in an elastic job, call init_process_group("farandole", '
            'init_method="farandole://"): RANK, WORLD_SIZE and MASTER_ADDR in the environment are '
            "those of the start"
        )
    if _has_our_launcher():
        _join(lifecycle.init)
    else:
        _join(lambda: _init_without_our_launcher(store, rank, size))
    if (lifecycle.rank(), lifecycle.size()) == (rank, size):
        _shared.groups += 1
        _shared.served = store
        return
    raise CallError(
        f"this process is rank {rank} of {size} for torch.distributed, but rank "
        f"{lifecycle.rank()} of {lifecycle.size()} for farandole: start all ranks with one launcher"
    )


def join_some_ranks(store: dist.Store, rank: int, size: int) -> core.Engine:
    """Return an engine of the ranks that use this store, beside the engine of all ranks. `rank`
    counts within the ranks of this store."""
    text, elsewhere = _agreed_rendezvous_id(store, rank, size)
    if not _has_our_launcher():
        _check_secret(elsewhere)
    return lifecycle.join_some_ranks(text, rank, size, on_one_host=not elsewhere)


def _has_our_launcher() -> bool:
    return "FARANDOLE_RENDEZVOUS_DESCRIPTOR" in os.environ


def _init_without_our_launcher(store: dist.Store, rank: int, size: int) -> None:
    text, elsewhere = _agreed_rendezvous_id(store, rank, size)
    _check_secret(elsewhere)
    lifecycle.init_with_rendezvous_id(text, rank, size, on_one_host=not elsewhere)


def _check_secret(elsewhere: Sequence[int]) -> None:
    if elsewhere and not os.environ.get("FARANDOLE_SECRET"):
        raise CallError(
            f"ranks {', '.join(map(str, elsewhere))} are on another host, or in another network "
            "namespace, than rank 0, so the ranks need a secret: make a file with `farandole "
            "secret FILE`, which all hosts can read, and set FARANDOLE_SECRET=FILE for all ranks; "
            "or start the job with `farandole run`, or all ranks on one host"
        )


def _agreed_rendezvous_id(store: dist.Store, rank: int, size: int) -> tuple[str, list[int]]:
    """Return a random text, the same on all ranks, that no other process knows, and the ranks that
    are not on the host of rank 0. Several process groups may use the same store one after another,
    so each use of the store gets a number."""
    use_number = store.add(f"farandole/uses/{rank}", 1)
    store.set(f"farandole/{use_number}/host/{rank}", _host())
    if rank == 0:
        store.set(f"farandole/{use_number}/text", secrets.token_hex(16))
    hosts = [store.get(f"farandole/{use_number}/host/{other}").decode() for other in range(size)]
    elsewhere = [other for other in range(size) if hosts[other] != hosts[0]]
    return store.get(f"farandole/{use_number}/text").decode(), elsewhere


def _host() -> str:
    """Return a text that is the same on ranks that share names of Unix sockets."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/net')}"
