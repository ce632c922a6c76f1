"""The torch.distributed backend "farandole": `torch.distributed.init_process_group("farandole")`.

Importing this package registers the backend:

- `process_group` has the operations, and `work` has what they return;
- `rendezvous` lets the ranks find each other, under any launcher.
"""

from __future__ import annotations

import torch.distributed as dist

from farandole.torch.distributed import rendezvous
from farandole.torch.distributed.process_group import make_world

NAME = "farandole"


def register() -> None:
    """Register the backend with torch.distributed. A second call does nothing."""
    if not dist.is_available() or hasattr(dist.Backend, NAME.upper()):
        return
    dist.Backend.register_backend(NAME, make_world, extended_api=True, devices=["cpu"])
    rendezvous.register()


register()
