"""`farandole doctor -H` examines several hosts: what works, what does not, and what helps."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from driven import POLL_SECONDS, SshHosts, kill, make_ssh_hosts
from launched import CommandRun, command, run

from hosts import run_command

PORTS = "21000-21009"
FAMILIES = ("-4", "-6")


@pytest.fixture(scope="module")
def ssh_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with make_ssh_hosts(3, tmp_path_factory.mktemp("doctor of hosts")) as hosts:
        yield hosts


def start(
    ssh_hosts: SshHosts, *words: str, environment: dict[str, str] | None = None
) -> CommandRun:
    program, *arguments = ssh_hosts.hosts[0].command(command(), "doctor", *words)
    return CommandRun(*arguments, program=program, environment=environment)


def examine(
    ssh_hosts: SshHosts, *words: str, environment: dict[str, str] | None = None
) -> CommandRun:
    """Run `farandole doctor` on host0 to its end, and check that no process is left anywhere."""
    key = [] if "-i" in words else ["-i", str(ssh_hosts.servers.identity)]
    with start(ssh_hosts, *key, *words, environment=environment) as job:
        job.end()
        ssh_hosts.wait_for_end_of(job)
    return job


def examine_as_json(ssh_hosts: SshHosts, *words: str, **options: Any) -> dict[str, Any]:
    job = examine(ssh_hosts, "--json", *words, **options)
    report: dict[str, Any] = json.loads(job.output)
    assert job.process.returncode == (0 if report["works"] else 1), job.errors
    assert job.errors == ""
    return report


def address_states(report: dict[str, Any], source: str, target: str) -> dict[str, str]:
    """Return, for each address of `target`, whether `source` reaches it."""
    return {
        row["address"].rpartition(":")[0].strip("[]"): row["state"]
        for row in report["connections"]
        if (row["from"], row["to"]) == (source, target)
    }


def find_problem(report: dict[str, Any], text: str) -> dict[str, str]:
    problems: list[dict[str, str]] = [row for row in report["problems"] if text in row["found"]]
    assert len(problems) == 1, report["problems"]
    return problems[0]


@contextmanager
def block_ports(ssh_hosts: SshHosts, node: int) -> Iterator[None]:
    """Drop the packets that a host sends from the ports PORTS, as a firewall does, but without
    nftables."""
    host = ssh_hosts.hosts[node]
    rule = ("rule", "add", "ipproto", "tcp", "sport", PORTS, "pref", "5", "blackhole")
    for family in FAMILIES:
        run_command("ip", family, "-n", host.namespace, *rule)
    try:
        yield
    finally:
        for family in FAMILIES:
            run_command("ip", family, "-n", host.namespace, "rule", "delete", "pref", "5")


@contextmanager
def add_dead_interface(ssh_hosts: SshHosts, node: int, address: str) -> Iterator[None]:
    """Give a host a second interface that leads to no other host: both ends of the veth pair are on
    this host."""
    host = ssh_hosts.hosts[node]
    host.ip("link", "add", "eth1", "type", "veth", "peer", "name", "loose")
    try:
        host.ip("address", "add", f"{address}/24", "dev", "eth1")
        for name in ("eth1", "loose"):
            host.ip("link", "set", name, "up")
        yield
    finally:
        host.ip("link", "delete", "eth1")


@contextmanager
def replace_command(ssh_hosts: SshHosts, node: int, folder: Path, script: str) -> Iterator[None]:
    """On a host, let a script run instead of the command. Its variable COPY is the path of a copy
    of the command."""
    copy = folder / "copy"
    shutil.copy2(command(), copy)
    program = folder / "farandole"
    program.write_text(f"#!/bin/sh\nCOPY={copy}\n{script}\n")
    program.chmod(0o755)
    with ssh_hosts.replace_file(node, Path(command()).resolve(), program):
        yield


def test_good_hosts_have_no_problems(ssh_hosts: SshHosts) -> None:
    report = examine_as_json(ssh_hosts, "-H", "host0,host1:4,host2")
    assert report["works"]
    assert report["problems"] == []
    names = ["host0", "host1", "host2"]
    assert [host["name"] for host in report["hosts"]] == names
    for host in report["hosts"]:
        assert host["error"] == ""
        assert host["kernel"] == os.uname().release
        assert host["cores"] >= 1
        assert host["packages"]["python3"]
        assert abs(host["clock"]["offset_seconds"]) <= host["clock"]["error_seconds"] + 1
    for node, name in enumerate(names):
        addresses = {ssh_hosts.hosts[node].v4: "works", ssh_hosts.hosts[node].v6: "works"}
        for source in set(names) - {name}:
            assert address_states(report, source, name) == addresses
    assert len(report["connections"]) == 12
    for row in report["connections"]:
        assert row["round_trip_seconds"] > 0
        assert row["bytes_per_second"] > 0


def test_the_text_report_says_that_a_job_works(ssh_hosts: SshHosts) -> None:
    job = examine(ssh_hosts, "-H", "host0,host1")
    assert job.process.returncode == 0, job.errors
    lines = job.output.splitlines()
    assert lines[0].split() == ["host", "host0", "host1"]
    assert lines[1].split() == ["address", ssh_hosts.hosts[0].v4, ssh_hosts.hosts[1].v4]
    assert lines[-1] == "A job over these hosts works."
    assert "Gbit/s" in job.output or "Mbit/s" in job.output
    assert "\x1b" not in job.output
    assert job.errors == ""  # no progress is shown, because this is not a terminal


def test_a_hostfile_and_a_port_range_are_used(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("localhost slots=2  # this host\nhost2 slots=2\n")
    report = examine_as_json(ssh_hosts, "--hostfile", str(file), "--ports", PORTS)
    assert report["works"]
    ports = [row["address"].rpartition(":")[2] for row in report["connections"]]
    assert ports == ["21000"] * 4


def test_a_blocked_port_is_reported(ssh_hosts: SshHosts) -> None:
    with block_ports(ssh_hosts, 1):
        report = examine_as_json(ssh_hosts, "-H", "host0,host1,host2", "--ports", PORTS)
    assert not report["works"]
    for name in ("host0", "host2"):
        assert set(address_states(report, name, "host1").values()) == {"no answer"}
        assert set(address_states(report, "host1", name).values()) == {"works"}
    problem = find_problem(report, "host0, host2 do not reach host1: no answer")
    assert f"{ssh_hosts.hosts[1].v4} port 21000" in problem["found"]
    assert problem["state"] == "does not work"
    assert f"--add-port={PORTS}/tcp" in problem["to_do"]
    assert f"tcp dport {PORTS} accept" in problem["to_do"]
    assert len(report["problems"]) == 1


def test_a_dead_interface_is_reported(ssh_hosts: SshHosts) -> None:
    with add_dead_interface(ssh_hosts, 1, "10.99.0.1"):
        report = examine_as_json(ssh_hosts, "-H", "host0,host1")
        assert report["works"]
        assert address_states(report, "host0", "host1")["10.99.0.1"] != "works"
        assert address_states(report, "host0", "host1")[ssh_hosts.hosts[1].v4] == "works"
        problem = find_problem(report, "10.99.0.1")
        assert problem["state"] == "limited"
        assert "--network-interfaces eth0" in problem["to_do"]
        answer_for_eth0 = examine_as_json(
            ssh_hosts, "-H", "host0,host1", "--network-interfaces", "eth0"
        )
        assert answer_for_eth0["problems"] == []


def test_a_missing_interface_is_reported(ssh_hosts: SshHosts) -> None:
    with add_dead_interface(ssh_hosts, 1, "10.99.0.1"):
        report = examine_as_json(ssh_hosts, "-H", "host0,host1", "--network-interfaces", "eth1")
    assert not report["works"]
    problem = find_problem(report, "host0 cannot be reached: no address of this host")
    assert problem["state"] == "does not work"


def test_lost_large_packets_are_reported(ssh_hosts: SshHosts) -> None:
    """IPv6 packets pass a switch whose MTU is smaller than that of the hosts. IPv4 packets, and so
    those of ssh, use a direct cable."""
    hosts = ssh_hosts.hosts
    cable = ("type", "veth", "peer", "name", "eth1", "netns", hosts[1].namespace)
    port = ("ip", "-n", hosts[1].switch, "link", "set", hosts[1].bridge_end, "mtu")
    hosts[0].ip("link", "add", "eth1", *cable)
    try:
        for node, other_node in ((0, 1), (1, 0)):
            hosts[node].ip("link", "set", "eth1", "up")
            hosts[node].ip("route", "add", f"{hosts[other_node].v4}/32", "dev", "eth1")
            # Without this setting, a host sends large packets and leaves it to the device to split
            # them. The switch would forward such a packet in spite of its MTU.
            hosts[node].ip("link", "set", "eth0", "gso_max_segs", "1")
        run_command(*port, "1000")
        actual = examine_as_json(ssh_hosts, "-H", "host0,host1")
    finally:
        run_command(*port, "1500")
        hosts[0].ip("link", "delete", "eth1")
        for host in hosts[:2]:
            host.ip("link", "set", "eth0", "gso_max_segs", "65535")
    assert not actual["works"]
    expected = {hosts[1].v4: "works", hosts[1].v6: "data stalls"}
    assert address_states(actual, "host0", "host1") == expected
    problem = find_problem(actual, "host0 does not reach host1: data stalls")
    assert "MTU" in problem["to_do"]
    assert "--network-interfaces 0.0.0.0/0" in problem["to_do"]


def test_an_unknown_host_name_is_reported(ssh_hosts: SshHosts) -> None:
    report = examine_as_json(ssh_hosts, "-H", "host0,nohost,host1")
    assert not report["works"]
    problem = find_problem(report, "nohost: ssh: Could not resolve hostname nohost")
    assert problem["state"] == "does not work"
    assert "/etc/hosts" in problem["to_do"]
    assert set(address_states(report, "host0", "host1").values()) == {"works"}
    assert set(address_states(report, "host1", "host0").values()) == {"works"}


def test_a_host_name_that_one_host_does_not_know_is_reported(ssh_hosts: SshHosts) -> None:
    hosts = ssh_hosts.hosts
    addresses = {f"host{node}": host.v4 for node, host in enumerate(hosts)}
    hosts[1].set_names({name: address for name, address in addresses.items() if name != "host0"})
    try:
        report = examine_as_json(ssh_hosts, "-H", "host0,host1")
    finally:
        hosts[1].set_names(addresses)
    assert report["works"]
    problem = find_problem(report, "names have no address")
    assert problem["found"].endswith(": host0 on host1")
    assert f"'{hosts[0].v4} host0' | sudo tee -a /etc/hosts" in problem["to_do"]


def test_a_rejected_ssh_login_is_reported(ssh_hosts: SshHosts) -> None:
    report = examine_as_json(ssh_hosts, "-H", "host0,nobody@host1,host2")
    assert not report["works"]
    problem = find_problem(report, "host1: nobody@host1: Permission denied")
    assert "--ssh-identity-file" in problem["to_do"]
    assert set(address_states(report, "host0", "host2").values()) == {"works"}


def test_a_different_version_is_reported(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    replace = r"""sed -u 's/"version":"[^"]*"}}$/"version":"9.9.9"}}/'"""
    with replace_command(ssh_hosts, 1, tmp_path, f'"$COPY" "$@" | {replace}'):
        report = examine_as_json(ssh_hosts, "-H", "host0,host1")
    assert not report["works"]
    problem = find_problem(report, "Farandole has different versions")
    assert problem["found"].endswith("9.9.9 on host1")
    assert problem["to_do"] == "install the same version on all hosts"
    assert set(address_states(report, "host0", "host1").values()) == {"works"}


def test_a_version_without_probes_is_reported(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    script = "echo 'farandole: there is no command `probe`; the commands are …' >&2; exit 2"
    with replace_command(ssh_hosts, 1, tmp_path, script):
        report = examine_as_json(ssh_hosts, "-H", "host0,host1")
    assert find_problem(report, "host1: ")["to_do"].startswith("install the same version")


def test_a_host_without_farandole_is_reported(ssh_hosts: SshHosts) -> None:
    with ssh_hosts.hide_folder(1, Path(command()).resolve().parent):
        report = examine_as_json(ssh_hosts, "-H", "host1,host2")
    assert "at the same path" in find_problem(report, "host1: ")["to_do"]


def test_a_host_that_never_answers_is_reported(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    with replace_command(ssh_hosts, 1, tmp_path, "exec cat >/dev/null"):
        report = examine_as_json(
            ssh_hosts, "-H", "host0,host1", environment={"FARANDOLE_START_TIMEOUT": "5"}
        )
    assert not report["works"]
    assert "host1 true`" in find_problem(report, "host1: there is no answer after 5 s")["to_do"]


def test_the_probes_end_with_the_doctor(ssh_hosts: SshHosts, tmp_path: Path) -> None:
    identity = str(ssh_hosts.servers.identity)
    # The probe of host2 never begins, so the doctor is still waiting when the test kills it.
    with (
        replace_command(ssh_hosts, 2, tmp_path, "exec cat >/dev/null"),
        start(ssh_hosts, "-i", identity, "-H", "host0,host1,host2") as job,
    ):
        while not (ssh_hosts.find(1, "/farandole probe") and ssh_hosts.find(2, "cat")):
            assert job.process.poll() is None
            time.sleep(POLL_SECONDS)
        kill(job.process.pid)
        ssh_hosts.wait_for_end_of(job)


def test_flags_for_hosts_need_hosts() -> None:
    for words in (["--ports", "21000"], ["-p", "22"], ["--network-interfaces", "eth0"]):
        job = run("doctor", *words)
        assert job.process.returncode == 2
        assert "name the hosts with -H or --hostfile" in job.errors


def test_wrong_flags_are_rejected() -> None:
    for words, why in (
        (["-H", "host0,-oProxyCommand=x"], "-oProxyCommand=x"),
        (["-H", "host0", "--ports", "9-1"], "FARANDOLE_PORTS"),
        (["-H", "host0", "--hostfile", "x"], "not both"),
        (["-H", "host0", "-p", "0"], "--ssh-port"),
    ):
        job = run("doctor", *words)
        assert job.process.returncode == 2
        assert why in job.errors
