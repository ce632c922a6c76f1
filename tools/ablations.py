#!/usr/bin/env python3
"""Measure how useful each heuristic and each constant of the predictor is.

The script builds the simulator once more, with switches. ablations.toml says which text of the
sources each switch turns off. It also lists the constants that the script changes. The script runs
the workloads of the simulator (tests/sim/workloads.cc) with everything on, and then once for each
switch, with only this switch off. It prints the heuristics that are not useful. With --write, it
also writes the tables of docs/simulator.md. The shipped sources do not contain the switches.

The script needs the simulator of the preset dev (`./dev build`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import tomllib  # type: ignore[import-not-found]  # mypy looks at Python 3.10, which users may have

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build/dev"
OVERLAY = ROOT / "build/ablations"
ROOMS = ("src/control", "src/coordination")
PAGE = ROOT / "docs/simulator.md"
SEEDS = 8  # seeds of each workload, as in workloads_test.cc
PROCESSOR_TIME_MAX_S = 60  # limit for all workloads; they take about 7 s
SWITCHES = """
#include <cstdlib>
#include <cstring>
// ABLATION is `name` or `constant=value`.
bool is_without(const char* name) {
  static const char* const off = std::getenv("ABLATION");
  return off != nullptr && std::strcmp(off, name) == 0;
}
long long value_of(const char* name, long long value) {
  const char* const off = std::getenv("ABLATION");
  const std::size_t length = std::strlen(name);
  if (off == nullptr || std::strncmp(off, name, length) != 0 || off[length] != '=') return value;
  return std::atoll(off + length + 1);
}
"""
DECLARATIONS = (
    "bool is_without(const char* name);\nlong long value_of(const char* name, long long value);\n"
)


@dataclass(frozen=True)
class Heuristic:
    name: str
    file: str
    find: str
    workload: str
    off: str = ""


@dataclass(frozen=True)
class Constant:
    name: str
    file: str


@dataclass(frozen=True)
class Cost:
    messages: int
    replans: int
    steps: int
    milliseconds: int
    problems: int  # how many seeds broke a rule of the simulator


def read_ablations(text: str) -> tuple[list[Heuristic], list[Constant]]:
    tables = tomllib.loads(text)
    heuristics = [Heuristic(**entry) for entry in tables["heuristic"]]
    return heuristics, [Constant(**entry) for entry in tables["constant"]]


def with_switch(heuristic: Heuristic, source: str, original: str) -> str:
    """Return the source with the switch around the heuristic's text.

    An earlier call may have put a switch of another heuristic around the same code. Then the text
    may occur twice: in the `off` text of that switch, and at its old place. Raise ValueError unless
    the original source contains the text exactly once.
    """
    find = heuristic.find.strip("\n")
    if (count := original.count(find)) != 1:
        raise ValueError(f"{heuristic.name}: {heuristic.file} contains the text {count} times")
    before, _, after = source.rpartition(find)  # the last occurrence is the original text
    condition = f'is_without("{heuristic.name}")'
    if find.endswith(";"):
        return f"{before}{{ if ({condition}) {{ {heuristic.off} }} else {{ {find} }} }}{after}"
    return f"{before}({condition} ? ({heuristic.off}) : ({find})){after}"


def with_variable(constant: Constant, source: str) -> tuple[str, int]:
    """Return the source with a variable in place of the constant, and the value of the constant."""
    pattern = rf"constexpr (\S+) {constant.name} = ([^;]+);"
    declarations = re.findall(pattern, source)
    if len(declarations) != 1:
        raise ValueError(f"{constant.file} declares {constant.name} {len(declarations)} times")
    declaration = re.search(rf"(static |inline )?{pattern}", source)
    assert declaration is not None
    prefix = {"static ": "static inline ", "inline ": "inline ", None: ""}[declaration[1]]
    kind, value = declarations[0]
    new_declaration = (
        f'{prefix}const {kind} {constant.name} = {kind}(value_of("{constant.name}", {value}));'
    )
    numbers = [int(number) for number in re.findall(r"\b\d+", value)]  # a number, or 1 << number
    return source.replace(declaration[0], new_declaration), numbers[0] << (
        numbers[1] if "<<" in value else 0
    )


def write_overlay(heuristics: list[Heuristic], constants: list[Constant]) -> dict[str, int]:
    """Write the sources with switches. Return the values of the constants."""
    values = {}
    files = {heuristic.file for heuristic in heuristics} | {constant.file for constant in constants}
    for file in sorted(files):
        original = source = (ROOT / file).read_text()
        for heuristic in heuristics:
            if heuristic.file == file:
                source = with_switch(heuristic, source, original)
        for constant in constants:
            if constant.file == file:
                source, values[constant.name] = with_variable(constant, source)
        target = OVERLAY / file
        target.parent.mkdir(parents=True, exist_ok=True)
        head = "#pragma once\n" if file.endswith(".h") else ""
        target.write_text(head + DECLARATIONS + source)
    return values


def run(command: list[str]) -> None:
    result = subprocess.run(command, cwd=BUILD, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{shlex.join(command)}\n{result.stderr[-4000:]}")


def compile_command() -> list[str]:
    """Return the compiler, and the flags with which it compiles the coordination.

    The preset dev compiles groups of files, so compile_commands.json has no command for a single
    file.
    """
    for entry in json.loads((BUILD / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        if "farandole_coordination.dir" in entry["command"]:
            kept_words = words[: words.index("-o")]
            return [
                "-O1" if word == "-O3" else word for word in kept_words if not word.startswith("-W")
            ]
    raise SystemExit("the preset dev compiles no file of the coordination")


def build() -> Path:
    """Compile the rooms from the overlay, and link the simulator with them."""
    (OVERLAY / "switches.cc").write_text(SWITCHES)
    compiler, *flags = compile_command()
    commands = []
    objects = []
    for source in (file for room in ROOMS for file in sorted((ROOT / room).glob("*.cc"))):
        if source.stem.endswith("_test"):
            continue
        changed_source = OVERLAY / source.relative_to(ROOT)
        objects.append(str(OVERLAY / f"{source.stem}.o"))
        names = [
            "-c",
            str(changed_source if changed_source.is_file() else source),
            "-o",
            objects[-1],
        ]
        commands.append([compiler, f"-I{OVERLAY / 'src'}", *flags, *names])
    objects.append(str(OVERLAY / "switches.o"))
    commands.append(["c++", "-O1", "-c", str(OVERLAY / "switches.cc"), "-o", objects[-1]])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, commands))
    sim_commands = subprocess.run(
        ("ninja", "-t", "commands", "sim"), cwd=BUILD, check=True, capture_output=True, text=True
    ).stdout
    words = shlex.split(sim_commands.splitlines()[-1].removeprefix(": && ").removesuffix(" && :"))
    program = OVERLAY / "sim"
    words[words.index("-o") + 1] = str(program)
    first_library = next(index for index, word in enumerate(words) if word.endswith(".a"))
    run([*words[:first_library], *objects, *words[first_library:]])
    return program


def report_of(program: Path, ablation: str = "") -> str:
    """Return the simulator's table of workloads."""
    return subprocess.run(
        (
            *("sh", "-c", f'ulimit -t {PROCESSOR_TIME_MAX_S} && exec "$0" "$@"'),
            *(str(program), "--workloads", "--seeds", str(SEEDS)),
        ),
        env=os.environ | {"ABLATION": ablation},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def costs(program: Path, ablation: str = "") -> dict[str, Cost]:
    """Return the costs of each workload by name. Return {} if a workload does not end."""
    try:
        report = report_of(program, ablation)
    except subprocess.CalledProcessError as error:
        if error.returncode not in (-signal.SIGXCPU, -signal.SIGKILL):
            raise
        return {}
    table = {}
    for line in report.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("| ") or not cells[-1].isdigit():
            continue
        name, _, messages, replans, steps, milliseconds = cells
        problems = report.count(f"\nWRONG: {name}, ")
        table[name] = Cost(int(messages), int(replans), int(steps), int(milliseconds), problems)
    return table


def row_text(name: str, workload: str, on: Cost, off: Cost) -> str:
    """Return a row of a table. If a rule is broken, the row says only this."""
    if off.problems > on.problems:
        return f"| {name} | {workload} | breaks a rule |  |  |  |"
    cells = [name, workload]
    for attribute in ("messages", "replans", "steps", "milliseconds"):
        with_rule, without_rule = getattr(on, attribute), getattr(off, attribute)
        is_same = with_rule == without_rule
        cells.append(str(with_rule) if is_same else f"{with_rule} → {without_rule}")
    return f"| {' | '.join(cells)} |"


def is_useful(on: Cost, off: Cost) -> bool:
    """Return whether a workload is worse without the heuristic.

    A worse workload breaks a rule, or costs at least 2 % more messages, steps or time.
    """
    pairs = (
        (on.messages, off.messages),
        (on.steps, off.steps),
        (on.milliseconds, off.milliseconds),
    )
    return off.problems > on.problems or any(50 * b >= 51 * a and b > a for a, b in pairs)


def total_text(table: dict[str, Cost]) -> str:
    if not table:
        return "does not end"
    messages = sum(cost.messages for cost in table.values())
    milliseconds = sum(cost.milliseconds for cost in table.values())
    problems = sum(cost.problems for cost in table.values())
    return f"{messages}, {milliseconds} ms" + (
        f", {problems} seeds that broke a rule" * (problems > 0)
    )


HEURISTICS_HEAD = """| rule that is switched off | workload | messages | replans | steps | ms |
| --- | --- | ---: | ---: | ---: | ---: |
"""
CONSTANTS_HEAD = """| constant | half | as it is | double |
| --- | ---: | ---: | ---: |
"""


def tables(
    program: Path, heuristics: list[Heuristic], constants: list[Constant], values: dict[str, int]
) -> dict[str, str]:
    """Return the generated parts of the page by name, and print which heuristics are not useful."""
    constant_settings = [
        f"{name}={n}" for name, value in values.items() for n in (value // 2, 2 * value)
    ]
    names = ["", *(heuristic.name for heuristic in heuristics), *constant_settings]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = dict(zip(names, pool.map(lambda name: costs(program, name), names), strict=True))
    normal_costs = results[""]
    rows = []
    for heuristic in heuristics:
        if not results[heuristic.name]:
            rows.append(f"| {heuristic.name} | all | does not end |  |  |  |")
            continue
        with_rule = normal_costs[heuristic.workload]
        without_rule = results[heuristic.name][heuristic.workload]
        rows.append(row_text(heuristic.name, heuristic.workload, with_rule, without_rule))
        if not is_useful(with_rule, without_rule):
            improved_workloads = [
                name
                for name in normal_costs
                if is_useful(normal_costs[name], results[heuristic.name][name])
            ]
            improved_text = ", ".join(improved_workloads) or "none"
            print(
                f"{heuristic.name} is not useful in {heuristic.workload}, but in: {improved_text}"
            )
    lines = [
        f"| `{constant.name}` = {value} | {total_text(results[f'{constant.name}={value // 2}'])} | "
        f"{total_text(normal_costs)} | {total_text(results[f'{constant.name}={2 * value}'])} |"
        for constant in constants
        if (value := values[constant.name])
    ]
    return {
        "workloads": report_of(program),
        "heuristics": HEURISTICS_HEAD + "\n".join(rows) + "\n",
        "constants": CONSTANTS_HEAD + "\n".join(lines) + "\n",
    }


def with_table(page: str, name: str, table: str) -> str:
    """Return the page with a new table between the two marks of this name."""
    begin, end = f"<!-- {name}: tools/ablations.py -->\n\n", f"\n<!-- end of {name} -->"
    first, last = page.index(begin) + len(begin), page.index(end)
    return page[:first] + table + page[last:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="also write the tables to the page")
    arguments = parser.parse_args()
    heuristics, constants = read_ablations((ROOT / "tools/ablations.toml").read_text())
    values = write_overlay(heuristics, constants)
    new_tables = tables(build(), heuristics, constants, values)
    if arguments.write:
        text = PAGE.read_text()
        for name, table in new_tables.items():
            text = with_table(text, name, table)
        PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
