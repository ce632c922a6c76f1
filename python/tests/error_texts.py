"""Compare each error text of the package and of the bindings in full, in a job of two workers.

(The tests in src/engine compare the engine's texts.) Both workers make all calls. Together, the
calls must reach every statement of the package that raises an error.
"""

from __future__ import annotations

import ast
import copy
import os
import resource
import shutil
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import elastic_errors
import jax_errors
import keras_errors
import notice_errors
import process_group_errors
import tensorflow_errors
import torch
import torch_errors

import farandole
import farandole.torch as hvd
from farandole import core, lifecycle, operations
from farandole.jobs import function_worker
from farandole.launcher_command import launcher_command
from farandole.torch.optimizer import check_strides

Case = tuple[Callable[[], object], str]

FOLDER = Path(farandole.__file__).parent
DTYPES = ", ".join(core.dtypes)
NOT_REGISTERED_ERROR = (
    "ProcessSet(process_set_id=None, ranks=[0]) is not registered: on all ranks, pass it to "
    "init(process_sets=[...]) or add_process_set() before you use it, and remove it only afterwards"
)
NOT_INITIALIZED_ERROR = "farandole is not initialized: call init() first"
IN_FLIGHT_ERROR = (
    " was called after backward(), while gradients are in flight: call step() or synchronize() "
    "before"
)
WRONG_PARAMS_ERROR = "params must be model.state_dict() or model.named_parameters(); got a "
WRONG_SPLITS_ERROR = (
    "splits must be a list or tensor of whole numbers, the number of rows for each member; got "
)


def locations_of_errors() -> set[tuple[str, int]]:
    """Return the file and line of every statement in which the package creates an error."""
    statements = [
        (str(path.relative_to(FOLDER)), node)
        for path in FOLDER.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.Raise, ast.Assign))
    ]
    return {(file, node.lineno) for file, node in statements if creates_error(node)}


def creates_error(statement: ast.stmt) -> bool:
    called_functions = [node.func for node in ast.walk(statement) if isinstance(node, ast.Call)]
    names = [name.id for name in called_functions if isinstance(name, ast.Name)]
    # Ignore AttributeError, which a module's __getattr__ must raise for an unknown attribute.
    # Ignore ImportError, too: test_a_torch_that_is_too_old_is_rejected checks its text.
    ignored_errors = ("AttributeError", "ImportError")
    return any(name.endswith("Error") and name not in ignored_errors for name in names)


SECOND_PASS_ERROR = (
    "a gradient was computed more than 1 times before step(). For several backward passes in one "
    "step, give backward_passes_per_step, or run all but the last within `with "
    "optimizer.no_sync():`. If a pass only goes through this model to train another one, as in a "
    "GAN, run it within no_sync() of this optimizer, or call model.requires_grad_(False) before "
    "it. To skip a step when some rank lacks gradients, call synchronize() first"
)


class GradientDescent(torch.optim.Optimizer):
    """A minimal optimizer, whose only option is the learning rate."""

    def __init__(self, parameters: Iterator[torch.nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(group["lr"] * parameter.grad)


class ErrorTexts:
    def __init__(self) -> None:
        self.visited: set[tuple[str, int]] = set()

    def trace(self, frame: FrameType, *_: object) -> Any:
        path = Path(frame.f_code.co_filename)
        if not path.is_relative_to(FOLDER):
            return None
        self.visited.add((str(path.relative_to(FOLDER)), frame.f_lineno))
        return self.trace

    def expect(self, cases: Iterator[Case]) -> None:
        for call, text in cases:
            sys.settrace(self.trace)
            try:
                call()
            except farandole.FarandoleError as error:
                actual = str(error)
            else:
                actual = "no error"
            finally:
                sys.settrace(None)
            assert actual == text, f"\n{actual}\ninstead of\n{text}"

    def check_texts(self) -> None:
        self.expect(self.outside_job_cases())
        hvd.init()
        for cases in (
            self.group_cases,
            self.call_cases,
            self.tensor_cases,
            self.sparse_tensor_cases,
            self.batch_norm_cases,
        ):
            self.expect(cases())
        for cases in (
            self.different_parameter_cases,
            self.object_cases,
            self.state_cases,
            jax_errors.cases,
        ):
            self.expect(cases())
        for cases in (tensorflow_errors.cases, keras_errors.cases, elastic_errors.cases):
            self.expect(cases())
        self.expect(elastic_errors.job_cases())
        self.expect(process_group_errors.cases())
        for cases in (self.parameter_cases, self.optimizer_cases, self.optimizer_option_cases):
            self.expect(cases())
        for cases in (
            self.different_optimizer_cases,
            self.gradients_in_flight_cases,
            torch_errors.cases,
            self.gradient_cases,
            self.memory_cases,
            self.shutdown_cases,
        ):
            self.expect(cases())
        hvd.init()
        locations = locations_of_errors()
        visited = set().union(*hvd.allgather_object(self.visited & locations))
        assert len(locations) > 30
        assert locations == visited, f"no call reaches {sorted(locations - visited)}"

    def outside_job_cases(self) -> Iterator[Case]:
        group = hvd.ProcessSet([0])
        yield hvd.rank, NOT_INITIALIZED_ERROR
        yield lambda: hvd.allreduce(torch.ones(1)), NOT_INITIALIZED_ERROR
        yield hvd.barrier, NOT_INITIALIZED_ERROR
        yield lambda: hvd.add_process_set([0]), NOT_INITIALIZED_ERROR
        not_a_list = (
            "a ProcessSet needs a list of ranks of the world (whole numbers), not an MPI "
            "communicator; got "
        )
        yield lambda: hvd.ProcessSet(3), not_a_list + "3"
        yield lambda: hvd.ProcessSet("01"), not_a_list + "'01'"
        yield lambda: hvd.ProcessSet([0.7, "1"]), not_a_list + "[0.7, '1']"
        yield lambda: hvd.ProcessSet([]), "a ProcessSet needs one rank or more, each once; got []"
        yield (
            lambda: hvd.ProcessSet([1, 1]),
            "a ProcessSet needs one rank or more, each once; got [1, 1]",
        )
        for value in ([[0]], "static", group):
            yield (
                lambda value=value: hvd.init(process_sets=value),
                f'process_sets must be a list of ProcessSet objects, or "dynamic"; got {value!r}',
            )
        yield lambda: hvd.start_timeline(3), "file_path must be a path; got 3"
        zero_byte_error = "file_path has a zero byte in it; got 'a\\x00b'"
        yield lambda: hvd.start_timeline("a\0b"), zero_byte_error
        yield from notice_errors.cases()
        yield from self.job_cases()
        lifecycle._process.is_child_of_member = True
        yield (
            hvd.init,
            "init() was called in a forked child of a member; start a new process",
        )
        lifecycle._process.is_child_of_member = False

    def job_cases(self) -> Iterator[Case]:
        run, launch = farandole.run, farandole.launch_workers
        yield lambda: run(3), "expected a function; got 3"
        for args in (3, "ab"):
            text = f"args must be a tuple or a list; got {args!r}"
            yield lambda args=args: run(int, args), text
            yield lambda args=args: launch(1, "train.py", args), text
        yield lambda: run(int, (), 3), "kwargs must be a dictionary; got 3"
        for n in (0, "two", 1.0):
            text = f"n, the number of workers, must be a whole number, 1 or more; got {n!r}"
            yield lambda n=n: run(int, n=n), text
        yield (
            lambda: run(int, hosts=3),
            "hosts must be a string such as 'host1:4,host2:4'; got 3",
        )
        yield (
            lambda: run(int, ssh_port=22),
            "ssh_port is given, but no hosts; give hosts or hostfile, too",
        )
        yield (
            lambda: run(int, hosts="hen:two"),
            'no worker could be started: farandole run: -H, entry 1: "hen:two": the number of '
            'slots is "two"; it must be a whole number from 1 to 65536\n'
            "See `farandole run --help`.",
        )
        yield (
            lambda: run(int, env={"A": 1}),
            "env must map names of variables to text; got {'A': 1}",
        )
        yield (
            lambda: run(int, ((i for i in ()),)),
            "the function and its arguments cannot be sent to the workers, because they cannot be "
            "pickled: TypeError: cannot pickle 'generator' object",
        )
        yield (
            lambda: launch(1, "train.py", (), {"epochs": 3}),
            "kwargs are for functions; give a script args instead; got {'epochs': 3}",
        )
        yield (
            lambda: launch(1, "no/script.py"),
            "there is no script 'no/script.py'; give a program and its arguments as a list",
        )
        for target in (3, [], ["sleep", 3]):
            yield (
                lambda target=target: launch(1, target),
                "target must be a function, the path of a Python script, or a list of words, such "
                f"as ['sh', '-c', 'date']; got {target!r}",
            )
        yield lambda: run(int, prefix="\0"), "cannot start the launcher: embedded null byte"
        yield (
            lambda: function_worker.packed_result(i for i in ()),
            f"the result of rank {os.environ['FARANDOLE_RANK']}, of the type generator, cannot be "
            "pickled: TypeError: cannot pickle 'generator' object",
        )
        yield (
            self.run_without_a_launcher,
            "the command `farandole` is neither in the folder of this Python nor in PATH",
        )
        yield (
            self.run_without_a_python,
            "pass the path of a Python as executable; this process does not know its own",
        )
        yield from self.worker_cases(launch(1, ["true"]))

    def worker_cases(self, workers: Any) -> Iterator[Case]:
        for call in (farandole.await_workers, farandole.stop_workers):
            yield (
                lambda call=call: call([3]),
                "workers must be what launch_workers() has returned; got [3]",
            )
        for seconds in (-1, "1"):
            yield (
                lambda seconds=seconds: farandole.await_workers(workers, seconds),
                f"timeout must be a number of seconds from 0 on; got {seconds!r}",
            )
        yield (
            lambda: farandole.stop_workers(workers, 31),
            "grace_time must be a number of seconds from 0 to 30; got 31",
        )
        farandole.stop_workers(workers)
        workers._job._owner = 0
        yield (
            lambda: farandole.stop_workers(workers),
            "these workers belong to the parent of this forked child; call this in the parent",
        )

    def run_without_a_launcher(self) -> None:
        original_which, shutil.which = shutil.which, lambda *_, **__: None
        try:
            launcher_command()
        finally:
            shutil.which = original_which

    def run_without_a_python(self) -> None:
        executable, sys.executable = sys.executable, ""
        try:
            farandole.run(int)
        finally:
            sys.executable = executable

    def group_cases(self) -> Iterator[Case]:
        group, tensor = hvd.ProcessSet([0]), torch.ones(2)
        yield lambda: hvd.allreduce(tensor, process_set=group), NOT_REGISTERED_ERROR
        for value in ([0], [1, 1], "all"):
            yield (
                lambda value=value: hvd.init(value),
                f"init() joins the whole job, of size 2, but comm is {value!r}: leave it out, and "
                "give process_sets=[ProcessSet([...])] for calls among some ranks, or start a "
                "smaller job",
            )
        yield (
            lambda: hvd.init(process_sets=[group]),
            "init() was called again with ProcessSet(process_set_id=None, ranks=[0]), which is not "
            "registered: use add_process_set(), or call shutdown() in between",
        )
        for call in (
            lambda: hvd.allreduce(tensor, process_set=None),
            lambda: hvd.barrier(None),
            lambda: hvd.remove_process_set(None),
            lambda: hvd.reducescatter(tensor, process_set=None),
            lambda: hvd.allgather_object(1, process_set=None),
        ):
            yield call, "process_set must be a ProcessSet; got None"
        hvd.add_process_set(group)
        if hvd.rank() == 1:
            for call in (group.rank, lambda: hvd.reducescatter(tensor, process_set=group)):
                yield (
                    call,
                    "rank 1 is not a member of ProcessSet(process_set_id=1, ranks=[0]); only "
                    "members may use it",
                )
        hvd.remove_process_set(group)

    def call_cases(self) -> Iterator[Case]:
        tensor = torch.ones(2)
        yield (
            lambda: hvd.allreduce(tensor, name=3),
            "name must be a string, the same on all ranks; got 3",
        )
        for op in ("sum", 7, True):
            known_ops = "Average (0), Sum (1), Adasum (2), Min (3), Max (4), Product (5)"
            yield (
                lambda op=op: hvd.allreduce(tensor, op=op),
                f"op must be one of {known_ops}, AverageOfPresent (6); got {op!r}",
            )
        yield (
            lambda: hvd.allreduce(tensor, True, op=hvd.Sum),
            "give either op, or average (the older argument), not both; got <ReduceOp.Sum: 1> and "
            "average=True",
        )
        yield (
            lambda: hvd.allreduce(tensor, prescale_factor="two"),
            "prescale_factor and postscale_factor must be numbers; got 'two'",
        )
        yield (
            lambda: hvd.broadcast(tensor, "0"),
            "root_rank must be a rank of the world; got '0'",
        )
        for splits in ([], [1.5, 0.5], 3, "ab"):
            yield lambda s=splits: hvd.alltoall(tensor, s), f"{WRONG_SPLITS_ERROR}{splits!r}"
        yield (
            lambda: hvd.grouped_alltoall([tensor, tensor], [[1, 1]]),
            "splits of a grouped call must be a list with the splits of each of 2 tensors; got "
            "[[1, 1]]",
        )
        yield (
            lambda: hvd.grouped_allreduce([]),
            "a grouped call needs at least one tensor; the list is empty",
        )
        yield (
            lambda: hvd.grouped_broadcast_(tensor, 0),
            "a grouped call needs a list of tensors; got a Tensor",
        )
        for call, wrong_handle in ((hvd.synchronize, None), (hvd.poll, 12345)):
            yield (
                lambda call=call, wrong_handle=wrong_handle: call(wrong_handle),
                "expected a handle, which the calls that end in _async return, or its number, "
                f"int(handle), before the result was taken; got {wrong_handle}",
            )
        yield (
            lambda: copy.copy(hvd.allreduce_async(tensor, name="copied")),
            "a handle cannot be copied or sent elsewhere: wait for it where it was made",
        )
        yield (
            lambda: hvd.allreduce(tensor, compression="fp16"),
            "compression must be Compression.none, .fp16, .bf16 or a Compressor of your own; got "
            "'fp16'",
        )

    def tensor_cases(self) -> Iterator[Case]:
        yield lambda: hvd.allreduce([1.0]), "a torch.Tensor is needed, not a list"
        yield (
            lambda: hvd.allreduce(torch.ones(2, device="meta")),
            "the tensor is on meta, and its values cannot be copied to host memory: use another "
            "device",
        )
        yield (
            lambda: hvd.allreduce(torch.ones(2, 2).to_sparse()),
            "the tensor's layout is torch.sparse_coo: use sparse_allreduce_async(), or "
            "tensor.to_dense() on all ranks",
        )
        yield (
            lambda: hvd.allgather(torch.ones(2, dtype=torch.complex64)),
            f"torch.complex64 cannot be reduced or sent; these can: {DTYPES}",
        )
        yield (
            lambda: hvd.allreduce_(torch.ones(1).expand(3)),
            "an expanded tensor has several elements in one place and cannot take a result: use "
            "tensor.clone()",
        )
        tensor = torch.ones(4)
        yield (
            lambda: hvd.grouped_allreduce_([tensor[2:], torch.ones(2), tensor]),
            "tensors 0 and 2 of the batch overlap in memory, so one result would overwrite the "
            "other: give each tensor once, or use tensor.clone()",
        )

    def sparse_tensor_cases(self) -> Iterator[Case]:
        tensor = torch.ones(2, 3 + hvd.rank()).to_sparse()
        yield (
            lambda: hvd.sparse_allreduce_async(tensor, "t", hvd.Max),
            "a sparse allreduce needs the op Sum, Average or AverageOfPresent; got Max: convert "
            "the tensor to a dense one (an optimizer does that with sparse_as_dense=True)",
        )
        for value, kind in ((torch.ones(2), "torch.strided"), ([1], "list")):
            yield (
                lambda value=value: hvd.sparse_allreduce_async(value, "t", hvd.Sum),
                "sparse_allreduce_async() needs a tensor of the layout torch.sparse_coo; got "
                f"{kind}: use allreduce_async()",
            )
        yield (
            hvd.sparse_allreduce_async(tensor, "t", hvd.Sum),
            "the sparse tensors `t` have different sizes on the ranks: [[2, 3], [2, 4]], in the "
            "order of the ranks; all ranks must give the same size",
        )

    def batch_norm_cases(self) -> Iterator[Case]:
        layer = hvd.SyncBatchNorm(3)
        yield (
            lambda: layer(torch.ones(2, 4)),
            "SyncBatchNorm(3) needs an input of the shape (N, 3, ...); got [2, 4]",
        )
        yield (
            lambda: layer(torch.ones(hvd.rank(), 3)),
            "SyncBatchNorm needs more than one value of each channel in training; all ranks "
            "together have 1",
        )
        lazy_model = torch.nn.Sequential(torch.nn.LazyBatchNorm1d())
        yield (
            lambda: hvd.SyncBatchNorm.convert_sync_batchnorm(lazy_model),
            "the layer '0' is a LazyBatchNorm1d without parameters: run the model once on a batch "
            "before convert_sync_batchnorm()",
        )

    def different_parameter_cases(self) -> Iterator[Case]:
        weight = torch.nn.Parameter(torch.ones(2 + hvd.rank()))
        wrapped_optimizer = torch.optim.SGD([weight], lr=0.1)
        optimizer = hvd.DistributedOptimizer(wrapped_optimizer, [("w", weight)])
        yield (
            lambda: (weight.sum().backward(), optimizer.step()),
            "the optimizers of the ranks do not have the same parameters (by name, or without "
            "named_parameters by their order, counted from 0):\n"
            "  rank 0   number 0 of 1: `w` (float32 [2])\n"
            "  rank 1   number 0 of 1: `w` (float32 [3])\n"
            "Build the same model on all ranks, with the same groups if there are any, and give "
            "named_parameters=model.named_parameters(). If there are several optimizers, all ranks "
            "must use them in the same order",
        )

    def object_cases(self) -> Iterator[Case]:
        generator = (i for i in ())
        cause = "because it cannot be pickled: TypeError: cannot pickle 'generator' object"
        yield (
            lambda: hvd.broadcast_object(generator, 1),
            f"the object of rank 1 cannot be sent, {cause}",
        )
        yield (
            lambda: hvd.allgather_object(generator if hvd.rank() == 1 else 1),
            f"the object of rank 1 cannot be sent, {cause}",
        )

    def state_cases(self) -> Iterator[Case]:
        model = torch.nn.Linear(2, 2)
        for argument in (model, torch.nn.Sequential(model), torch.ones(2), 3):
            yield (
                lambda argument=argument: hvd.broadcast_parameters(argument, 0),
                f"{WRONG_PARAMS_ERROR}{type(argument).__name__}",
            )
        yield (
            lambda: hvd.broadcast_parameters({"epoch": 3}, 0),
            "params has 'epoch' of the type int, but only tensors can be sent: leave it out, and "
            "use broadcast_object() for it",
        )
        optimizer = torch.optim.LBFGS(model.parameters())
        yield (
            lambda: hvd.broadcast_optimizer_state(optimizer, 0),
            "the optimizer state of rank 0 cannot be sent: the history of LBFGS belongs to one "
            "closure; let each rank begin with a new optimizer",
        )
        yield (
            lambda: hvd.broadcast_optimizer_state([], 1),  # type: ignore[arg-type]
            "the optimizer state of rank 1 cannot be sent: optimizer must be a "
            "torch.optim.Optimizer; got a list",
        )
        unpicklable = torch.optim.SGD(model.parameters(), lr=0.1)
        unpicklable.param_groups[0]["lr"] = threading.Lock()
        yield (
            lambda: hvd.broadcast_optimizer_state(unpicklable, 1),
            "the optimizer state of rank 1 cannot be sent: TypeError: cannot pickle "
            "'_thread.lock' object",
        )
        value = [] if hvd.rank() else torch.optim.SGD(model.parameters(), lr=0.1)
        yield (
            lambda: hvd.broadcast_optimizer_state(value, 0),  # type: ignore[arg-type]
            "not all ranks could load the optimizer state of rank 0:\n"
            "  rank 1   optimizer must be a torch.optim.Optimizer; got a list",
        )

    def parameter_cases(self) -> Iterator[Case]:
        tensor = torch.full((2,), float(hvd.rank()))
        yield (
            lambda: hvd.check_parameters({"a": tensor}),
            "the parameters are not the same on all ranks: 1 of 1 differs, `a` (float32 [2])\n"
            "  rank 0   digest c804ce198ec337e3\n"
            "  rank 1   digest 0f9fec7a06ff3471\n"
            "  the values of an element are up to 1 apart\n"
            "Give all ranks the same values: broadcast_parameters(model.state_dict(), root_rank=0) "
            "after the model is built and after a checkpoint is loaded",
        )
        prefix = "the parameters cannot be compared: ranks 0, 1 cannot read them\n  ranks 0, 1   "
        for value in (torch.nn.Linear(2, 2), tensor, 3):
            yield (
                lambda value=value: hvd.check_parameters(value),
                f"{prefix}params must be model.named_parameters(), model.state_dict() or a list "
                f"of tensors; it is of the type {type(value).__name__}",
            )
        yield (
            lambda: hvd.check_parameters([("a", tensor), ("a", tensor)]),
            f"{prefix}params has the name `a` twice; give each tensor its own",
        )
        yield (
            lambda: hvd.check_parameters({"epoch": 3}),
            f"{prefix}params has `epoch` of the type int, but only tensors can be compared: leave "
            "it out",
        )
        yield (
            lambda: hvd.check_parameters([torch.ones(2, 2).to_sparse()]),
            f"{prefix}`0` is of the layout torch.sparse_coo, and has no bytes to compare: leave "
            "it out",
        )

    def optimizer_cases(self) -> Iterator[Case]:
        torch.manual_seed(3)
        model = torch.nn.Linear(3, 2)
        sgd, wrap = torch.optim.SGD(model.parameters(), lr=0.1), hvd.DistributedOptimizer
        pairs = list(model.named_parameters())
        yield lambda: wrap(model), "optimizer must be a torch.optim.Optimizer; got a Linear"
        yield (
            lambda: wrap(wrap(sgd)),
            "optimizer is a DistributedOptimizer already: use it as it is",
        )
        yield (
            lambda: wrap(sgd, model.parameters()),
            "named_parameters must hold (name, parameter) pairs, such as model.named_parameters()",
        )
        yield (
            lambda: wrap(sgd, pairs + pairs),
            "named_parameters has names that occur twice: bias, weight; give each parameter a name "
            "of its own",
        )
        yield (
            lambda: wrap(sgd, pairs[:1]),
            "named_parameters lacks 1 parameters of the optimizer, of shape (2,); give the names "
            "of all",
        )
        for passes in (0, "2", 1.5):
            yield (
                lambda passes=passes: wrap(sgd, backward_passes_per_step=passes),
                f"backward_passes_per_step must be a whole number above 0; got {passes!r}",
            )
        yield (
            lambda: wrap(sgd, process_set=None),
            "process_set must be a ProcessSet; got None",
        )
        optimizer = wrap(sgd)
        model(torch.ones(3)).sum().backward()
        yield (
            model(torch.ones(3)).sum().backward,
            SECOND_PASS_ERROR,
        )
        model.weight.grad.zero_()
        yield (
            optimizer.step,
            "gradients were changed between backward() and step(), but those were not combined "
            "yet: this rank had not computed all of them in backward(), or they were written to "
            "while backward() was running. To clip or scale gradients call optimizer.synchronize() "
            "first, and step() within `with optimizer.skip_synchronize():`",
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model(torch.ones(3)).sum().backward()
            optimizer.synchronize()
            optimizer.step()
        assert [str(warning.message) for warning in caught] == [
            "optimizer.step() called without optimizer.skip_synchronize() context after "
            "optimizer.synchronize(); the gradients are not combined a second time"
        ]
        model.double()
        yield (
            model(torch.ones(3).double()).sum().backward,
            "a parameter is torch.float64 [2] on cpu now, and was torch.float32 [2] on cpu in the "
            "first step of its optimizer: make a new DistributedOptimizer after such a change",
        )
        newer_optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        yield (
            optimizer.step,
            "a DistributedOptimizer that was made later has parameters of this one, and combines "
            "their gradients: use that one, or make a new one for these parameters",
        )
        newer_optimizer.zero_grad()

    def different_optimizer_cases(self) -> Iterator[Case]:
        rank = hvd.rank()
        layer = torch.nn.Linear(2, 1)
        torch.nn.init.ones_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        optimizer = hvd.DistributedOptimizer(GradientDescent(layer.parameters(), 1 + 0.5 * rank))
        layer(torch.ones(2)).backward()
        yield (
            optimizer.step,
            "the parameters are not the same on all ranks after step 1 of the optimizer: 2 of 2 "
            "differ, the first is `param_groups[0]['params'][0]` (float32 [1, 2])\n"
            "  rank 0   digest c804ce198ec337e3\n  rank 1   digest d6f8cf27cce6a5c5\n"
            "  the values of an element are up to 0.5 apart\n"
            "Give all ranks the same values: broadcast_parameters(model.state_dict(), "
            "root_rank=0) after the model is built and after a checkpoint is loaded\n"
            "The optimizers differ, which may be the cause:\n"
            "  rank 0   GradientDescent(lr=1.0)\n  rank 1   GradientDescent(lr=1.5)",
        )
        optimizer.zero_grad()
        layer.bias.requires_grad_(rank == 0)
        yield (
            layer(torch.ones(2)).backward,
            "allreduce `gradients.2.0` was submitted differently on different ranks: the shape "
            "differs\n"
            "           dtype     shape\n"
            "  rank 0   float32   [64]\n"
            "  rank 1   float32   [72]\n"
            "The shape begins with 1 on a rank that has not called step() for the gradients that "
            "were combined last time. It begins with 1, 1 on a rank that has changed gradients "
            "between backward() and step() before they were combined, and with 1, 1, 1 on a rank "
            "that has done both. (The shape of sparse gradients begins with the number of rows, "
            "and these 1s come after it.) The shape is longer on a rank that has frozen or "
            "unfrozen parameters, or has dropped gradients of frozen ones. All ranks must make or "
            "skip the same steps, freeze the same parameters, and drop the same gradients. To clip "
            "or scale gradients that some rank has not computed, call optimizer.synchronize() "
            "first, and step() within `with optimizer.skip_synchronize():`",
        )
        optimizer.zero_grad()

    def gradients_in_flight_cases(self) -> Iterator[Case]:
        torch.manual_seed(3)
        model = torch.nn.Linear(3, 2)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.ones(3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model.weight.sum().backward()  # the bucket lacks the bias's gradient
        yield optimizer.zero_grad, f"zero_grad(){IN_FLIGHT_ERROR}"
        yield (
            lambda: optimizer.set_backward_passes_per_step(2),
            f"set_backward_passes_per_step(){IN_FLIGHT_ERROR}",
        )
        with optimizer.skip_synchronize():
            yield (
                optimizer.step,
                "step() was called within skip_synchronize() while gradients are in flight: call "
                "synchronize() before",
            )
        optimizer.step()
        yield (
            lambda: copy.copy(optimizer),
            "a DistributedOptimizer cannot be copied or pickled. To copy a training, copy the "
            "model, make a new DistributedOptimizer for the parameters of the copy, and give it "
            "optimizer.state_dict() by load_state_dict(); to save one, save model.state_dict() and "
            "optimizer.state_dict()",
        )
        optimizer.zero_grad()
        optimizer.set_backward_passes_per_step(2)
        model(torch.ones(3)).sum().backward()
        yield (
            optimizer.check_not_between_passes,
            "the state is saved between the 2 backward passes of a step, so the gradients of the "
            "passes before would be lost after a failure: call commit(), save() and "
            "check_host_updates() after optimizer.step()",
        )

    def optimizer_option_cases(self) -> Iterator[Case]:
        model = torch.nn.Linear(3, 2)
        wrapped_optimizer, wrap = (
            torch.optim.SGD(model.parameters(), lr=0.1),
            hvd.DistributedOptimizer,
        )
        for factor in (0, "two"):
            yield (
                lambda factor=factor: wrap(wrapped_optimizer, gradient_predivide_factor=factor),
                f"gradient_predivide_factor must be a number above 0; got {factor!r}",
            )
        yield (
            lambda: wrap(wrapped_optimizer, gradient_predivide_factor=2, op=hvd.Sum),
            "gradient_predivide_factor is for op Average; got Sum",
        )
        for compression in ("fp16", hvd.Compression):
            yield (
                lambda compression=compression: wrap(wrapped_optimizer, compression=compression),
                "compression must be Compression.none, .fp16, .bf16 or a Compressor of your own; "
                f"got {compression!r}",
            )
        for groups in (-1, "all", [model.weight]):
            yield (
                lambda groups=groups: wrap(wrapped_optimizer, groups=groups),
                "groups must be a number of groups, from 0 on, or a list of lists of parameters; "
                f"got {groups!r}",
            )
        yield (
            lambda: wrap(wrapped_optimizer, groups=[[model.weight], [model.weight]]),
            "groups has a parameter twice; each can be in one group only",
        )
        yield (
            wrap(wrapped_optimizer, op=hvd.Adasum).skip_synchronize,
            "with op Adasum step() combines what the ranks have changed, so there is no "
            "skip_synchronize(): clip or scale gradients before step()",
        )

    def gradient_cases(self) -> Iterator[Case]:
        transposed_parameter = torch.nn.Parameter(torch.ones(3, 2).t())
        transposed_parameter.grad = torch.ones(2, 3)
        yield (
            lambda: check_strides([transposed_parameter]),
            "a parameter of shape (2, 3) has the strides (1, 2) now, and had (3, 1) in the first "
            "step of its optimizer; with fused=True, the two must be the same: make a new "
            "DistributedOptimizer after such a change",
        )
        yield (
            hvd.reducescatter(torch.ones(2, requires_grad=True), op=hvd.Max).sum().backward,
            "a reducescatter with op Max has no gradient; Sum and Average have one",
        )
        yield (
            lambda: operations.Operation().backward(None, None, (), ()),
            "the operation Operation has no gradient",
        )

    def memory_cases(self) -> Iterator[Case]:
        yield (
            self.use_too_much_memory,
            "the system gives this process no more memory: use smaller tensors, or fewer workers "
            "on this host",
        )
        hvd.barrier()

    def use_too_much_memory(self) -> None:
        name = "x" * (1 << 28)
        used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used_bytes + (1 << 26), limits[1]))
        try:
            core.barrier(name, 0)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)

    def shutdown_cases(self) -> Iterator[Case]:
        pending_handle = hvd.allreduce_async(torch.ones(2), name=f"only.{hvd.rank()}")
        engine = lifecycle.engine()
        hvd.barrier()
        hvd.shutdown()
        text = "shutdown() was called before this call was done"
        yield lambda: hvd.synchronize(pending_handle), text
        yield lambda: engine.allocate(1), text
