"""Test the layer check on small correct trees, and on trees with one defect each."""

from __future__ import annotations

from pathlib import Path

import pytest

from check_layers import cycles, parse_rules, violations

PAGE = """
| level | room | may include | promise |
| --- | --- | --- | --- |
| 0 | include/farandole | – | contract |
| 0 | base | include/farandole | words |
| 1 | coordination · device | base, include/farandole | decisions |
| 4 | engine | every room at levels 0–3 | the loop |
| 5 | tests | every room | journeys |

Pure rooms: coordination.

| library | headers | rooms |
| --- | --- | --- |
| fmt | `fmt/` | base, engine |
| GoogleTest | `gtest/`, `gmock/` | tests |

| Python package | may import | libraries | promise |
| --- | --- | --- | --- |
| farandole | – | cloudpickle | shared |
| farandole.torch · farandole.jax | farandole | torch | frontends |
| horovod | farandole, farandole.torch | – | names |

| another | table |
| --- | --- |
| not | ours |
"""

CORRECT_TREE = {
    "include/farandole/status.h": "#include <string>\n",
    "src/base/check.h": '#include "farandole/status.h"\n',
    "src/base/check.cc": '#include "base/check.h"\n#include <fmt/core.h>\n#include <unistd.h>\n',
    "src/base/check_test.cc": '#include "base/check.h"\n#include <gtest/gtest.h>\n',
    "src/base/lock.h": "#include <mutex>\n",
    "src/device/sum.h": '#include "base/lock.h"\n',
    "src/coordination/plan.h": '#include "base/check.h"\n#include <vector>\n',
    "src/coordination/plan_test.cc": "#include <thread>\n#include <gmock/gmock.h>\n",
    "src/engine/loop.cc": '#include "coordination/plan.h"\n#include "device/sum.h"\n',
    "tests/sim/world.cc": '#include "engine/loop.h"\n#include "near.h"\n',
    "tests/sim/near.h": "",
    "src/engine/loop.h": "",
    "python/farandole/__init__.py": "from farandole import calls, core\nimport cloudpickle, sys\n",
    "python/farandole/calls.py": "def later():\n    import farandole\n",
    "python/farandole/torch/__init__.py": "from farandole.torch.optimizer import Optimizer\n",
    "python/farandole/torch/optimizer.py": "import torch.optim\nfrom farandole import calls\n",
    "python/farandole/jax/__init__.py": "import os.path\nimport farandole.core\n",
    "python/horovod/__init__.py": "from farandole.torch import optimizer\n",
    "src/engine/CMakeLists.txt": "farandole_room(NAME engine SOURCES loop.cc LINKS base device)\n",
}


def check(root: Path, changes: dict[str, str], page: str = PAGE) -> list[str]:
    for name, text in ({"docs/architecture.md": page} | CORRECT_TREE | changes).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return violations(root)


def test_accepts_what_the_page_allows(tmp_path: Path) -> None:
    assert check(tmp_path, {}) == []


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("src/base/up.cc", '#include "engine/loop.h"', "room base may not include engine"),
        ("src/base/up_test.cc", '#include "engine/loop.h"', "room base may not include engine"),
        ("src/device/a.cc", '  #  include "coordination/plan.h"', "may not include coordination"),
        ("include/farandole/x.h", '#include "base/check.h"', "may not include base"),
        ("include/farandole/x.h", "#include <unistd.h>", "standard headers only"),
        ("src/device/a.cc", "#include <fmt/core.h>", "only in base, engine"),
        ("src/device/a.cc", "#include <gtest/gtest.h>", "only in tests"),
        ("src/device/a.cc", "#include <boost/any.hpp>", "belongs to no library"),
        ("src/device/a.cc", '#include "device/lost.h"', "which is not a file of this project"),
        ("src/attic/a.cc", "", "room attic holds sources but has no row"),
        ("src/coordination/a.cc", "#include <thread>", "a pure room reaches <thread>"),
        ("src/coordination/a.cc", "#include <sys/socket.h>", "reaches <sys/socket.h>"),
        ("src/coordination/a.h", '#include "base/lock.h"', "reaches src/base/lock.h → <mutex>"),
        ("src/coordination/a.cc", 'auto x = getenv("X");', "not getenv"),
        ("src/coordination/a.cc", "std::chrono::steady_clock::now();", "not steady_clock::now"),
        (
            "src/device/CMakeLists.txt",
            "farandole_room(NAME device LINKS base engine)",
            "links engine",
        ),
        ("python/farandole/calls.py", "import torch", "farandole may not import torch"),
        ("python/farandole/more.py", "from farandole import torch", "not import farandole.torch"),
        ("python/farandole/calls.py", "def f(): import farandole.jax", "not import farandole.jax"),
        ("python/farandole/jax/a.py", "import farandole.torch.optimizer", "farandole.torch.optim"),
        ("python/farandole/jax/a.py", "from . import b", "farandole.jax may not import ."),
        ("python/farandole/mxnet/a.py", "", "is in no package that has a row"),
        ("python/horovod/a.py", "import yaml", "package horovod may not import yaml"),
    ],
)
def test_each_defect_is_reported(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    found = check(tmp_path, {name: text})
    assert len(found) == 1
    assert complaint in found[0]


def test_finds_a_cycle_of_units_through_a_source_file(tmp_path: Path) -> None:
    changes = {
        "src/base/a.h": '#include "base/b.h"\n',
        "src/base/b.cc": '#include "base/c.h"\n',
        "src/base/b.h": "",
        "src/base/c.h": '#include "base/a.h"\n',
    }
    (found,) = check(tmp_path, changes)
    assert found == "units in a cycle: src/base/a → src/base/b → src/base/c → src/base/a"


def test_finds_a_cycle_of_python_modules(tmp_path: Path) -> None:
    changes = {
        "python/farandole/a.py": "from farandole import b\n",
        "python/farandole/b.py": "import farandole.a\n",
    }
    (found,) = check(tmp_path, changes)
    assert found == "modules in a cycle: farandole.a → farandole.b → farandole.a"


def test_an_import_for_types_only_does_not_count(tmp_path: Path) -> None:
    text = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import farandole.torch\n"
    assert check(tmp_path, {"python/farandole/a.py": text}) == []


def test_rejects_a_row_without_a_python_package(tmp_path: Path) -> None:
    page = PAGE.replace("farandole.jax |", "farandole.jax · farandole.mxnet |")
    (found,) = check(tmp_path, {}, page)
    assert found == "docs/architecture.md: row farandole.mxnet has no modules"


def test_a_comment_may_name_what_is_forbidden(tmp_path: Path) -> None:
    assert check(tmp_path, {"src/coordination/a.cc": "// no getenv here\n"}) == []


def test_rejects_a_table_that_points_up_or_has_a_cycle(tmp_path: Path) -> None:
    up = PAGE.replace("| 0 | base | include/farandole |", "| 0 | base | engine |")
    found = check(tmp_path, {}, up)
    assert "docs/architecture.md: row base points up to engine" in found
    assert any("rooms in a cycle" in line for line in found)


def test_rejects_a_row_without_sources(tmp_path: Path) -> None:
    page = PAGE.replace("| 5 | tests |", "| 5 | apps | base | x |\n| 5 | tests |")
    (found,) = check(tmp_path, {}, page)
    assert "row apps has no sources" in found


def test_parses_ranges_of_levels() -> None:
    rules = parse_rules(PAGE)
    assert rules.allowed["engine"] == {"include/farandole", "base", "coordination", "device"}
    assert rules.allowed["tests"] == set(rules.levels)
    assert rules.allowed["include/farandole"] == set()


def test_a_page_without_a_table_is_an_error() -> None:
    with pytest.raises(SystemExit, match="has no table"):
        parse_rules("# Architecture\n")


def test_finds_each_set_of_cycles_of_a_graph() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": set(), "x": {"y"}, "y": {"x", "a"}}
    assert list(cycles(graph)) == [["x", "y", "x"]]
