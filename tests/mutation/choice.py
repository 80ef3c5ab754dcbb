"""Which tests look at a module: those that import it, directly or through the modules that use it."""

import ast
import importlib
from collections import defaultdict, deque
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
FILES_MAX = 14
"""Test files that are tried for one mutant, nearest first; what the nearest do not notice, others rarely do."""
DISTANCE_MAX = 2
_CLUSTERS = ("tests.e2e", "tests.kernel", "tests.real", "tests.abuse", "tests.mutation")
"""Suites that start servers or need root: they check whole products and cost too much for one mutant."""


class Tests(msgspec.Struct, frozen=True):
    """What is run for a module: areas of the vectors first, then files of tests."""

    areas: tuple[str, ...]
    files: tuple[str, ...]


class Imports:
    """Who imports whom, read once out of the code."""

    def __init__(self) -> None:
        self._importers: dict[str, set[str]] = defaultdict(set)
        self._paths: dict[str, str] = {}
        for folder, base in ((ROOT / "src", ROOT / "src"), (ROOT / "tests", ROOT)):
            for path in sorted(folder.rglob("*.py")):
                name = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
                self._paths[name] = str(path.relative_to(ROOT))
        for name, relative in self._paths.items():
            for imported in _imported(ROOT / relative):
                self._importers[imported].add(name)

    def tests_of(self, module: str) -> Tests:
        """The nearest tests; those in the mirrored folder come first among equally near ones."""
        home = Path(*module.split(".")[1:-1])
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
        near = [name for name in distances if name.startswith("tests.") and not name.startswith(_CLUSTERS)]
        adapters = sorted(name for name in near if name.startswith("tests.vectors.adapters."))
        areas = tuple(area for name in adapters for area in importlib.import_module(name).ADAPTERS)
        files = [
            self._paths[name]
            for name in near
            if name.rpartition(".")[2].startswith("test_") and not name.startswith("tests.vectors")
        ]
        by_path = {self._paths[name]: distances[name] for name in near}
        # A plugin is found by its entry point, so that its tests need not import it: names and folders tell, too.
        mirrored = Path("tests") / home
        stem = module.rpartition(".")[2]
        files += [path for path in self._paths.values() if _mirrors(path, mirrored, stem)]

        def nearness(path: str) -> tuple[bool, bool, int, str]:
            is_named = Path(path).stem in (f"test_{stem}", f"test_{stem}s")
            is_beside = mirrored.name in Path(path).parts
            return not is_named, not is_beside, by_path.get(path, DISTANCE_MAX + 1), path

        return Tests(areas, tuple(sorted(set(files), key=nearness)[:FILES_MAX]))


def _mirrors(path: str, mirrored: Path, stem: str) -> bool:
    """Whether a test's name says that it tests the module: in the same room, by its file's name or its folder's."""
    file = Path(path)
    if not file.name.startswith("test_") or file.parts[1] != mirrored.parts[1]:
        return False
    return stem in file.stem or (len(mirrored.parts) > 2 and mirrored.name in file.parts)


def _imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {name for name in found if name.startswith(("koordinator", "tests"))}
