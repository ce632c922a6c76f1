#!/usr/bin/env python3
"""Check that includes and imports obey the tables of docs/architecture.md.

For C++, the check fails if

- a file includes a room that the row of its own room does not list, or a row lists a room of a
  higher level;
- units form a cycle (x.h and x.cc are one unit);
- a third-party header is used outside the rooms that may use it;
- a pure room reaches threads, system calls or clocks;
- a room has no row, or a row has no room;
- a CMake link list has a room that is not in the row.

For Python, the check fails if an import is not listed in its package's row, if a package has no row
or a row has no package, or if modules import each other in a cycle. The check does not see
importlib.import_module().
"""

from __future__ import annotations

import argparse
import ast
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

STANDARD_HEADERS = set(
    """algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv
    chrono cinttypes climits clocale cmath compare complex concepts condition_variable csetjmp
    csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime cuchar cwchar deque exception
    execution filesystem forward_list fstream functional future initializer_list iomanip ios iosfwd
    iostream istream iterator latch limits list locale map memory memory_resource mutex new
    numbers numeric optional ostream queue random ranges ratio regex scoped_allocator semaphore set
    shared_mutex source_location span sstream stack stdexcept stop_token streambuf string
    string_view syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map
    unordered_set utility valarray variant vector version""".split()
)
SYSTEM_HEADER = re.compile(
    r"^((sys|linux|net|netinet|arpa|asm|bits)/[\w/]+|unistd|fcntl|poll|signal|errno|pthread|sched"
    r"|dirent|pwd|grp|time|spawn|termios|pty|dlfcn|netdb|immintrin|arm_neon|x86intrin|cpuid|stdlib|string"
    r"|stdio|limits|execinfo|syscall|link|ifaddrs)\.h$"
)
# Headers that a pure room must not reach, not even through our own headers.
IMPURE_STANDARD_HEADERS = set(
    """barrier condition_variable csignal ctime execution filesystem fstream future iostream latch
    mutex semaphore shared_mutex stop_token syncstream thread""".split()
)
IMPURE_WORD = re.compile(r"\b(getenv|SystemClock|random_device|(?:steady|system)_clock::now)\b")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
ROOM_CALL = re.compile(r"farandole_room\(\s*NAME\s+(\w+)(.*?)\)", re.DOTALL)
SOURCE_ENDINGS = {".h", ".cc"}
PUBLIC = "include/farandole"
# The package of the shared modules. Only the files directly in its folder belong to it.
SHARED = "farandole"
CORE = f"{SHARED}.core"  # a compiled module, which has no Python source


@dataclass
class Rules:
    """The rules that the page states."""

    levels: dict[str, int] = field(default_factory=dict)
    allowed: dict[str, set[str]] = field(default_factory=dict)
    pure_rooms: set[str] = field(default_factory=set)
    library_rooms: dict[str, set[str]] = field(default_factory=dict)  # header prefix → rooms
    # Python package → packages and libraries that it may import
    imports: dict[str, set[str]] = field(default_factory=dict)


def tables(page: str) -> Iterator[list[list[str]]]:
    """Yield the tables of a Markdown page as rows of cells, the heading first, without the line of
    dashes."""
    rows: list[list[str]] = []
    for line in [*page.splitlines(), ""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
                rows.append(cells)
        elif rows:
            yield rows
            rows = []


def names(cell: str) -> list[str]:
    parts = re.split(r"[,·]", cell.replace("`", ""))
    return [part.strip() for part in parts if part.strip() not in ("", "–", "-")]


def parse_rules(page: str) -> Rules:
    rules = Rules()
    listed: dict[str, list[str]] = {}
    for heading, *rows in tables(page):
        cells = [
            (row[0], name, names(row[2])) for row in rows if len(row) > 2 for name in names(row[1])
        ]
        if heading[:3] == ["level", "room", "may include"]:
            rules.levels |= {room: int(level) for level, room, _ in cells}
            listed |= {room: others for _, room, others in cells}
        elif heading[:3] == ["Python package", "may import", "libraries"]:
            rules.imports |= {
                package: {package, *names(row[1]), *names(row[2])}
                for row in rows
                for package in names(row[0])
            }
        elif heading[:3] == ["library", "headers", "rooms"]:
            rules.library_rooms |= {prefix: set(rooms) for _, prefix, rooms in cells}
    if not rules.levels:
        raise SystemExit("docs/architecture.md has no table `level | room | may include`")
    for pure in re.findall(r"^Pure rooms: *([^.\n]*)\.", page, re.MULTILINE):
        rules.pure_rooms |= set(names(pure))
    for room, others in listed.items():
        rules.allowed[room] = set().union(*(rooms_named(name, rules.levels) for name in others))
    return rules


def rooms_named(name: str, levels: dict[str, int]) -> set[str]:
    """Turn a room's name, `every room`, or `every room at levels a–b` into a set of rooms."""
    if match := re.fullmatch(r"every room at levels (\d+)–(\d+)", name):
        low, high = int(match[1]), int(match[2])
        return {room for room, level in levels.items() if low <= level <= high}
    return set(levels) if name == "every room" else {name}


class Tree:
    """The sources of one checkout, and the room and unit of each."""

    def __init__(self, root: Path, rules: Rules) -> None:
        self.root = root
        self.rules = rules
        self.files = sorted(self.find_files())
        self.includes = {path: self.includes_of(path) for path in self.files}

    def find_files(self) -> Iterator[str]:
        for top in ("include", "src", "apps", "python/bindings", "bench", "tests"):
            for path in (self.root / top).rglob("*"):
                if path.suffix in SOURCE_ENDINGS and path.is_file():
                    yield path.relative_to(self.root).as_posix()

    def includes_of(self, path: str) -> list[tuple[str, str]]:
        text = (self.root / path).read_text()
        return [(kind, target) for kind, target in INCLUDE.findall(text)]

    def resolve(self, path: str, target: str) -> str | None:
        """Return the file of a quoted include, as a path from the root; None if there is none."""
        sibling = posixpath.normpath((Path(path).parent / target).as_posix())
        for candidate in (f"src/{target}", f"include/{target}", sibling):
            if candidate in self.includes:
                return candidate
        return None

    def room_of(self, path: str) -> str:
        parts = path.split("/")
        if parts[0] == "src":
            return parts[1]
        return "/".join(parts[:2]) if parts[0] in ("include", "python") else parts[0]


def is_test(path: str) -> bool:
    return path.startswith("tests/") or re.search(r"_(test|testing)\.(cc|h)$", path) is not None


def unit_of(path: str) -> str:
    return path.rsplit(".", 1)[0]


def check_table(tree: Tree) -> Iterator[str]:
    rules = tree.rules
    for room, allowed in rules.allowed.items():
        for target_room in sorted(allowed - {room}):
            if target_room not in rules.levels:
                yield (
                    f"docs/architecture.md: room {room} may include {target_room}, which has no row"
                )
            elif rules.levels[target_room] > rules.levels[room]:
                yield f"docs/architecture.md: row {room} points up to {target_room}"
    graph = {room: allowed - {room} for room, allowed in rules.allowed.items()}
    graph = {room: others - {"tests", "bench"} for room, others in graph.items()}
    for cycle in cycles(graph):
        yield f"docs/architecture.md: rooms in a cycle: {' → '.join(cycle)}"
    on_disk = {tree.room_of(path) for path in tree.files}
    for room in sorted(on_disk - set(rules.levels)):
        yield f"room {room} holds sources but has no row in docs/architecture.md"
    for room in sorted(set(rules.levels) - on_disk):
        yield f"docs/architecture.md: row {room} has no sources; add the row with its first file"


def check_edges(tree: Tree) -> Iterator[str]:
    for path in tree.files:
        room = tree.room_of(path)
        for kind, target in tree.includes[path]:
            if kind == "<":
                continue
            target_path = tree.resolve(path, target)
            if target_path is None:
                yield f'{path}: includes "{target}", which is not a file of this project'
                continue
            target_room = tree.room_of(target_path)
            if target_room != room and target_room not in tree.rules.allowed.get(room, set()):
                yield f'{path}: room {room} may not include {target_room} ("{target}")'


def check_outside_headers(tree: Tree) -> Iterator[str]:
    for path in tree.files:
        for kind, target in tree.includes[path]:
            if kind == "<" and target not in STANDARD_HEADERS:
                yield from check_outside_header(tree, path, target)


def check_outside_header(tree: Tree, path: str, target: str) -> Iterator[str]:
    room = tree.room_of(path)
    if SYSTEM_HEADER.match(target):
        if room == PUBLIC:
            yield f"{path}: public headers include standard headers only, not <{target}>"
        return
    rooms = next((r for p, r in tree.rules.library_rooms.items() if target.startswith(p)), None)
    if rooms is None:
        yield f"{path}: <{target}> belongs to no library of docs/architecture.md"
    elif room not in rooms and not ("tests" in rooms and is_test(path)):
        yield f"{path}: <{target}> may be included only in {', '.join(sorted(rooms))}"


def check_pure_rooms(tree: Tree) -> Iterator[str]:
    for path in tree.files:
        if tree.room_of(path) not in tree.rules.pure_rooms or is_test(path):
            continue
        text = re.sub(r"//.*", "", (tree.root / path).read_text())
        for word in IMPURE_WORD.findall(text):
            yield f"{path}: a pure room takes the time and settings as arguments, not {word}"
        for chain in impure_chains(tree, path):
            yield f"{path}: a pure room reaches {' → '.join(chain)}"


def impure_chains(tree: Tree, start: str) -> Iterator[list[str]]:
    """Yield the chains of includes from a file to a header of threads, system calls, input or
    output."""
    visited = {start}
    pending: list[tuple[str, list[str]]] = [(start, [])]
    while pending:
        path, chain = pending.pop()
        for kind, target in tree.includes[path]:
            resolved = tree.resolve(path, target) if kind == '"' else None
            if kind == "<" and (target in IMPURE_STANDARD_HEADERS or SYSTEM_HEADER.match(target)):
                yield [*chain, f"<{target}>"]
            elif resolved is not None and resolved not in visited:
                visited.add(resolved)
                pending.append((resolved, [*chain, resolved]))


def check_cycles(tree: Tree) -> Iterator[str]:
    graph: dict[str, set[str]] = {}
    for path in tree.files:
        edges = graph.setdefault(unit_of(path), set())
        for kind, target in tree.includes[path]:
            resolved = tree.resolve(path, target) if kind == '"' else None
            if resolved is not None and unit_of(resolved) != unit_of(path):
                edges.add(unit_of(resolved))
    for cycle in cycles(graph):
        yield f"units in a cycle: {' → '.join(cycle)}"


def cycles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yield at least one cycle of each connected set of cycles. The function searches depth-first,
    and reports the edges that lead back into the current path."""
    finished: set[str] = set()
    for start in sorted(graph):
        trail: list[str] = []
        stack: list[tuple[str, Iterator[str]]] = []
        if start not in finished:
            trail, stack = [start], [(start, iter(sorted(graph[start])))]
        while stack:
            next_node = next(stack[-1][1], None)
            if next_node is None:
                finished.add(trail.pop())
                stack.pop()
            elif next_node in trail:
                yield [*trail[trail.index(next_node) :], next_node]
            elif next_node not in finished:
                trail.append(next_node)
                stack.append((next_node, iter(sorted(graph.get(next_node, ())))))


def check_link_lists(tree: Tree) -> Iterator[str]:
    for path in sorted((tree.root / "src").glob("*/CMakeLists.txt")):
        where = path.relative_to(tree.root)
        for room, arguments in ROOM_CALL.findall(path.read_text()):
            match = re.search(r"\bLINKS\b((?:\s+[a-z_]+)+)", arguments)
            links = set(match[1].split()) if match else set()
            for target_room in sorted(links - tree.rules.allowed.get(room, set())):
                yield f"{where}: room {room} links {target_room}, which its row does not list"


class Modules:
    """The Python modules of one checkout, and their imports."""

    def __init__(self, root: Path, packages: Iterable[str]) -> None:
        self.paths: dict[str, Path] = {}
        for top in {package.split(".")[0] for package in packages}:
            for path in sorted((root / "python" / top).rglob("*.py")):
                parts = path.relative_to(root / "python").with_suffix("").parts
                self.paths[".".join(parts).removesuffix(".__init__")] = path
        self.trees = {name: ast.parse(path.read_text()) for name, path in self.paths.items()}

    def imports_of(self, module: str, deferred: bool = True) -> Iterator[str]:
        """Return the modules that a module imports, including those in `from package import
        module`.

        Without `deferred`, leave out imports within functions.
        """
        pending: list[ast.AST] = [self.trees[module]]
        while pending:
            node = pending.pop()
            if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
                pending += node.orelse
            elif deferred or not isinstance(
                node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
            ):
                pending += ast.iter_child_nodes(node)
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = "." * node.level + (node.module or "")
                full_names = [f"{base}.{alias.name}" for alias in node.names]
                modules = [name for name in full_names if name in self.paths or name == CORE]
                yield from modules if len(modules) == len(full_names) else [base, *modules]


def package_of(module: str, packages: Iterable[str]) -> str:
    """Return the innermost package that has a row and contains the module. If there is none, the
    module belongs to a library, and its top package is returned."""
    enclosing = [p for p in packages if module == p or module.startswith(f"{p}.")]
    return max(enclosing, key=len, default=module.split(".", maxsplit=1)[0])


def check_imports(root: Path, rules: Rules) -> Iterator[str]:
    modules = Modules(root, rules.imports)
    for module, path in modules.paths.items():
        package = package_of(module, rules.imports)
        where = path.relative_to(root)
        if package == SHARED and path.parent != root / "python" / SHARED:
            yield f"{where}: is in no package that has a row in docs/architecture.md"
            continue
        for target in modules.imports_of(module):
            target_package = package_of(target, rules.imports)
            if target_package not in rules.imports[package] | sys.stdlib_module_names:
                yield f"{where}: package {package} may not import {target}"
    for package in sorted(set(rules.imports) - set(modules.paths)):
        yield f"docs/architecture.md: row {package} has no modules"
    all_modules = set(modules.paths)
    graph = {
        name: all_modules & set(modules.imports_of(name, deferred=False)) for name in all_modules
    }
    for cycle in cycles(graph):
        yield f"modules in a cycle: {' → '.join(cycle)}"


def violations(root: Path) -> list[str]:
    tree = Tree(root, parse_rules((root / "docs/architecture.md").read_text()))
    checks = (
        check_table,
        check_edges,
        check_outside_headers,
        check_pure_rooms,
        check_cycles,
    )
    line_groups: list[Iterable[str]] = [check(tree) for check in (*checks, check_link_lists)]
    line_groups.append(check_imports(root, tree.rules))
    return [line for lines in line_groups for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quiet", action="store_true", help="print only what is wrong")
    arguments = parser.parse_args()
    messages = violations(Path(__file__).resolve().parent.parent)
    for line in messages:
        print(line)
    if not arguments.quiet or messages:
        print(f"layers: {len(messages)} violations")
    sys.exit(1 if messages else 0)


if __name__ == "__main__":
    main()
