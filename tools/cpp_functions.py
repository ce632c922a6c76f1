"""Find the functions of C++ code with their lines, parameters and nesting.

This is not a compiler: it blanks comments, strings and preprocessor lines, cuts the rest into
tokens, and follows blocks by their braces. That is enough for code in the style of this project.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.']*|::|->|\S")
CONTROLS = {"if", "for", "while", "switch", "catch"}
AFTER_PARAMETERS = {"const", "noexcept", "override", "final", "mutable", "&"}
OPENING = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True)
class Function:
    name: str
    line: int
    last_line: int
    parameters: int
    # if, for, while, switch, do and try inside each other; an else-if chain counts once
    nesting: int

    @property
    def lines(self) -> int:
        return self.last_line - self.line + 1


@dataclass(frozen=True)
class Token:
    text: str
    line: int


def without_comments_and_strings(text: str) -> str:
    """Replace comments, string contents and preprocessor lines by spaces; keep the lines."""
    pattern = re.compile(
        r'R"(?P<mark>[^()\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![\w])\'(?:\\.|[^\'\\\n])+\''
        r"|//(?:\\\n|[^\n])*|/\*.*?\*/|^[ \t]*#(?:\\\n|[^\n])*",
        re.DOTALL | re.MULTILINE,
    )

    def replace(match: re.Match[str]) -> str:
        lines = "\n" * match[0].count("\n")
        return f'""{lines}' if match[0][0] in "\"'R" else lines

    return pattern.sub(replace, text)


def tokens_of(text: str) -> list[Token]:
    tokens = []
    for number, line in enumerate(without_comments_and_strings(text).split("\n"), start=1):
        tokens += [Token(match[0], number) for match in TOKEN.finditer(line)]
    return tokens


def functions(text: str) -> list[Function]:
    scanner = Scanner(tokens_of(text))
    scanner.scan_declarations()
    return sorted(scanner.found, key=lambda function: function.line)


class Scanner:
    """Walk through the tokens once, statement by statement."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = [*tokens, *[Token("", tokens[-1].line if tokens else 1)] * 2]
        self.at = 0
        self.found: list[Function] = []

    @property
    def word(self) -> str:
        return self.tokens[self.at].text

    def scan_declarations(self) -> None:
        """Scan a namespace, a class or the file, up to the closing brace or the end."""
        header: list[Token] = []
        while self.word not in ("", "}"):
            if self.word == ";" or (self.word == ":" and is_access_label(header)):
                self.add_declaration(header)
                header = []
            elif self.word == "{":
                header = self.scan_body(header)
            elif self.word in OPENING:
                header += self.take_group()
                continue
            else:
                header.append(self.tokens[self.at])
            self.at += 1

    def scan_body(self, header: list[Token]) -> list[Token]:
        """Scan the body of a function, a namespace or a class up to its `}`.

        If the `{` begins an initializer instead, return the header with the initializer.
        """
        declaration = without_templates(header)
        if is_function(declaration) and not is_container(declaration):
            self.at += 1
            nesting = self.scan_block(0)
            parameters = count_parameters(declaration)
            start, end = header[0].line, self.tokens[self.at].line
            self.found.append(Function(name_of(declaration), start, end, parameters, nesting))
            return []
        if is_container(declaration):
            self.at += 1
            self.scan_declarations()
            return []
        header = [*header, *self.take_group()]
        self.at -= 1
        return header

    def add_declaration(self, header: list[Token]) -> None:
        declaration = without_templates(header)
        if not declaration or declaration[0].text in (
            "using",
            "typedef",
            "static_assert",
            "friend",
            "extern",
        ):
            return
        if is_function(declaration):
            parameters = count_parameters(declaration)
            line = header[0].line
            self.found.append(Function(name_of(declaration), line, line, parameters, 0))

    def take_group(self) -> list[Token]:
        """Return the tokens from an opening bracket to the closing one, and move past both."""
        start = self.at
        expected: list[str] = []
        while self.word:
            if self.word in OPENING:
                expected.append(OPENING[self.word])
            elif expected and self.word == expected[-1]:
                expected.pop()
            self.at += 1
            if not expected:
                break
        return self.tokens[start : self.at]

    def scan_block(self, depth: int) -> int:
        """Scan statements, and stop at a `}`. Return the deepest nesting inside."""
        deepest = depth
        while self.word not in ("", "}"):
            deepest = max(deepest, self.scan_statement(depth))
        return deepest

    def scan_braces(self, depth: int) -> int:
        """Scan a block from its `{` and move past its `}`."""
        self.at += 1
        deepest = self.scan_block(depth)
        self.at += 1
        return deepest

    def scan_statement(self, depth: int) -> int:
        if self.word == "{":
            return self.scan_braces(depth)
        if self.word in CONTROLS:
            return self.scan_control(depth)
        if self.word in ("do", "try"):
            self.at += 1
            return self.scan_statement(depth + 1)
        if self.word in ("case", "default"):
            while self.word not in ("", ":", "{", "}"):
                self.at += 1
            self.at += self.word == ":"
            return depth
        return self.scan_expression(depth)

    def scan_control(self, depth: int) -> int:
        is_if = self.word == "if"
        self.at += 1
        while self.word in ("constexpr", "consteval", "!"):
            self.at += 1
        deepest = self.scan_expression_group(depth)
        if self.tokens[self.at - 1].text == ")" and self.word == ";":  # `while (…);` ends a do loop
            self.at += 1
            return deepest
        while self.word == "[" and self.tokens[self.at + 1].text == "[":
            self.take_group()
        deepest = max(deepest, self.scan_statement(depth + 1))
        if is_if and self.word == "else":
            self.at += 1
            inner = (
                self.scan_control(depth) if self.word == "if" else self.scan_statement(depth + 1)
            )
            deepest = max(deepest, inner)
        return deepest

    def scan_expression(self, depth: int) -> int:
        """Scan up to and past the `;`, or up to a `}` that does not belong to the expression."""
        deepest = depth
        while self.word not in ("", "}"):
            if self.word == ";":
                self.at += 1
                break
            deepest = max(deepest, self.scan_expression_part(depth))
        return deepest

    def scan_expression_part(self, depth: int) -> int:
        if self.word == "{" and self.opens_lambda():
            return self.scan_braces(depth)
        if self.word in OPENING:
            return self.scan_expression_group(depth)
        self.at += 1
        return depth

    def scan_expression_group(self, depth: int) -> int:
        """Scan a bracketed part of an expression, with its lambdas, and move past its end."""
        closing = OPENING.get(self.word)
        self.at += 1
        deepest = depth
        while self.word and self.word != closing:
            deepest = max(deepest, self.scan_expression_part(depth))
        self.at += 1
        return deepest

    def opens_lambda(self) -> bool:
        before = self.at - 1
        if any(token.text == "->" for token in self.tokens[max(0, before - 6) : before]):
            return True
        return self.tokens[before].text in {")", "]"} | AFTER_PARAMETERS


def is_container(header: list[Token]) -> bool:
    """Tell whether a `{` after this header opens a namespace, a class or a linkage block."""
    words = [token.text for token in header]
    if "=" in words:
        return False
    if words[:1] == ["extern"]:
        return len(words) == 3  # these are extern and the two quotes of "C"
    return bool({"namespace", "class", "struct", "union"} & set(words[:2])) and "enum" not in words


def is_access_label(header: list[Token]) -> bool:
    return len(header) == 1 and header[0].text in ("public", "private", "protected")


def without_templates(header: list[Token]) -> list[Token]:
    """Return the header without `template <…>` and attributes at its beginning."""
    tokens = header
    while tokens and (tokens[0].text == "template" or tokens[0].text == "["):
        skipped_count = (
            1 + angle_length(tokens[1:]) if tokens[0].text == "template" else group_length(tokens)
        )
        tokens = tokens[skipped_count:]
    return tokens


def angle_length(tokens: list[Token]) -> int:
    depth = 0
    for index, token in enumerate(tokens):
        depth += (token.text == "<") - (token.text == ">")
        if depth == 0:
            return index + 1
    return len(tokens)


def group_length(tokens: list[Token]) -> int:
    expected: list[str] = []
    for index, token in enumerate(tokens):
        if token.text in OPENING:
            expected.append(OPENING[token.text])
        elif expected and token.text == expected[-1]:
            expected.pop()
        if not expected:
            return index + 1
    return len(tokens)


def top_level(tokens: list[Token]) -> Iterator[tuple[int, Token, int]]:
    """Yield (index, token, length) for each token outside brackets. A bracketed group counts as one
    token, its first one."""
    index = 0
    while index < len(tokens):
        length = group_length(tokens[index:]) if tokens[index].text in OPENING else 1
        yield index, tokens[index], length
        index += length


def parameter_group(header: list[Token]) -> tuple[int, int] | None:
    """Return index and length of a function header's parameter list."""
    group = None
    previous_word = ""
    for index, token, length in top_level(header):
        if token.text in ("=", "->", "requires") and previous_word != "operator" and group:
            break
        if token.text == ":" and group:  # member initialisers
            break
        is_annotation = previous_word in ("noexcept", "decltype") or (
            group and previous_word.isupper()
        )
        if token.text == "(" and not is_annotation:
            group = (index, length)
        previous_word = token.text
    return group


def is_function(header: list[Token]) -> bool:
    """Tell whether `header`, the tokens before a `{` or a `;`, declares a function."""
    group = parameter_group(header)
    if group is None or group[0] == 0:
        return False
    words = [token.text for _, token, _ in top_level(header)]
    if "=" in words and "operator" not in words[: words.index("=") + 1]:
        return header[-1].text in ("default", "delete", "0") and words.index("=") > words.index("(")
    if ":" in words and words.index(":") > words.index("("):  # member initialisers
        return header[-1].text in (")", "}")
    return True


def name_of(header: list[Token]) -> str:
    group = parameter_group(header)
    words = [token.text for token in header[: group[0] if group else len(header)]]
    name = ""
    for word in reversed(words):
        continues_name = word in ("::", "~") or name.startswith(("::", "~"))
        if not re.fullmatch(r"\w+|::|~", word) or (name and not continues_name):
            break
        name = word + name
    return name or "operator"


def count_parameters(header: list[Token]) -> int:
    group = parameter_group(header)
    if group is None:
        return 0
    parameters = header[group[0] + 1 : group[0] + group[1] - 1]
    if not parameters or [token.text for token in parameters] == ["void"]:
        return 0
    commas = angles = 0
    for _, token, _ in top_level(parameters):
        angles += (token.text == "<") - (token.text == ">")
        commas += token.text == "," and angles == 0
    return commas + 1
