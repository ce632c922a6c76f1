"""Test the scanner on the kinds of code that a counter of braces gets wrong."""

from __future__ import annotations

import pytest

from cpp_functions import Function, functions, without_comments_and_strings


def only_function(text: str) -> Function:
    (found,) = functions(text)
    return found


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("void f() {}", "f", 0),
        ("void f(void) {}", "f", 0),
        ("int f(int a, std::map<int, int> b) { return 1; }", "f", 2),
        ("template <class T, class U>\nrequires (sizeof(T) > 1)\nvoid f(T a) {}", "f", 1),
        ("template <Scalar T = std::pair<int, int>> void f(T a, T b) {}", "f", 2),
        ("A::A(int a, int b) : a_(a), b_{b} {}", "A::A", 2),
        ("A::A(int a) noexcept(noexcept(g(a, 1))) : B(a, 1, 2) {}", "A::A", 1),
        ("A::~A() { close(); }", "A::~A", 0),
        ("auto f(int a) -> std::pair<int, int> { return {a, a}; }", "f", 1),
        ("bool operator()(int a, int b) const { return a < b; }", "operator", 2),
        ("A& A::operator=(A&& other) noexcept { return *this; }", "operator", 1),
        ("void f(std::function<void(int, int)> g, int b = h(1, 2)) {}", "f", 2),
        ("[[nodiscard]] static Status f(int a) REQUIRES(lock_) { return g(a); }", "f", 1),
        ("TEST(Ring, sums) { EXPECT_TRUE(x); }", "TEST", 2),
        ("virtual void f(int a) = 0;", "f", 1),
        ("A(const A&) = delete;", "A", 1),
        ("extern \"C\" { void f(int a); }", "f", 1),
        ("extern \"C\" int f(int a) { return a; }", "f", 1),
        ("struct alignas(64) A { operator bool() const { return true; } };", "bool", 0),
    ],
)  # fmt: skip
def test_finds_a_function(text: str, name: str, parameters: int) -> None:
    found = only_function(text)
    assert (found.name, found.parameters) == (name, parameters)


@pytest.mark.parametrize(
    "text",
    [
        "struct A { int a = 1; std::array<int, 2> b{1, 2}; };",
        "inline constexpr std::array<Row, 2> kRows = {{ {1, \"a\"}, {2, \"b\"} }};",
        "struct alignas(128) Line { int a; };",
        "typedef struct { int a; } A;",
        "enum class Color : std::uint8_t { kRed, kBlue };",
        "using F = void (*)(int, int, int, int, int, int, int);",
        "static_assert(sizeof(A) == 1, \"why\");",
        "#define CHECK(a, b) do { if (!(a)) f(b); } while (false)\nint x;",
        "// void f() {\nint x; /* void g() { */",
        "const char* text = R\"(void f() { if (a) {)\";",
        "namespace a::b { class C; }",
    ],
)  # fmt: skip
def test_finds_no_function(text: str) -> None:
    assert functions(text) == []


def nesting_of_body(text: str) -> int:
    return only_function(f"void f() {{ {text} }}").nesting


@pytest.mark.parametrize(
    ("text", "nesting"),
    [
        ("g();", 0),
        ("{ { g(); } }", 0),
        ("if (a) g();", 1),
        ("if (a) { g(); } else if (b) { g(); } else { g(); }", 1),
        ("if (a) g(); else { for (;;) g(); }", 2),
        ("for (int i = 0; i < 2; ++i) while (a) if (b) g();", 3),
        ("for (auto& x : xs) switch (x) { case 1: if (a) g(); break; default: g(); }", 3),
        ("do { if (a) g(); } while (b); if (c) g();", 2),
        ("try { g(); } catch (const E& e) { if (a) g(); }", 2),
        ("auto h = [&](int a) { if (a) g(); }; if (b) h(1);", 1),
        ("if (a) run([&] { for (;;) g(); });", 2),
        ("std::ranges::sort(x, [](auto a, auto b) -> bool { if (a) return b; return a; });", 1),
        ("std::vector<int> x{1, 2}; S s = {.a = 1, .b = {2}}; if (a) g();", 1),
        ("if constexpr (sizeof(T) == 1) { g('}', \"{\"); }", 1),
        ("if (auto x = g(); x) [[likely]] { for (;;) {} }", 2),
        ("struct L { int m() { if (a) return 1; return 2; } }; if (a) g();", 1),
        ("return A{1, [&] { while (a) g(); }};", 1),
    ],
)
def test_nesting_counts_control_statements(text: str, nesting: int) -> None:
    assert nesting_of_body(text) == nesting


def test_lines_run_from_the_first_word_to_the_closing_brace() -> None:
    text = "int x;\n\ntemplate <class T>\nvoid f(T a,\n       T b) {\n  g();\n}\nvoid h() {}\n"
    assert [(f.name, f.line, f.lines) for f in functions(text)] == [("f", 3, 5), ("h", 8, 1)]


def test_methods_inside_classes_and_after_access_labels() -> None:
    text = """
    class A final : public B<int>, private C {
     public:
      explicit A(int a) : a_(a) {}
      int get() const { return a_; }
     private:
      enum Kind { kX };
      struct Inner { void f() {} } inner_;
      int a_ = 0;
    };
    void after() {}
    """
    assert [f.name for f in functions(text)] == ["A", "get", "f", "after"]


def test_blanking_keeps_the_lines() -> None:
    text = (
        'a /* one\n two */ b // three\n"four\\"" R"x(five\n)" six)x" 1\'000 \'}\'\n#if A \\\n B\nc'
    )
    assert without_comments_and_strings(text).count("\n") == text.count("\n")
    assert "one" not in without_comments_and_strings(text)
    assert "B" not in without_comments_and_strings(text)
    assert "1'000" in without_comments_and_strings(text)
