"""The pages for users as text: links, commands and names in them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for pattern in ("*.md", "docs/**/*.md") for path in ROOT.glob(pattern))

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_INLINE = re.compile(r"`([^`\n]+)`")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHELLS = ("", "sh", "console", "bash")


class Told(msgspec.Struct, frozen=True):
    """A command line in a page."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)}"


def name_of(page: Path) -> str:
    """The path as people know it."""
    return page.relative_to(ROOT).as_posix()


def links(page: Path) -> list[str]:
    """Targets within this repository."""
    return [target for target in _LINK.findall(page.read_text()) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """What `#…` may follow the page's name: anchors set by hand, and those of its headings."""
    text = page.read_text()
    headings = (re.sub(r"<[^>]*>", "", each).lower() for each in _HEADING.findall(text))
    plain = (re.sub(r"[^\w\- ]", "", each) for each in headings)
    return {each.replace(" ", "-") for each in plain} | set(_ANCHOR.findall(text))


def inline(page: Path) -> list[str]:
    """Texts between backticks, outside of blocks."""
    return _INLINE.findall(_FENCE.sub("", page.read_text()))


def commands(page: Path, programs: frozenset[str]) -> Iterator[Told]:
    """Command lines of these programs: in blocks for a shell, and between backticks."""
    lines = list(inline(page))
    for language, block in _FENCE.findall(page.read_text()):
        if language in _SHELLS:
            lines += block.replace("\\\n", " ").splitlines()
    for line in lines:
        for part in re.split(r"\||&&|;|\$\(", line.removeprefix("$ ")):
            words = _words(part)
            if words and (program := words[0].rsplit("/", 1)[-1]) in programs:
                yield Told(name_of(page), (program, *words[1:]))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError:  # an apostrophe: prose, not a command
        return []
