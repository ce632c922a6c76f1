#!/usr/bin/env python3
"""Check that no two files define the same class, enum, function or inline variable.

If two files of a program define different things with one name, C++ says that the behaviour is
undefined. Usually, neither the compiler nor the linker reports it, and the program uses one of the
two definitions for both. Two definitions count as the same if their full names, including the
namespaces, are equal. For functions, the types of the parameters must be equal, too. The check
reads the text with `cpp_functions.py`, so it does not see what macros define.

Names in unnamed namespaces, static functions, members of classes and specialisations of templates
do not count. ALTERNATIVES lists files of which each program contains only one.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from cpp_functions import (
    Scanner,
    Token,
    is_container,
    is_function,
    name_of,
    parameter_group,
    tokens_of,
    top_level,
    without_templates,
)

TOP_FOLDERS = ("include", "src", "apps", "tests", "bench", "python")
KINDS = {"class", "struct", "union", "enum"}
# Each program has one of these entry points.
ENTRY_POINTS = {"main", "LLVMFuzzerTestOneInput"}
ALTERNATIVES = (
    {
        "src/device/cpu/instruction_sets_baseline.cc",
        "src/device/cpu/instruction_sets_x86.cc",
    },
    {"src/control/limits.h", "tests/sim/small_limits/control/limits.h"},
    {"src/engine/shortage_test.cc", "src/rendezvous/store_owner_test.cc"},
)


class Definitions(Scanner):
    """Find what a file defines at the level of namespaces, as (name, line)."""

    def __init__(self, text: str) -> None:
        super().__init__(tokens_of(text))
        self.scopes: list[str] = []
        self.local_scopes = 0  # how many classes and unnamed namespaces are open
        self.defined: list[tuple[str, int]] = []

    def scan_body(self, header: list[Token]) -> list[Token]:
        declaration = without_templates(header)
        words = [token.text for token in declaration]
        if is_container(declaration):
            self.scan_container(header, declaration)
            return []
        if is_function(declaration):
            if "static" not in words:
                self.add(header, function_name(declaration))
        elif words[:1] == ["enum"]:
            self.add(header, class_name(declaration))
        elif "inline" in words:
            self.add(header, variable_name(declaration))
        return super().scan_body(header)

    def scan_container(self, header: list[Token], declaration: list[Token]) -> None:
        """Scan a namespace, a class or a linkage block up to its `}`."""
        words = [token.text for token in declaration]
        is_namespace = "namespace" in words[:2]
        name = "".join(words[words.index("namespace") + 1 :]) if is_namespace else ""
        is_local = not name and words[0] != "extern"
        if KINDS & set(words[:2]):
            self.add(header, class_name(declaration))
        self.scopes += [name] if name else []
        self.local_scopes += is_local
        self.at += 1
        self.scan_declarations()
        self.local_scopes -= is_local
        self.scopes = self.scopes[: len(self.scopes) - bool(name)]

    def add_declaration(self, header: list[Token]) -> None:
        declaration = without_templates(header)
        words = [token.text for token in declaration]
        if "inline" in words and "=" in words and not is_function(declaration):
            self.add(header, variable_name(declaration))

    def add(self, header: list[Token], name: str) -> None:
        is_specialisation = [token.text for token in header[:3]] == ["template", "<", ">"]
        if name and not self.local_scopes and not is_specialisation:
            self.defined.append(("::".join([*self.scopes, name]), header[0].line))


def class_name(declaration: list[Token]) -> str:
    """Return the name of a class or an enum, or '' if it has no name."""
    words = []
    for _, token, _ in top_level(declaration):
        if token.text in (":", "final"):
            break
        words.append(token.text)
    name = words[-1] if re.fullmatch(r"\w+", words[-1]) else ""
    return "" if name in KINDS or words[-2:-1] == ["::"] else name


def function_name(declaration: list[Token]) -> str:
    """Return a function's name and the types of its parameters, or '' for a member function or a
    macro."""
    name = name_of(declaration)
    if name in ENTRY_POINTS or name.isupper() or "::" in name:
        return ""
    group = parameter_group(declaration)
    assert group is not None
    words_before = [token.text for token in declaration[: group[0]]]
    if name == "operator":
        name = (
            " ".join(words_before[words_before.index("operator") :])
            if "operator" in words_before
            else ""
        )
    parameters = declaration[group[0] + 1 : group[0] + group[1] - 1]
    types = [" ".join(type_of(parameter)) for parameter in split_at_commas(parameters)]
    return f"{name}({', '.join(types)})" if name else ""


def split_at_commas(tokens: list[Token]) -> Iterator[list[Token]]:
    part: list[Token] = []
    angles = 0
    for index, token, length in top_level(tokens):
        angles += (token.text == "<") - (token.text == ">")
        if token.text == "," and angles == 0:
            yield part
            part = []
        else:
            part = [*part, *tokens[index : index + length]]
    if part:
        yield part


def type_of(parameter: list[Token]) -> list[str]:
    """Return the words of a parameter without its default value and its name."""
    words = [token.text for token in parameter]
    words = words[: words.index("=")] if "=" in words else words
    if len(words) < 2 or words[-2] in ("::", "const") or not re.fullmatch(r"\w+", words[-1]):
        return words
    return words[:-1]


def variable_name(declaration: list[Token]) -> str:
    words = [token.text for _, token, _ in top_level(declaration)]
    return (words[: words.index("=")] if "=" in words else words)[-1]


def violations(root: Path) -> list[str]:
    places: dict[str, dict[str, int]] = {}
    for path in sorted(path for top in TOP_FOLDERS for path in (root / top).rglob("*")):
        if path.suffix not in (".h", ".cc"):
            continue
        scanner = Definitions(path.read_text())
        scanner.scan_declarations()
        for name, line in scanner.defined:
            places.setdefault(name, {}).setdefault(path.relative_to(root).as_posix(), line)
    return [
        f"{name} is defined in {' and in '.join(f'{path}:{line}' for path, line in lines.items())}"
        for name, lines in sorted(places.items())
        if len(lines) > 1 and not any(set(lines) <= files for files in ALTERNATIVES)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.parse_args()
    messages = violations(Path(__file__).resolve().parent.parent)
    for line in messages:
        print(line)
    print(f"definitions: {len(messages)} names with several definitions")
    sys.exit(1 if messages else 0)


if __name__ == "__main__":
    main()
