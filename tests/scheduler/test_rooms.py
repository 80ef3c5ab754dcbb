"""The scheduler's files fit one reading, its functions one screen, and the documentation says where they stand."""

import ast
import re
from pathlib import Path

import koordinator.scheduler

ROOT = Path(koordinator.scheduler.__file__).parent
ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70


def test_no_file_of_the_scheduler_has_more_than_500_lines_and_no_function_more_than_70() -> None:
    long: list[str] = []
    for path in sorted(ROOT.rglob("*.py")):
        source = path.read_text()
        count = source.count("\n")
        if count > FILE_LINES_MAX:
            long.append(f"{path.relative_to(ROOT)}: {count} lines")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = (node.end_lineno or node.lineno) - node.lineno + 1
                if count > FUNCTION_LINES_MAX:
                    long.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {count} lines")

    assert long == []


def test_the_architecture_page_names_the_files_of_each_room() -> None:
    section = ARCHITECTURE.read_text().split("## The scheduler's rooms\n", 1)[1].split("\n## ", 1)[0]
    rows = (re.findall(r"`([\w./]+)`", line) for line in section.splitlines() if line.startswith("| `"))
    told = {names[0].rstrip("/"): set(names[1:]) for names in rows if names[0].endswith("/")}
    rooms = [each for each in ROOT.iterdir() if (each / "__init__.py").exists() and each.name != "plugins"]

    there = {room.name: {path.stem for path in room.glob("*.py")} - {"__init__"} for room in rooms}

    assert there == {name: files for name, files in told.items() if name != "plugins"}
