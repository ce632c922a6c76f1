"""The torch.distributed backend "farandole": `torch.distributed.init_process_group("farandole")`.

`import torch` registers the backend, because torch loads the entry point farandole_torch_backend.
Importing this package also registers it, for versions of torch that load no entry points.

- `process_group` has the operations, and `work` has the objects that they return;
- `tensor_lists` checks the tensors of a call, and `sparse` adds up sparse tensors;
- `rendezvous` lets the ranks find each other, under any launcher.
"""

from farandole_torch_backend import register

register()
