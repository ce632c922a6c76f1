"""Lightning, Accelerate and Transformers over Farandole. After the training, the replicas have
equal parameters, and these are the same as with Gloo.

The libraries are installed into build/trainers, beside the packages of .venv, so that the PyTorch
of .venv is used unchanged.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
TIMEOUT_SECONDS = 600  # only a guard against hanging
PACKAGES = HERE / "packages.txt"
FARANDOLE_LAUNCHER = ("farandole", "run", "-n", "2", "python")
TORCHRUN_LAUNCHER = ("python", "-m", "torch.distributed.run", "--nproc-per-node", "2")
LAUNCHERS = [
    ("lightning", FARANDOLE_LAUNCHER),
    ("lightning", TORCHRUN_LAUNCHER),
    ("lightning", ("python",)),  # Lightning starts the second rank itself
    ("accelerate", FARANDOLE_LAUNCHER),
    ("accelerate", TORCHRUN_LAUNCHER),
    ("transformers", FARANDOLE_LAUNCHER),
    ("transformers", TORCHRUN_LAUNCHER),
]


@pytest.fixture(scope="session")
def environment() -> Path:
    """Return an environment with the libraries. If packages.txt changes, it is made anew."""
    folder = ROOT / "build/trainers/environment"
    stamp, content = folder / "packages.stamp", sys.version + PACKAGES.read_text()
    if not stamp.exists() or stamp.read_text() != content:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "base.pth").write_text(sysconfig.get_path("purelib"))
        constraints = folder / "constraints.txt"
        constraints.write_text(f"torch=={version('torch')}\nnumpy=={version('numpy')}\n")
        pip = (folder / "bin/python", "-m", "pip", "install", "-q", "-c", constraints)
        subprocess.run([*pip, "-r", PACKAGES], check=True)
        stamp.write_text(content)
    return folder / "bin"


def run(environment: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    own_commands = str(Path(sys.executable).parent)  # the folder that has the command `farandole`
    path = os.pathsep.join([str(environment), own_commands, os.environ.get("PATH", "")])
    # The libraries must not look for files on the network, which may be missing.
    variables = {"PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    # With the word `python`, `farandole run` would start the Python in the folder of the command,
    # but this Python does not have the libraries.
    python = str(environment / "python")
    return subprocess.run(
        [python if word == "python" else str(word) for word in words],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **variables},
        timeout=TIMEOUT_SECONDS,
    )


def train(
    environment: Path, launcher: tuple[str, ...], library: str, backend: str, folder: Path
) -> list[list[torch.Tensor]]:
    """Train, and return the parameters of each rank."""
    job = run(environment, *launcher, HERE / f"{library}_program.py", backend, folder)
    assert job.returncode == 0, job.stdout
    return [torch.load(folder / f"{backend}.{rank}") for rank in range(2)]


@pytest.fixture(scope="session")
def gloo(environment: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Train with each library over Gloo, under `farandole run`. Return the parameters of each rank,
    by library."""
    libraries = ("lightning", "accelerate", "transformers")
    folders = {library: tmp_path_factory.mktemp(library) for library in libraries}
    return {
        library: train(environment, FARANDOLE_LAUNCHER, library, "gloo", folder)[0]
        for library, folder in folders.items()
    }


@pytest.mark.parametrize(("library", "launcher"), LAUNCHERS)
def test_libraries_train_as_with_gloo(
    library: str,
    launcher: tuple[str, ...],
    environment: Path,
    gloo: dict[str, list[torch.Tensor]],
    tmp_path: Path,
) -> None:
    for rank_parameters in train(environment, launcher, library, "farandole", tmp_path):
        for one, other in zip(rank_parameters, gloo[library], strict=True):
            assert torch.equal(one, other), f"{one} is not {other}"


def test_lightning_rejects_a_wrong_number_of_devices(environment: Path, tmp_path: Path) -> None:
    """Within a worker, Lightning must not start processes of its own, because each worker would
    then be a separate job."""
    words = [*FARANDOLE_LAUNCHER, HERE / "lightning_program.py", "farandole", tmp_path]
    words[words.index("2")] = "3"
    job = run(environment, *words)
    assert job.returncode != 0
    expected = r"You set `devices=2` and `num_nodes=1` .* does not match the world size \(3\)"
    assert re.search(expected, job.stdout), job.stdout


PREPARING_PROGRAM = """
import sys, torch, warnings
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
accelerator = Accelerator(cpu="cpu" in sys.argv, kwargs_handlers=[
    InitProcessGroupKwargs(backend="farandole")] if "backend" in sys.argv else [])
print("wraps", type(accelerator.prepare(torch.nn.Linear(1, 1))).__name__)
"""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("cpu",), "wraps DistributedDataParallel"),
        ((), "wraps Linear"),
        (("backend",), "wraps Linear"),
        (("cpu", "backend"), "Your assigned backend farandole is not available, please use gloo"),
    ],
)
def test_what_accelerate_chooses(arguments: tuple[str, ...], text: str, environment: Path) -> None:
    """Check the reason why docs/accelerate.md makes the process group before the Accelerator."""
    if torch.cuda.is_available():
        pytest.skip("the page speaks about machines without a GPU")
    job = run(environment, *FARANDOLE_LAUNCHER, "-c", PREPARING_PROGRAM, *arguments)
    assert job.stdout.count(text) == 2, job.stdout
