"""The scheduler's files fit one reading, its functions one screen."""

import ast
from pathlib import Path

import koordinator.scheduler

ROOT = Path(koordinator.scheduler.__file__).parent
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
