"""A file fits one reading, a function one screen."""

import ast
from pathlib import Path

import koordinator

ROOT = Path(koordinator.__file__).parent
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
"""With decorators left out and the docstring counted: it is read, too."""


def too_long(source: str) -> list[str]:
    """What of a file has more lines than it should."""
    found = []
    if (lines := source.count("\n")) > FILE_LINES_MAX:
        found.append(f"{lines} lines")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                found.append(f"line {node.lineno}: {node.name} has {lines} lines")
    return found


def test_no_file_has_more_than_500_lines_and_no_function_more_than_70() -> None:
    found = {str(path.relative_to(ROOT)): too_long(path.read_text()) for path in sorted(ROOT.rglob("*.py"))}

    assert {path: problems for path, problems in found.items() if problems} == {}


def test_lines_are_counted() -> None:
    function = "@decorated\ndef long():\n" + "    pass\n" * 69

    assert too_long(function) == []
    assert too_long(function + "    pass\n") == ["line 2: long has 71 lines"]
    assert too_long("pass\n" * 500) == []
    assert too_long("pass\n" * 501) == ["501 lines"]
