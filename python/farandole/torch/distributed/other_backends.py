"""Groups with another backend for some devices, such as "cpu:gloo,cuda:farandole".

If the process group of a backend is written in Python, torch uses it as the whole group, and makes
no backends for the other devices. So our process group makes a second group of torch for the other
devices, and passes it the calls on tensors of these devices.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from farandole_torch_backend import BACKEND_NAME

_HELPER_CODE = c10d._new_process_group_helper.__code__
_NEW_GROUP_CODE = c10d._new_group_with_tag.__code__
# The newer names of some operations, each with the older name, which all versions of torch have.
_OLDER_NAMES = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}


class GroupSpec(NamedTuple):
    """What torch needs to make a group: the ranks of its members in the default group (empty for
    the default group itself), the rank of this process in the group, the group's size, the store,
    the group's name, and torch's timeout."""

    ranks: Sequence[int]
    rank: int
    size: int
    store: dist.Store
    name: str
    timeout: datetime.timedelta | None


def backends_of_unfinished_group() -> dict[str, str]:
    """Return the backend of each kind of device for the group that torch is making."""
    config = _local_variable(_HELPER_CODE, "backend_config")
    return {} if config is None else dict(config.get_device_backend_map())


def backends_of_new_group(backend: object) -> dict[str, str]:
    """Return the backend of each kind of device for the group of new_group(). Before torch 2.14,
    `backend` is None, because torch does not pass it."""
    backend = backend or _local_variable(_NEW_GROUP_CODE, "backend")
    if backend is None:
        return {}
    return dict(c10d.BackendConfig(dist.Backend(str(backend))).get_device_backend_map())


def _local_variable(code: CodeType, name: str) -> Any:
    """Return the local variable `name` of torch's function with this code object, or None if that
    function is not running."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame.f_locals.get(name) if frame.f_code is code else None


def make_torch_group(backends: Mapping[str, str], spec: GroupSpec) -> dist.ProcessGroup:
    """Make a group of torch with other backends. torch does not enter this group into its list of
    groups. So destroy_process_group() does not end the group."""
    backend_text = dist.Backend(",".join(f"{device}:{name}" for device, name in backends.items()))
    process_group, _ = c10d._new_process_group_helper(
        spec.size,
        spec.rank,
        list(spec.ranks),
        backend_text,
        spec.store,
        spec.name,
        timeout=spec.timeout or c10d._get_default_timeout(backend_text),
    )
    world = c10d._world
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        table.pop(process_group, None)
    for groups in world.tags_to_pg.values():
        if process_group in groups:
            groups.remove(process_group)
    torch._C._distributed_c10d._unregister_process_group(spec.name)
    return process_group


class OtherBackends:
    """The kinds of devices for which a group has another backend, and the group of torch that
    serves these devices."""

    def __init__(self, backends: Mapping[str, str], spec: GroupSpec) -> None:
        other_backends = {device: name for device, name in backends.items() if name != BACKEND_NAME}
        self.devices = [torch.device(device) for device in backends]
        self._device_types = frozenset(other_backends)
        self._group = make_torch_group(other_backends, spec._replace(name=f"{spec.name}.others"))

    def serves(self, device: Any) -> bool:
        return torch.device(device).type in self._device_types

    def backend(self, device: Any) -> Any:
        return self._group._get_backend(torch.device(device))

    def operation(self, name: str, tensors: Sequence[Any]) -> Any:
        """Return the operation of torch's group for these tensors, or None if the group does not
        serve their device."""
        first_tensor: Any = tensors
        while isinstance(first_tensor, (list, tuple)) and len(first_tensor) > 0:
            first_tensor = next(
                (item for item in first_tensor if not isinstance(item, list) or item), None
            )
        if (
            not isinstance(first_tensor, torch.Tensor)
            or first_tensor.device.type not in self._device_types
        ):
            return None
        found_operation = getattr(self._group, name, None)
        return found_operation or getattr(self._group, _OLDER_NAMES[name])

    def shutdown(self) -> None:
        shutdown = getattr(c10d, "_shutdown_backend", None)
        if shutdown is not None:
            shutdown(self._group)
