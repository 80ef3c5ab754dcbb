"""Hooks of the docs site (mkdocs.yml): pages outside of docs/, and links to files that are no pages."""

import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ALSO = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages at the top of the repository."""
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages at the top as if they lay in docs/."""
    for name in ALSO:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links at where the site has the page; a link to any other file of the repository becomes its path."""
    here = PurePosixPath(page.file.src_uri)
    place = here if here.name in ALSO else PurePosixPath("docs") / here

    def moved(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = _normal(place.parent / target)
        name = path.relative_to("docs") if path.is_relative_to("docs") else path
        if files.get_file_from_path(str(name)) is not None:
            return f"[{text}]({_relative(name, here.parent)}{anchor})"
        if not (ROOT / path).exists():
            return match[0]  # MkDocs will say so
        return f"`{path}`" if text.strip("`") in (str(path), target) else f"{text} (`{path}`)"

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if _FENCE.match(part) else _LINK.sub(moved, part) for part in parts)


def _normal(path: PurePosixPath) -> PurePosixPath:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return PurePosixPath(*parts)


def _relative(path: PurePosixPath, base: PurePosixPath) -> str:
    common = 0
    while common < min(len(path.parts) - 1, len(base.parts)) and path.parts[common] == base.parts[common]:
        common += 1
    return "/".join([".."] * (len(base.parts) - common) + list(path.parts[common:]))
