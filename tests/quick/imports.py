"""Which tests look at a module: those that import it, directly or through the modules that use it."""

import re
from collections import defaultdict, deque
from pathlib import Path

ROOT = Path(__file__).parents[2]
DISTANCE_MAX = 2
"""Modules between a test and what it looks at: who is further away says little about it."""
_CLUSTERS = ("tests.e2e", "tests.kernel", "tests.real", "tests.abuse", "tests.mutation")
"""Suites that start servers or need root: they check whole products."""

_FROM = re.compile(r"^ *from ((?:koordinator|tests)\b[\w.]*) import (\([^)]*\)|[^\n(]*)", re.MULTILINE)
"""The one way in which modules of this project import each other (a tenth of the time of parsing all of it)."""


class Imports:
    """Who imports whom, read once out of the code."""

    def __init__(self, root: Path = ROOT) -> None:
        self._importers: dict[str, set[str]] = defaultdict(set)
        self._paths: dict[str, str] = {}
        for folder, base in ((root / "src", root / "src"), (root / "tests", root)):
            for path in sorted(folder.rglob("*.py")):
                name = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
                self._paths[name] = path.relative_to(root).as_posix()
        for name, relative in self._paths.items():
            for imported in _imported(root / relative):
                self._importers[imported].add(name)
        self._names = {path: name for name, path in self._paths.items()}

    def module_of(self, path: str) -> str | None:
        """The module in this file, by its path below the root; None for what is no module."""
        return self._names.get(path)

    def tests_of(self, module: str) -> dict[str, float]:
        """Files of tests → how far they are from the module, nearest first: 0 for those that bear its name.

        Adapters of the vectors are among them (`tests/vectors/adapters/…`).
        """
        stem = module.rpartition(".")[2]
        mirrored = Path("tests", *module.split(".")[1:-1])
        found: dict[str, float] = {}
        for name, distance in self._near(module).items():
            is_test = name.rpartition(".")[2].startswith("test_") and not name.startswith("tests.vectors")
            if is_test or name.startswith("tests.vectors.adapters."):
                found[self._paths[name]] = 1 + distance
        # A plugin is found by its entry point, so that its tests need not import it: names and folders tell, too.
        for path in self._paths.values():
            if _mirrors(path, mirrored, stem):
                found[path] = min(found.get(path, DISTANCE_MAX + 1), 1 + DISTANCE_MAX)
        for path in found:
            if Path(path).stem in (f"test_{stem}", f"test_{stem}s"):
                found[path] = 0
            elif mirrored.name in Path(path).parts:
                found[path] -= 0.5
        return dict(sorted(found.items(), key=lambda item: (item[1], item[0])))

    def _near(self, module: str) -> dict[str, int]:
        """Modules of tests → how many modules of the project lie between."""
        distances = {module: 0}
        waiting = deque([module])
        while waiting:
            name = waiting.popleft()
            for importer in self._importers[name] - distances.keys():
                # Helpers of tests are as near as what they import; a vector's adapter is such a helper.
                step = 0 if name.startswith("tests.") else 1
                distances[importer] = distances[name] + step
                if distances[importer] <= DISTANCE_MAX:
                    waiting.append(importer)
        return {
            name: distance
            for name, distance in distances.items()
            if name.startswith("tests.") and not name.startswith(_CLUSTERS)
        }


def _mirrors(path: str, mirrored: Path, stem: str) -> bool:
    """Whether a test's name says that it tests the module: in the same room, by its file's name or its folder's."""
    file = Path(path)
    if not file.name.startswith("test_") or len(mirrored.parts) < 2 or file.parts[1] != mirrored.parts[1]:
        return False
    return stem in file.stem or (len(mirrored.parts) > 2 and mirrored.name in file.parts)


def _imported(path: Path) -> set[str]:
    found: set[str] = set()
    for module, names in _FROM.findall(path.read_text(encoding="utf-8")):
        found.add(module)
        found.update(f"{module}.{name.split()[0]}" for name in names.strip("()").split(",") if name.strip())
    return found
