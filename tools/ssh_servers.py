"""A real OpenSSH server on each host of `tools/hosts.py`, and clients that trust it.

    with Hosts(2) as hosts, SshServers(hosts, folder) as servers:
        subprocess.run(servers.command(hosts[0], "host1", "echo $SSH_CONNECTION"))

The servers and their clients use the keys in `folder`, and neither ~/.ssh nor /etc/ssh of this
machine. If this machine has no sshd, its Debian packages are unpacked in build/sshd, but not
installed, so that no service starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hosts import Host, HostsError, run_command
from hosts import reason_if_impossible as why_no_hosts
from unpacked_packages import overlay_prefix, unpack

UNPACKED = Path(__file__).resolve().parents[1] / "build/sshd"
UNPACKED_SSHD = UNPACKED / "usr/sbin/sshd"
PACKAGES = ("openssh-server", "libwrap0")  # sshd needs libwrap0
CLIENT_COMMANDS = ("ssh", "ssh-keygen", "ssh-keyscan")
START_SECONDS = 30
POLL_SECONDS = 0.05
LOG_CHARACTERS_MAX = 2000  # the part of a log that an error text shows
SSHD_ACCOUNT = "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin"
# The ssh agent of the developer would offer its own keys first.
CLIENT_CONFIGURATION = "Host *\n    IdentityAgent none\n"


def reason_if_impossible() -> str:
    """Return why hosts of this machine cannot have SSH servers, or an empty text if they can.

    The first call may download sshd.
    """
    if reason := why_no_hosts():
        return reason
    if missing := [name for name in CLIENT_COMMANDS if shutil.which(name) is None]:
        return f"the command `{missing[0]}` is missing; install openssh-client"
    try:
        find_sshd()
    except HostsError as failure:
        return str(failure)
    return ""


def find_sshd() -> Path:
    """Return the sshd of this machine, or one in build/sshd, which is downloaded if necessary."""
    if found := shutil.which("sshd", path=f"/usr/sbin:{os.environ.get('PATH', os.defpath)}"):
        return Path(found).absolute()  # sshd starts itself again, and needs its full path
    if not UNPACKED_SSHD.exists():
        unpack("sshd", PACKAGES, UNPACKED, require_libraries)
    return UNPACKED_SSHD


def require_libraries(unpacked: Path) -> None:
    sshd = unpacked / "usr/sbin/sshd"
    environment = os.environ | library_environment(unpacked)
    done = subprocess.run(
        ["ldd", sshd], env=environment, capture_output=True, text=True, check=False
    )
    if missing := [line.split()[0] for line in done.stdout.splitlines() if "not found" in line]:
        raise HostsError(f"the downloaded sshd needs {missing[0]}; install openssh-server")


def library_environment(unpacked: Path) -> dict[str, str]:
    folders = sorted({str(library.parent) for library in unpacked.rglob("lib*.so.*")})
    return {"LD_LIBRARY_PATH": ":".join(folders)} if folders else {}


def make_key(file: Path) -> None:
    if not file.exists():
        run_command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", file.name, "-f", str(file))


def accounts(home: Path) -> str:
    """Return the text of /etc/passwd for a host: as on this machine, but with this home for
    root."""
    lines = Path("/etc/passwd").read_text().splitlines()
    if not any(line.startswith("sshd:") for line in lines):
        lines.append(SSHD_ACCOUNT)
    rows = [line.split(":") for line in lines]
    for row in rows:
        if row[0] == "root":
            row[5] = str(home)
    return "".join(":".join(row) + "\n" for row in rows)


@dataclass
class Server:
    """The server of one host, with its files in a folder of its own."""

    host: Host
    name: str
    folder: Path
    usr_overlay: Path | None = None
    process: subprocess.Popen[str] | None = None

    @property
    def host_key(self) -> Path:
        return self.folder / "host_key"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def addresses(self) -> list[str]:
        return [self.host.v6] if self.host.v6_only else [self.host.v4, self.host.v6]

    def known_host(self, port: int) -> str:
        """Return this server's line in a known_hosts file."""
        names = [self.name, *self.addresses()]
        patterns = names if port == 22 else [f"[{name}]:{port}" for name in names]
        key = self.host_key.with_suffix(".pub").read_text().split()
        return f"{','.join(patterns)} {key[0]} {key[1]}\n"

    def configuration(self, sshd: Path, port: int, authorized_keys: Path) -> str:
        lines = [
            f"Port {port}",
            *(f"ListenAddress {address}" for address in self.addresses()),
            f'HostKey "{self.host_key}"',
            f'AuthorizedKeysFile "{authorized_keys}"',
            "AllowUsers root",
            "PermitRootLogin prohibit-password",
            "AuthenticationMethods publickey",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "Subsystem sftp internal-sftp",  # for scp
            "StrictModes no",  # the keys may be in a folder below /tmp, where everybody can write
            "PidFile none",  # do not overwrite the file of this machine's own sshd
            "LogLevel VERBOSE",
        ]
        # Version 9.8 and later versions of sshd run further programs. By default, sshd looks for
        # these programs where Debian installs them.
        for option, program in (("SshdSessionPath", "session"), ("SshdAuthPath", "auth")):
            path = UNPACKED / f"usr/lib/openssh/sshd-{program}"
            if sshd == UNPACKED_SSHD and path.exists():
                lines.append(f"{option} {path}")
        return "".join(f"{line}\n" for line in lines)

    def write_settings(self, known_hosts: str) -> None:
        """Write the files that replace those of /etc for the programs of this host."""
        settings = self.host.settings
        (settings / "passwd").write_text(accounts(self.home))
        # Some machines lock the account of root, and sshd refuses a locked account.
        (settings / "shadow").touch(mode=0o600)
        (settings / "shadow").write_text("root:*:::::::\n")
        (settings / "ssh").mkdir(exist_ok=True)
        (settings / "ssh/ssh_config").write_text(CLIENT_CONFIGURATION)
        (settings / "ssh/ssh_known_hosts").write_text(known_hosts)

    def start(self, sshd: Path) -> None:
        environment = {"PATH": os.environ.get("PATH", os.defpath)}
        if sshd == UNPACKED_SSHD:
            environment |= library_environment(UNPACKED)
        words = overlay_prefix(self.name, self.usr_overlay)
        words += [str(sshd), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        with open(self.log, "w") as log:
            self.process = self.host.start(
                *words,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C must not reach the servers
            )

    def wait_until_ready(self, port: int) -> None:
        assert self.process is not None
        deadline = time.monotonic() + START_SECONDS
        while not self.answers(port):
            if self.process.poll() is not None:
                raise self.failure(f"ended with exit code {self.process.returncode}")
            if time.monotonic() > deadline:
                raise self.failure(f"does not accept connections after {START_SECONDS} s")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(POLL_SECONDS)

    def answers(self, port: int) -> bool:
        scan = ("ssh-keyscan", "-T", "5", "-t", "ed25519", "-p", str(port), self.host.address)
        done = subprocess.run(self.host.command(*scan), capture_output=True, text=True, check=False)
        return bool(done.stdout)

    def failure(self, what: str) -> HostsError:
        end = self.log.read_text(errors="replace")[-LOG_CHARACTERS_MAX:]
        return HostsError(f"sshd on {self.name} {what}; its log {self.log} ends with:\n{end}")


class SshServers:
    """An SSH server on each host, for root only, with one user key for all hosts.

    Entering the `with` block returns when all servers accept connections. Programs that start on a
    host after this know the names of all hosts, and `ssh -i identity -- host1` from any host finds
    the host keys without an option. Leaving the block ends all processes of the hosts.

    On a host, the home of root is a folder in `folder`, so that ~/.ssh and ~/.bashrc of this
    machine change nothing.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        folder: Path,
        *,
        names: Sequence[str] | None = None,
        port: int = 22,
        usr_overlay: Path | None = None,
    ) -> None:
        """Use `folder` for keys and logs; it may have the keys of an earlier use. The names of the
        hosts are host0, host1, … by default. Sessions see `usr_overlay` mounted over /usr."""
        self.folder = folder.resolve()
        self.port = port
        self.names = list(names or (f"host{number}" for number in range(len(hosts))))
        self.identity = self.folder / "identity"  # the private key of the user
        self.known_hosts = self.folder / "known_hosts"
        self._servers = {
            name: Server(host, name, self.folder / name, usr_overlay)
            for host, name in zip(hosts, self.names, strict=True)
        }

    def __enter__(self) -> SshServers:
        sshd = find_sshd()
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # the sshd of Debian needs this folder
        try:
            self._write_files(sshd)
            for server in self._servers.values():
                server.start(sshd)
            for server in self._servers.values():
                server.wait_until_ready(self.port)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def command(
        self, client: Host, name: str, *words: str, identity: Path | None = None
    ) -> list[str]:
        """Return the command that runs `words` on the host `name`, started on the host `client`.

        A shell of the host `name` reads the words, joined with spaces.
        """
        options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-p", str(self.port)]
        return client.command(
            "ssh", *options, "-i", str(identity or self.identity), "--", name, *words
        )

    def log(self, name: str) -> str:
        """Return the log of this host's server."""
        return self._servers[name].log.read_text(errors="replace")

    def pid(self, name: str) -> int:
        """Return the process id of this host's server, which starts a process for each client."""
        process = self._servers[name].process
        assert process is not None, "the server is not started"
        return process.pid  # `ip netns exec` replaces itself by the server

    def home(self, name: str) -> Path:
        """Return the home of root on this host."""
        return self._servers[name].home

    def _write_files(self, sshd: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        make_key(self.identity)
        servers = self._servers.values()
        for server in servers:
            server.home.mkdir(parents=True, exist_ok=True)
            make_key(server.host_key)
            text = server.configuration(sshd, self.port, self.identity.with_suffix(".pub"))
            (server.folder / "sshd_config").write_text(text)
        known_hosts = "".join(server.known_host(self.port) for server in servers)
        self.known_hosts.write_text(known_hosts)
        addresses = {server.name: server.host.address for server in servers}
        for server in servers:
            server.host.set_names(addresses)
            server.write_settings(known_hosts)

    def _end(self) -> None:
        for server in self._servers.values():
            server.host.end_processes()
            if server.process is not None:
                server.process.wait()
