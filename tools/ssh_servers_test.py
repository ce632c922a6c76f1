"""Test the SSH servers of the hosts with the ssh of this machine."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts import Host, Hosts, HostsError, namespaces
from ssh_servers import SshServers, accounts, make_key, reason_if_impossible

TIMEOUT_SECONDS = 300
FAILURE_OF_SSH = 255
HostsAndServers = tuple[Hosts, SshServers]


@pytest.fixture(scope="module")
def require_ssh_servers() -> None:
    if reason := reason_if_impossible():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def hosts_and_servers(
    require_ssh_servers: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HostsAndServers]:
    folder = tmp_path_factory.mktemp("two servers")
    with Hosts(2) as hosts, SshServers(hosts, folder) as servers:
        yield hosts, servers


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def output(words: list[str]) -> str:
    done = run(words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ends_of(connection: str) -> list[str]:
    """Return the addresses of the client and of the server in a value of SSH_CONNECTION."""
    return connection.split()[::2]


def test_a_host_runs_commands_on_another_and_on_itself(hosts_and_servers: HostsAndServers) -> None:
    hosts, servers = hosts_and_servers
    for client, name, server in (
        (hosts[0], "host1", hosts[1]),
        (hosts[1], "host0", hosts[0]),
        (hosts[0], "host0", hosts[0]),
        (hosts[0], hosts[1].v6, hosts[1]),
    ):
        answer = output(servers.command(client, name, "echo $SSH_CONNECTION"))
        expected = [client.v6, server.v6] if ":" in name else [client.v4, server.v4]
        assert ends_of(answer) == expected


def test_a_command_reaches_further_hosts(hosts_and_servers: HostsAndServers) -> None:
    hosts, servers = hosts_and_servers
    options = ["-oBatchMode=yes", "-oStrictHostKeyChecking=yes", "-i", str(servers.identity)]
    further = shlex.join(["ssh", *options, "--", "host0", "echo $SSH_CONNECTION"])
    answer = output(servers.command(hosts[0], "host1", further))
    assert ends_of(answer) == [hosts[1].v4, hosts[0].v4]


def test_the_home_is_not_that_of_the_developer(hosts_and_servers: HostsAndServers) -> None:
    hosts, servers = hosts_and_servers
    home = servers.home("host1")
    assert output(servers.command(hosts[0], "host1", "echo ~; pwd")).splitlines() == [
        str(home),
        str(home),
    ]
    assert list(servers.home("host0").iterdir()) == []


def test_another_user_key_is_refused(hosts_and_servers: HostsAndServers, tmp_path: Path) -> None:
    hosts, servers = hosts_and_servers
    make_key(tmp_path / "other")
    done = run(servers.command(hosts[0], "host1", "true", identity=tmp_path / "other"))
    assert done.returncode == FAILURE_OF_SSH
    assert "Permission denied (publickey)" in done.stderr


def known_hosts_of(host: Host) -> Path:
    return host.settings / "ssh/ssh_known_hosts"


def test_another_or_an_unknown_host_key_is_refused(
    hosts_and_servers: HostsAndServers, tmp_path: Path
) -> None:
    hosts, servers = hosts_and_servers
    make_key(tmp_path / "other")
    other = f"host1 {(tmp_path / 'other.pub').read_text()}"
    right = servers.known_hosts.read_text()
    assert known_hosts_of(hosts[0]).read_text() == right
    try:
        for known in (other, ""):
            known_hosts_of(hosts[0]).write_text(known)
            done = run(servers.command(hosts[0], "host1", "true"))
            assert done.returncode == FAILURE_OF_SSH
            assert "Host key verification failed" in done.stderr
            assert ("HAS CHANGED" in done.stderr) == (known == other)
    finally:
        known_hosts_of(hosts[0]).write_text(right)
    output(servers.command(hosts[0], "host1", "true"))


def test_another_port_other_names_and_ipv6_only(require_ssh_servers: None, tmp_path: Path) -> None:
    with (
        Hosts(2, v6_only=True) as hosts,
        SshServers(hosts, tmp_path, names=["left", "right"], port=2222) as servers,
    ):
        answer = output(servers.command(hosts[0], "right", "echo $SSH_CONNECTION"))
    assert ends_of(answer) == [hosts[0].v6, hosts[1].v6]
    assert answer.split()[3] == "2222"


def test_nothing_is_left_at_the_end(require_ssh_servers: None, tmp_path: Path) -> None:
    # The parent of the first `sleep` ends, so this `sleep` is no longer a child of the server.
    script = "(setsid sleep 1000 &) >&- 2>&-; echo started; sleep 1000"
    with Hosts(2) as hosts:
        with SshServers(hosts, tmp_path) as servers:
            words = servers.command(hosts[0], "host1", script)
            client = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            assert client.stdout is not None
            assert client.stdout.readline() == "started\n"
            assert "Starting session" in servers.log("host1")
        assert [host.processes() for host in hosts] == [[], []]
        with client:
            assert client.wait(TIMEOUT_SECONDS) != 0
    assert not {host.namespace for host in hosts} & set(namespaces())
    assert not any(host.settings.exists() for host in hosts)


def test_keys_are_used_again(require_ssh_servers: None, tmp_path: Path) -> None:
    keys = set()
    with Hosts(1) as hosts:
        for _ in range(2):
            with SshServers(hosts, tmp_path) as servers:
                output(servers.command(hosts[0], "host0", "true"))
                keys.add((servers.identity.read_text(), servers.known_hosts.read_text()))
    assert len(keys) == 1


def test_a_server_that_cannot_start_shows_its_log(
    require_ssh_servers: None, tmp_path: Path
) -> None:
    with Hosts(1) as hosts:
        with (
            pytest.raises(HostsError, match=r"(?s)sshd on host0 ended.*Badly formatted port"),
            SshServers(hosts, tmp_path, port=0),
        ):
            pass
        assert hosts[0].processes() == []


def test_accounts_have_one_user_sshd_and_the_home() -> None:
    lines = accounts(Path("/a/home")).splitlines()
    assert sum(line.startswith("sshd:") for line in lines) == 1
    assert [line.split(":")[5] for line in lines if line.startswith("root:")] == ["/a/home"]
