"""Citations of behaviour pages: `behaviour/koordlet-act 4.2 and 4.3` is docs/behaviour/koordlet-act.md#4.2."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.docs.pages import ROOT

_BLANK = r"(?:\s|\n\s*#:?\s)+"  # a blank, or the end of a line of prose
_SECTION = rf"(?:part{_BLANK}[A-J]|[A-J]?\d+(?:\.\d+)*|[A-J]\b)"
_NEXT = rf"(?:{_BLANK}\([^)]*\))?(?:,?{_BLANK}(?:and{_BLANK}|to{_BLANK})?|-){_SECTION}(?!\w)"
_CITATION = re.compile(rf"\bbehaviour/([a-z-]+)(?:{_BLANK}({_SECTION}(?!\w)(?:{_NEXT})*))?")


class Citation(msgspec.Struct, frozen=True):
    """One section of a page that a file names; the whole page when the anchor is empty."""

    file: str
    page: Path
    anchor: str

    def __str__(self) -> str:
        return f"{self.file}: {self.page.name}#{self.anchor}"


def citations(file: Path) -> Iterator[Citation]:
    """All citations in this file, one per section."""
    name = file.relative_to(ROOT).as_posix()
    for page, sections in _CITATION.findall(file.read_text()):
        path = ROOT / "docs" / "behaviour" / f"{page}.md"
        found = re.findall(_SECTION, re.sub(r"\([^)]*\)", "", sections))
        for section in found or [""]:
            anchor = re.sub(r"\s+|#", "", section).replace("part", "part-")
            yield Citation(name, path, f"part-{anchor}" if re.fullmatch("[A-J]", anchor) else anchor)
