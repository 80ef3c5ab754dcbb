"""Hooks of the docs site (mkdocs.yml): pages outside of docs/, and links to files that are no pages."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # `mkdocs` as a program does not look here, `python -m mkdocs` does

from benchmarks._record import history  # noqa: E402

ALSO = ("CONTRIBUTING.md", "CHANGELOG.md")
"""Pages at the top of the repository."""
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_ITEM = re.compile(r"^( *)([*-] +|\d+\. +)(?=\S)")
_BLOCK = re.compile(r"( *)(\||[*-] +\S|\d+\. +\S|```)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages at the top as if they lay in docs/, and the runs of benchmarks."""
    from mkdocs.structure.files import File  # tests read this module without MkDocs

    for name in ALSO:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    files.append(File.generated(config, "benchmark-runs.md", content=_benchmark_runs()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
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

    return "\n".join(_as_python_markdown(markdown, lambda line: _LINK.sub(moved, line)))


def _as_python_markdown(markdown: str, change: Callable[[str], str]) -> Iterator[str]:
    """Pages are written for CommonMark: a list or a table may follow a line of text, and what belongs to an item stands
    below its text. Python-Markdown wants an empty line before, and four blanks per level. `change` is applied to
    lines outside of blocks of code.
    """
    items: list[int] = []
    """Columns of the texts of the open items."""
    before, fence, margin = "", None, ""
    for line in markdown.split("\n"):
        indent = len(line) - len(line.lstrip())
        if fence is not None:
            yield margin + line[min(fence, indent) :] if line.strip() else line
            if line.strip() == "```":
                fence, before = None, "code"
            continue
        if not line.strip():
            yield ""
            before = ""
            continue
        while items and indent < items[-1] and (_ITEM.match(line) or not before):
            items.pop()
        item = _ITEM.match(line)
        depth = len([column for column in items if column <= indent])
        if _BLOCK.match(line) and before and not _BLOCK.match(before) and not (items and item):
            yield ""
        if item:
            items.append(item.end())
        if line.lstrip().startswith("```"):
            fence, margin = indent, "    " * depth
        yield "    " * depth + (line.lstrip() if fence is not None else change(line.lstrip()))
        before = line


def _benchmark_runs() -> str:
    """What benchmarks printed, the newest run of each first."""
    parts = [
        "# Benchmark runs\n\n[Measured](performance.md) says what figures mean. These are the runs that were kept with"
        " `python -m benchmarks NAME --record`, as printed. Load is how many processes wanted a core before the run."
    ]
    for name, runs in history().items():
        parts.append(f"## {name}")
        for run in reversed(runs):
            machine = run.machine
            parts.append(
                f"{run.date}, commit `{run.commit}`, {machine.cores} × {machine.cpu}, {machine.memory_gib} GiB,"
                f" {machine.kernel}, Python {machine.python}, load {machine.load}, {run.seconds} s:"
            )
            parts.append("\n".join(("```text", *run.lines, "```")))
    return "\n\n".join(parts) + "\n"


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
