"""Text to tokens, tokens to a tree. Source: the language definition of CEL, "Syntax", "Lexis" and its grammar, with
optional fields (`.?`, `[?]`)."""

import enum
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from koordinator.cel.values import INT_MAX, UINT_MAX, CompileError, UInt


class TokenKind(enum.Enum):
    NAME = "name"
    VALUE = "value"
    SIGN = "sign"
    END = "end"


class Token(msgspec.Struct, frozen=True):
    """`text` of a sign or name; `value` of a literal."""

    kind: TokenKind
    text: str
    position: int
    value: Any = None


_SPACE = re.compile(r"(?:\s+|//[^\n]*)*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+[uU]?|(?:[0-9]*\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?[uU]?")
_STRING = re.compile(
    r"""([bB]?)(\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""",
    re.DOTALL,
)
_RAW_STRING = re.compile(r"([rR][bB]?|[bB][rR])(\"\"\".*?\"\"\"|'''.*?'''|\"[^\"\n]*\"|'[^'\n]*')", re.DOTALL)
_SIGN = re.compile(r"==|!=|<=|>=|&&|\|\||[-+*/%!<>?:.,()\[\]{}]")
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL
)
_ESCAPED = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "?": "?", '"': '"', "'": "'", "`": "`",
}  # fmt: skip
_CONSTANTS = {"true": True, "false": False, "null": None}


def tokens(source: str) -> Iterator[Token]:
    """Yield all tokens, an END last. Raises: CompileError."""
    position = 0
    while True:
        space = _SPACE.match(source, position)
        assert space is not None
        position = space.end()
        if position == len(source):
            yield Token(TokenKind.END, "", position)
            return
        token, position = _next(source, position)
        yield token


def _next(source: str, at: int) -> tuple[Token, int]:
    if found := _RAW_STRING.match(source, at):
        raw = _unquoted(found[2])
        is_bytes = "b" in found[1].lower()
        return Token(TokenKind.VALUE, found[0], at, raw.encode() if is_bytes else raw), found.end()
    if found := _STRING.match(source, at):
        read = _unescaped_bytes if found[1] else _unescaped
        return Token(TokenKind.VALUE, found[0], at, read(source, at, _unquoted(found[2]))), found.end()
    if found := _NAME.match(source, at):
        name = found[0]
        if name in _CONSTANTS:
            return Token(TokenKind.VALUE, name, at, _CONSTANTS[name]), found.end()
        return Token(TokenKind.NAME, name, at), found.end()
    if found := _NUMBER.match(source, at):
        return Token(TokenKind.VALUE, found[0], at, _number(source, at, found[0])), found.end()
    if found := _SIGN.match(source, at):
        return Token(TokenKind.SIGN, found[0], at), found.end()
    raise CompileError(source, at, f"unexpected {source[at]!r}")


def _unquoted(text: str) -> str:
    width = 3 if text[:3] in ('"""', "'''") else 1
    return text[width:-width]


def _unescaped(source: str, at: int, text: str) -> str:
    def char(found: re.Match[str]) -> str:
        number = found[1] or found[2] or found[3]
        if number:
            code = int(number, 16)
        elif found[4]:
            code = int(found[4], 8)
        elif found[5] in _ESCAPED:
            return _ESCAPED[found[5]]
        else:
            raise CompileError(source, at, f"unknown escape \\{found[5]}")
        if code > 0x10FFFF:
            raise CompileError(source, at, f"there is no character {code:#x}")
        return chr(code)

    return _ESCAPE.sub(char, text) if "\\" in text else text


def _unescaped_bytes(source: str, at: int, text: str) -> bytes:
    """Escapes of numbers are bytes; other characters count as their UTF-8."""

    def octets(found: re.Match[str]) -> str:
        if found[2] or found[3]:
            raise CompileError(source, at, "illegal unicode escape sequence in bytes literal")
        number = int(found[1], 16) if found[1] else int(found[4], 8) if found[4] else None
        if number is None:
            return _unescaped(source, at, found[0])
        return bytes((number & 0xFF,)).decode("utf-8", "surrogateescape")

    return _ESCAPE.sub(octets, text).encode("utf-8", "surrogateescape")


def _number(source: str, at: int, text: str) -> int | float:
    if text[-1] in "uU":
        return _unsigned(source, at, text[:-1])
    if text[:2] in ("0x", "0X"):
        number = int(text, 16)
    elif text.isdigit():
        number = int(text)
    else:
        return float(text)
    if number > INT_MAX + 1:  # one more than the largest may follow a minus
        raise CompileError(source, at, "invalid int literal")
    return number


def _unsigned(source: str, at: int, text: str) -> UInt:
    is_hex = text[:2] in ("0x", "0X")
    if not is_hex and not text.isdigit():
        raise CompileError(source, at, "invalid uint literal")
    number = int(text, 16 if is_hex else 10)
    if number > UINT_MAX:
        raise CompileError(source, at, "invalid uint literal")
    return UInt(number)


DEPTH_MAX = 40
"""Nesting of an expression; the compiled one calls itself as deeply."""


class SyntaxNode(msgspec.Struct, frozen=True, kw_only=True):
    """`position` is where errors point to."""

    position: int


class Literal(SyntaxNode, frozen=True, kw_only=True):
    value: Any


class Name(SyntaxNode, frozen=True, kw_only=True):
    name: str


class Select(SyntaxNode, frozen=True, kw_only=True):
    """`target.field`; `is_optional`: `target.?field`."""

    target: SyntaxNode
    field: str
    is_optional: bool = False


class Index(SyntaxNode, frozen=True, kw_only=True):
    target: SyntaxNode
    key: SyntaxNode
    is_optional: bool = False


class Call(SyntaxNode, frozen=True, kw_only=True):
    """A function, or a method when there is a `target`. Operators are functions named by their signs."""

    name: str
    args: tuple[SyntaxNode, ...]
    target: SyntaxNode | None = None


class ListLiteral(SyntaxNode, frozen=True, kw_only=True):
    """`optional`: indexes of items that may be missing (`[?item]`)."""

    items: tuple[SyntaxNode, ...]
    optional: frozenset[int] = frozenset()


class MapLiteral(SyntaxNode, frozen=True, kw_only=True):
    """`optional`: indexes of entries that may be missing (`{?key: value}`)."""

    items: tuple[tuple[SyntaxNode, SyntaxNode], ...]
    optional: frozenset[int] = frozenset()


ROW_MAX = 100
"""Operators of one kind without brackets between them."""
_LOGICAL = 2
"""Levels of operators whose operands may be paired at will."""
_LEVELS = (("||",), ("&&",), ("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/", "%"))


def parse(source: str) -> SyntaxNode:
    """Raises: CompileError."""
    parser = _Parser(source)
    tree = parser.expression()
    parser.expect_end()
    return tree


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._tokens = list(tokens(source))
        self._at = 0
        self._depth = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._token
        self._at += 1
        return token

    def _accepts(self, *texts: str) -> bool:
        """Return whether the next token is one of these signs (or the word `in`), and take it if so."""
        token = self._token
        if token.kind in (TokenKind.SIGN, TokenKind.NAME) and token.text in texts:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accepts(text):
            raise self._error(f"{text!r} expected, not {self._token.text!r}")

    def expect_end(self) -> None:
        if self._token.kind is not TokenKind.END:
            raise self._error(f"unexpected {self._token.text!r}")

    def _error(self, reason: str) -> CompileError:
        return CompileError(self._source, self._token.position, f"Syntax error: {reason}")

    def expression(self) -> SyntaxNode:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error(f"nested more than {DEPTH_MAX} levels deep")
        found = self._binary(0)
        position = self._token.position
        if self._accepts("?"):
            yes = self._binary(0)
            self._expect(":")
            found = Call(position=position, name="?:", args=(found, yes, self.expression()))
        self._depth -= 1
        return found

    def _binary(self, level: int) -> SyntaxNode:
        if level == len(_LEVELS):
            return self._unary()
        operands, signs = [self._binary(level + 1)], list[Token]()
        while True:
            token = self._token
            if not self._accepts(*_LEVELS[level]):
                break
            signs.append(token)
            if len(signs) > ROW_MAX:
                raise self._error(f"more than {ROW_MAX} operators in a row")
            operands.append(self._binary(level + 1))
        return _halved(operands, signs) if level < _LOGICAL else _leftwards(operands, signs)

    def _unary(self) -> SyntaxNode:
        token = self._token
        signs = 0
        while (
            self._accepts(token.text) if token.text in ("!", "-") and token.kind is TokenKind.SIGN else False
        ):
            signs += 1
        if token.text == "-" and signs and self._is_number():
            literal = self._take()
            signs -= 1
            self._at -= 1
            self._tokens[self._at] = Token(TokenKind.VALUE, literal.text, token.position, -literal.value)
        found = self._member()
        for _ in range(signs % 2):
            found = Call(position=token.position, name=f"{token.text}_", args=(found,))
        return found

    def _is_number(self) -> bool:
        token = self._token
        return token.kind is TokenKind.VALUE and type(token.value) in (int, float)

    def _member(self) -> SyntaxNode:
        found = self._primary()
        while True:
            position = self._token.position
            if self._accepts("."):
                is_optional = self._accepts("?")
                name = self._name()
                opening = self._token.position
                if not is_optional and self._accepts("("):
                    position = opening
                    found = Call(position=position, name=name, args=self._arguments(")"), target=found)
                else:
                    found = Select(position=position, target=found, field=name, is_optional=is_optional)
            elif self._accepts("["):
                is_optional = self._accepts("?")
                key = self.expression()
                self._expect("]")
                found = Index(position=position, target=found, key=key, is_optional=is_optional)
            else:
                return found

    def _primary(self) -> SyntaxNode:
        position = self._token.position
        if self._accepts("("):
            found = self.expression()
            self._expect(")")
            return found
        if self._accepts("["):
            optional: set[int] = set()
            items = self._arguments("]", optional)
            return ListLiteral(position=position, items=items, optional=frozenset(optional))
        if self._accepts("{"):
            return self._map(position)
        if self._token.kind is TokenKind.VALUE:
            value = self._take().value
            if type(value) is int and value > INT_MAX:
                raise CompileError(self._source, position, "invalid int literal")
            return Literal(position=position, value=value)
        self._accepts(".")  # names are absolute anyway
        name = self._name()
        opening = self._token.position
        if self._accepts("("):
            return Call(position=opening, name=name, args=self._arguments(")"))
        if self._token.text == "{" and self._token.kind is TokenKind.SIGN:
            raise self._error("messages are not supported")
        return Name(position=position, name=name)

    def _name(self) -> str:
        token = self._token
        if token.kind is not TokenKind.NAME or token.text == "in":
            raise self._error(f"a name expected, not {token.text!r}")
        return self._take().text

    def _arguments(self, end: str, optional: set[int] | None = None) -> tuple[SyntaxNode, ...]:
        """Expressions up to the closing sign; a comma may precede it. Indexes of those after a `?` go to `optional`."""
        found: list[SyntaxNode] = []
        while not self._accepts(end):
            if found:
                self._expect(",")
                if self._accepts(end):
                    break
            if optional is not None and self._accepts("?"):
                optional.add(len(found))
            found.append(self.expression())
        return tuple(found)

    def _map(self, position: int) -> MapLiteral:
        found: list[tuple[SyntaxNode, SyntaxNode]] = []
        optional: set[int] = set()
        while not self._accepts("}"):
            if found:
                self._expect(",")
                if self._accepts("}"):
                    break
            if self._accepts("?"):
                optional.add(len(found))
            key = self.expression()
            self._expect(":")
            found.append((key, self.expression()))
        return MapLiteral(position=position, items=tuple(found), optional=frozenset(optional))


def _leftwards(operands: list[SyntaxNode], signs: list[Token]) -> SyntaxNode:
    found = operands[0]
    for sign, right in zip(signs, operands[1:], strict=True):
        found = Call(position=sign.position, name=sign.text, args=(found, right))
    return found


def _halved(operands: list[SyntaxNode], signs: list[Token]) -> SyntaxNode:
    """Return a tree as flat as can be: long rows are common, and each level is a call."""
    if not signs:
        return operands[0]
    middle = (len(operands) + 1) // 2
    sign = signs[middle - 1]
    left = _halved(operands[:middle], signs[: middle - 1])
    return Call(
        position=sign.position, name=sign.text, args=(left, _halved(operands[middle:], signs[middle:]))
    )


def parts_of(node: SyntaxNode) -> Iterator[SyntaxNode]:
    """Yield the nodes right below one."""
    match node:
        case Select(target=target):
            yield target
        case Index(target=target, key=key):
            yield from (target, key)
        case ListLiteral(items=items):
            yield from items
        case MapLiteral(items=entries):
            for entry in entries:
                yield from entry
        case Call(target=receiver, args=args):
            if receiver is not None:
                yield receiver
            yield from args
