"""Text to tokens. Source: the language definition of CEL, "Syntax" and "Lexis"."""

import enum
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from koordinator.cel.errors import CompileError


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
    r"""([rRbB]{0,2})(\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""",
    re.DOTALL,
)
_RAW_STRING = re.compile(r"[rR](\"\"\".*?\"\"\"|'''.*?'''|\"[^\"\n]*\"|'[^'\n]*')", re.DOTALL)
_SIGN = re.compile(r"==|!=|<=|>=|&&|\|\||[-+*/%!<>?:.,()\[\]{}]")
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL
)
_ESCAPED = {
    "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v",
    "\\": "\\", "?": "?", '"': '"', "'": "'", "`": "`",
}  # fmt: skip
_CONSTANTS = {"true": True, "false": False, "null": None}
INT_MIN, INT_MAX = -(2**63), 2**63 - 1


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
        return Token(TokenKind.VALUE, found[0], at, _unquoted(found[1])), found.end()
    if found := _STRING.match(source, at):
        if found[1]:
            raise CompileError(source, at, "byte strings are not supported")
        return Token(TokenKind.VALUE, found[0], at, _unescaped(source, at, _unquoted(found[2]))), found.end()
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


def _number(source: str, at: int, text: str) -> int | float:
    if text[-1] in "uU":
        raise CompileError(source, at, "unsigned numbers are not supported")
    if text[:2] in ("0x", "0X"):
        number = int(text, 16)
    elif text.isdigit():
        number = int(text)
    else:
        return float(text)
    if number > INT_MAX + 1:  # one more than the largest may follow a minus
        raise CompileError(source, at, "the number does not fit 64 bits")
    return number
