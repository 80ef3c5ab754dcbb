"""Adapters translate: what they answer is decided by the product."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ADAPTERS = sorted((Path(__file__).parent / "adapters").glob("[!_]*.py"))
SRC = Path(__file__).parents[2] / "src"
SHARE_MAX = 0.5
"""Lines of an adapter per line of the modules that it asks."""


def asked(adapter: Path) -> Iterator[Path]:
    """Modules of the product that an adapter imports; those of wire formats only where they are what it is about."""
    for node in ast.walk(ast.parse(adapter.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("koordinator."):
            package = SRC / str(node.module).replace(".", "/")
            for path in (package.with_suffix(".py"), *(package / f"{each.name}.py" for each in node.names)):
                if path.exists() and (
                    "api" not in path.relative_to(SRC).parts or adapter.name.startswith("api_")
                ):
                    yield path


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.stem)
def test_an_adapter_is_far_shorter_than_what_it_translates(adapter: Path) -> None:
    own = len(adapter.read_text().splitlines())
    whole = sum(len(path.read_text().splitlines()) for path in set(asked(adapter)))

    assert own <= SHARE_MAX * whole, f"{own} lines for {whole}"
