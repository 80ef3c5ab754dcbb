"""The faults that a module can be given: one operator, constant or condition changed at a time."""

import ast
from collections.abc import Iterator

import msgspec

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OTHER: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


class Mutant(msgspec.Struct, frozen=True, order=True):
    """A fault: the text between two offsets of the file's characters becomes `text`."""

    path: str
    line: int
    start: int
    end: int
    text: str
    about: str

    def applied(self, source: str) -> str:
        """The file with the fault."""
        return source[: self.start] + self.text + source[self.end :]


def mutants(path: str, source: str) -> list[Mutant]:
    """All faults of a file, in its order. Annotations, docstrings and logging are left alone."""
    tree = ast.parse(source)
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = source.splitlines(keepends=True)

    def offset(line: int, byte: int) -> int:
        return starts[line - 1] + len(lines[line - 1].encode()[:byte].decode())

    found = set()
    for node, changed, about in _changes(tree):
        assert node.end_lineno is not None and node.end_col_offset is not None
        start, end = offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
        rest = "\n" * (node.end_lineno - node.lineno)  # All that follows stays on its line.
        found.add(Mutant(path, node.lineno, start, end, f"({ast.unparse(changed)}{rest})", about))
    return sorted(found)


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """An expression, what it becomes, and what that is called."""
    for node in _decisive(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            operator = _OPPOSITE[type(node.ops[0])]()
            yield node, ast.Compare(node.left, [operator], node.comparators), "comparison"
        elif isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, ast.BoolOp(other, node.values), "and/or"
            for left_out in range(len(node.values)):
                rest = [each for n, each in enumerate(node.values) if n != left_out]
                yield node, rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest), "part of a condition"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, node.operand, "not"
        elif isinstance(node, ast.BinOp) and type(node.op) in _OTHER:
            yield node, ast.BinOp(node.left, _OTHER[type(node.op)](), node.right), "arithmetic"
        elif isinstance(node, ast.IfExp):
            yield node, ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse), "choice"
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            changed = (not node.value) if isinstance(node.value, bool) else node.value + 1
            yield node, ast.Constant(changed), "constant"
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max")
        ):
            name = ast.Name("max" if node.func.id == "min" else "min", ast.Load())
            yield node, ast.Call(name, node.args, node.keywords), "min/max"


def _decisive(node: ast.AST) -> Iterator[ast.expr]:
    """Expressions of functions, without annotations, assertions, raised errors, logging and f-strings."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield from _with_children(child.value)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in child.body:
                yield from _with_children(statement)
            for default in (*child.args.defaults, *child.args.kw_defaults):
                if default is not None:
                    yield from _with_children(default)
        elif not isinstance(child, ast.expr | ast.Import | ast.ImportFrom | ast.arguments):
            yield from _with_children(child)


def _with_children(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr | ast.Slice):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return  # An assertion, in another form.
    if isinstance(node, ast.Expr) and (isinstance(node.value, ast.Constant) or _is_logging(node.value)):
        return
    if isinstance(node, ast.expr):
        yield node
    if isinstance(node, ast.expr | ast.comprehension | ast.keyword):
        for child in ast.iter_child_nodes(node):
            yield from _with_children(child)
        return
    if isinstance(node, ast.If | ast.While):
        yield from _with_children(node.test)
    elif isinstance(node, ast.Return | ast.Expr | ast.Assign | ast.AugAssign) and node.value is not None:
        yield from _with_children(node.value)
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield from _with_children(node.iter)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.match_case | ast.ExceptHandler):
            if isinstance(child, ast.AnnAssign | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _decisive(ast.Module([child], []))
            else:
                yield from _with_children(child)
        elif isinstance(child, ast.withitem):
            yield from _with_children(child.context_expr)


def _is_logging(node: ast.expr) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_call and isinstance(node.func.value, ast.Name) and node.func.value.id == "log"  # type: ignore[attr-defined]
