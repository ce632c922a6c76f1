"""Send whole Python objects instead of tensors, for every framework.

Objects are pickled (by cloudpickle), and unpickling runs code that the sender chooses. Only members
of one job send objects to each other, and the launcher decides who is a member.
"""

from __future__ import annotations

import ctypes
from typing import Any, TypeVar, overload

import cloudpickle

from farandole import arguments, calls, core, lifecycle
from farandole.errors import CallError
from farandole.group import Group, global_process_set
from farandole.handle import PreparedCall

Item = TypeVar("Item")

# The first byte of a message says whether an object or the text of an error follows.
_OBJECT, _FAILURE = b"o", b"f"


# For type checkers: root_rank's object has the type of this rank's object, unless that is None.
@overload
def broadcast_object(
    obj: None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Any: ...
@overload
def broadcast_object(
    obj: Item,
    root_rank: int = 0,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Item: ...
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: Group = global_process_set,
) -> Any:
    """Return the object of root_rank on every member.

    The object is pickled and travels only between the members of this job, which the launcher has
    started. Unpickling it runs code that root_rank's object chooses.

    Args:
        obj: The object; used on root_rank only.
        root_rank: A rank of the world, which must be a member.
        name: The name of the call, the same on all members.
        process_set: The group.

    Example::

        settings = hvd.broadcast_object({"seed": 3} if hvd.rank() == 0 else None, root_rank=0)
    """
    is_root = lifecycle.rank() == arguments.checked_rank(root_rank)
    data = _pack(obj) if is_root else b""
    base_name = arguments.call_name(name)
    length = bytearray(len(data).to_bytes(8, "little"))
    _broadcast(length, root_rank, base_name and f"{base_name}.length", process_set)
    memory = bytearray(data) if is_root else bytearray(int.from_bytes(length, "little"))
    _broadcast(memory, root_rank, base_name and f"{base_name}.object", process_set)
    return obj if is_root and data[:1] == _OBJECT else _unpack(memory, f"rank {root_rank}")


def allgather_object(
    obj: Item, name: str | None = None, process_set: Group = global_process_set
) -> list[Item]:
    """Return the list of the members' objects, in the order of their ranks.

    A member that waits in join() has no object, so the list is shorter.

    The objects are pickled and travel only between the members of this job, which the launcher has
    started. Unpickling them runs code that the other ranks' objects choose.

    Args:
        obj: The object of this rank.
        name: The name of the call, the same on all members.
        process_set: The group.
    """
    data = bytearray(_pack(obj))
    group = arguments.group_number(process_set)
    view = _view_of(data, (len(data),), writable=False)
    call = core.allgather(arguments.call_name(name), group, view)

    def finish(engine: core.Engine, number: int) -> tuple[memoryview, list[int]]:
        array, lengths = engine.peek_received(number, view)
        return memoryview(array), lengths  # type: ignore[arg-type]

    received_bytes, lengths = calls.start(PreparedCall(call, data, finish), blocking=True).wait()
    objects, begin = [], 0
    for rank, length in zip(process_set.ranks or [], lengths, strict=True):
        if length == 0:  # the rank has called join(): objects have at least one byte
            continue
        objects.append(_unpack(received_bytes[begin : begin + length], f"rank {rank}"))
        begin += length
    return objects


def _pack(obj: Any) -> bytes:
    """Pickle an object. If that fails, return a message with the error, because the other ranks
    wait for a message."""
    try:
        return _OBJECT + cloudpickle.dumps(obj)
    except Exception as error:
        return _FAILURE + f"{type(error).__name__}: {error}".encode(errors="replace")


def _unpack(data: bytearray | memoryview, sender: str) -> Any:
    message_type, content = bytes(data[:1]), data[1:]
    if message_type == _OBJECT:
        return cloudpickle.loads(content)
    raise CallError(
        f"the object of {sender} cannot be sent, because it cannot be pickled: "
        f"{bytes(content).decode()}"
    )


def _broadcast(memory: bytearray, root_rank: int, name: str, process_set: Group) -> None:
    group = arguments.group_number(process_set)
    view = _view_of(memory, (len(memory),), writable=True)
    call = core.broadcast(name, group, view, root_rank)
    calls.run(call, memory)


def _view_of(memory: bytearray, shape: tuple[int, ...], writable: bool) -> core.BufferView:
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) if memory else 0
    return core.BufferView(core.dtypes["uint8"], shape, address, address if writable else 0)
