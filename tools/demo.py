"""Train on Fashion-MNIST: `./dev demo`, and `./dev demo --hosts 2` for several hosts.

The hosts are network namespaces of this machine. Further options go to the training script.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hosts import Hosts, HostsError, in_guarded_process, run_on_all
from missing_packages import missing_packages
from progress import say

TOOLS = Path(__file__).resolve().parent
EXAMPLE = TOOLS.parent / "examples/torch/fashion_mnist.py"
PORT = 4711


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__, add_help=False)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2, help="per host")
    arguments, rest = parser.parse_known_args()
    program = ["python", str(EXAMPLE), *rest]
    if arguments.hosts == 1:
        say(f"training on Fashion-MNIST with {arguments.workers} workers")
        sys.stdout.flush()
        os.execvp("farandole", ["farandole", "run", "-n", str(arguments.workers), *program])
    install_packages()
    return in_guarded_process(lambda: train(arguments.hosts, arguments.workers, program))


def install_packages() -> None:
    if os.geteuid() != 0:
        raise SystemExit("[dev] several hosts need root, for network namespaces: use sudo")
    if missing := missing_packages(TOOLS / "hosts_packages.txt"):
        say(f"installing Debian packages: {' '.join(missing)}")
        for words in (["update"], ["install", "-y", *missing]):
            done = subprocess.run(["apt-get", "-qq", *words], capture_output=True, check=False)
            if done.returncode != 0:
                say(f"apt-get {words[0]} failed: {done.stderr.decode().strip()}")
    if shutil.which("ip") is None:
        raise SystemExit("[dev] several hosts need the command `ip`: apt-get install iproute2")


def train(count: int, workers: int, program: list[str]) -> int:
    threads = max(1, len(os.sched_getaffinity(0)) // (count * workers))
    environment = {"OMP_NUM_THREADS": str(threads)} | os.environ
    with tempfile.TemporaryDirectory() as folder, Hosts(count) as hosts:
        secret = str(Path(folder) / "secret")
        subprocess.run(["farandole", "secret", secret], check=True)
        say(f"training on Fashion-MNIST on {count} hosts with {workers} workers each")
        commands = []
        for node in range(count):
            words = ["farandole", "run", "--join", hosts[0].endpoint(PORT), "--nodes", str(count)]
            words += ["--node", str(node), "--secret", secret, "-n", str(workers), *program]
            say(f"host {node}: $ {shlex.join(words)}")
            commands.append(words)
        codes = run_on_all(hosts, commands, env=environment)
    if any(codes):
        raise HostsError(f"the exit codes are {codes}")
    say("all hosts have ended with exit code 0")
    return 0


if __name__ == "__main__":
    sys.exit(main())
