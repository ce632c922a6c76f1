#!/usr/bin/env python3
"""Draw docs/session.svg, the picture of a terminal in README: a real job, and its real output.

The job runs on a pseudo-terminal, so its colors are those that users see. The script needs the
installed package, and the packages of tools/docs_packages.txt. It takes about ten seconds.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

PICTURE = Path(__file__).resolve().parents[1] / "docs/session.svg"
COLUMNS = 100
COMMAND = ("farandole", "run", "-n", "2", "--stall-warning", "2", "python", "train.py")
PROGRAM = """\
import time

import torch
import farandole.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)


def load_batch(step):
    if hvd.rank() == 1 and step == 220:
        time.sleep(4)  # a slow disk
    inputs = torch.randn(128, 64)
    return inputs, inputs.sum(1, keepdim=True)


for step in range(1, 401):
    inputs, targets = load_batch(step)
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    if step % 100 == 0 and hvd.rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}")
hvd.check_parameters(model.named_parameters())
print("parameters are equal on all ranks")
"""


def output_of_the_job() -> str:
    """Run the job, and return what its terminal shows."""
    main_end, job_end = pty.openpty()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(PROGRAM)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        variables = os.environ | {"COLUMNS": str(COLUMNS), "PATH": path, "TERM": "xterm-256color"}
        job = subprocess.Popen(COMMAND, stdout=job_end, stderr=job_end, cwd=folder, env=variables)
        os.close(job_end)
        output = b""
        try:
            while part := os.read(main_end, 65536):
                output += part
        except OSError:  # no process has the terminal open any more
            pass
        code = job.wait()
    os.close(main_end)
    text = output.decode().replace("\r\n", "\n")
    if code != 0 or "load_batch (train.py" not in text:
        sys.exit(f"the job has ended with code {code}, or py-spy is missing:\n{text}")
    return text


def without_downloaded_fonts(picture: str) -> str:
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)


def main() -> None:
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ " + " ".join(COMMAND), style="bold"))
    console.print(Text.from_ansi(output_of_the_job()))
    print(console.export_text(clear=False), end="")
    PICTURE.write_text(
        without_downloaded_fonts(console.export_svg(title="Farandole", theme=MONOKAI))
    )


if __name__ == "__main__":
    main()
