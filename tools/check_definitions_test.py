"""Test the check of definitions on pairs of files that do or do not define the same name."""

from __future__ import annotations

from pathlib import Path

import pytest

from check_definitions import ALTERNATIVES, violations

ROOT = Path(__file__).resolve().parent.parent


def check(root: Path, first: str, second: str) -> list[str]:
    for name, text in {"src/a/x.h": first, "src/b/y.cc": second}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"namespace farandole {{\n{text}\n}}\n")
    return violations(root)


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ("class Relay {};", "class Relay { int a = 0; };", "farandole::Relay"),
        ("struct Failure { int a; };", "enum class Failure : int { kNone };", "farandole::Failure"),
        ("template <class T>\nclass A final : public B<T> {};", "union A {};", "farandole::A"),
        ("class [[nodiscard]] LOCK(\"mutex\") A {};", "struct alignas(8) A {};", "farandole::A"),
        ("namespace b::c { struct A {}; }", "namespace b { namespace c { class A {}; } }",
         "farandole::b::c::A"),
        ("inline int f(int a, B<int, int>& b) { return a; }",
         "int f(int c = 1, B<int, int>& = g()) { return 0; }",
         "farandole::f(int, B < int , int > &)"),
        ("inline bool operator==(const A& a, const A& b) { return a.c == b.c; }",
         "bool operator==(const A& one, const A& two) { return true; }",
         "farandole::operator = =(const A &, const A &)"),
        ("inline constexpr int kMax = 1;", "inline constexpr int kMax{2};", "farandole::kMax"),
        ("namespace { class A {}; }\nclass B {};", "class A {};\nclass B {};", "farandole::B"),
    ],
)  # fmt: skip
def test_a_name_that_two_files_define_is_reported(
    tmp_path: Path, first: str, second: str, name: str
) -> None:
    (found,) = check(tmp_path, first, second)
    assert found.startswith(f"{name} is defined in src/a/x.h:")
    assert " and in src/b/y.cc:" in found


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("class A;", "class A {};"),
        ("class A {};", "namespace { class A {}; }"),
        ("class A {};", "namespace b { class A {}; }"),
        ("class A { struct State {}; };", "struct State {};"),
        ("class A { class B; };", "class A::B { };\nvoid A::f() { struct B {}; }"),
        ("int f(int a);", "int f(int a) { return a; }"),
        ("inline int f(int a) { return a; }", "int f(long a) { return 0; }"),
        ("inline int f(int a) { return a; }", "static int f(int a) { return 0; }"),
        ("template <> struct hash<A> {};", "template <> struct hash<B> {};"),
        ("template <> int f(int a) { return a; }", "template <> int f(int a) { return 0; }"),
        ("constexpr int kMax = 1;", "constexpr int kMax = 2;"),
        ("// class A {};", 'const char* text = "class A {}"; class A {};'),
        ("int main() { return 0; }", "int main() { return 1; }"),
        ("TEST(A, B) { EXPECT_TRUE(true); }", "TEST(A, B) { EXPECT_TRUE(false); }"),
    ],
)
def test_other_names_are_not_reported(tmp_path: Path, first: str, second: str) -> None:
    assert check(tmp_path, first, second) == []


def test_a_name_in_one_file_twice_is_for_the_compiler(tmp_path: Path) -> None:
    assert check(tmp_path, "int f() { return 0; }\nint f() { return 1; }", "") == []


def test_alternatives_may_define_the_same_name(tmp_path: Path) -> None:
    for name in ALTERNATIVES[0]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("int f() { return 0; }\n")
    assert violations(tmp_path) == []


def test_all_alternatives_exist() -> None:
    assert [name for names in ALTERNATIVES for name in names if not (ROOT / name).exists()] == []
