"""The documentation says where the files of the scheduler stand."""

import re
from pathlib import Path

import koordinator.scheduler

ROOT = Path(koordinator.scheduler.__file__).parent
ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"


def test_the_architecture_page_names_the_files_of_each_room() -> None:
    section = ARCHITECTURE.read_text().split("## The scheduler's rooms\n", 1)[1].split("\n## ", 1)[0]
    rows = (re.findall(r"`([\w./]+)`", line) for line in section.splitlines() if line.startswith("| `"))
    reported = {names[0].rstrip("/"): set(names[1:]) for names in rows if names[0].endswith("/")}
    rooms = [each for each in ROOT.iterdir() if (each / "__init__.py").exists() and each.name != "plugins"]

    there = {room.name: {path.stem for path in room.glob("*.py")} - {"__init__"} for room in rooms}

    assert there == {name: files for name, files in reported.items() if name != "plugins"}
