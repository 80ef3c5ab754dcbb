"""Find whether a value of one type can stand where another is asked for, with types that are not known yet.

Source: the type checker of cel-go. A free type (`_var0`) is bound when it is first compared.
"""

from collections.abc import Iterator, Sequence

from koordinator.cel.overloads import DYN, CELType

Bindings = dict[str, CELType]

_PRIMITIVE = frozenset(("bool", "int", "uint", "double", "string", "bytes"))
_NEVER_NULL = _PRIMITIVE | {"list", "map", "type"}
FREE = "_var"
"""Names of free types begin with it."""


def is_free(one: CELType) -> bool:
    return one.name.startswith(FREE)


def is_assignable(binds: Bindings, a: CELType, b: CELType) -> bool:
    """Return whether `a` fits `b`; binds free types if so, and leaves them as they were otherwise."""
    return are_assignable(binds, (a,), (b,))


def are_assignable(binds: Bindings, first: Sequence[CELType], second: Sequence[CELType]) -> bool:
    """Return the same for types in pairs."""
    tried = dict(binds)
    if len(first) != len(second) or not all(_fits(tried, a, b) for a, b in zip(first, second, strict=True)):
        return False
    binds.clear()
    binds.update(tried)
    return True


def _fits(binds: Bindings, a: CELType, b: CELType) -> bool:
    if is_free(b):
        is_valid, was_bound = _substituted(binds, a, b)
        if is_valid or was_bound:
            return is_valid
    if is_free(a):
        return _substituted(binds, b, a)[0]
    if "dyn" in (a.name, b.name):
        return True
    if a.name == "null" or b.name == "null":
        other = b if a.name == "null" else a
        return other.name == "null" or other.name not in _NEVER_NULL
    if a.name == b.name == "type":
        return True
    return (
        a.name == b.name
        and len(a.of) == len(b.of)
        and all(_fits(binds, x, y) for x, y in zip(a.of, b.of, strict=True))
    )


def _substituted(binds: Bindings, one: CELType, free: CELType) -> tuple[bool, bool]:
    """Return whether a type can be what a free one stands for, and whether that stood for something."""
    if one == free:
        return True, True
    bound = binds.get(free.name)
    if bound is not None:
        if one == bound:
            return True, True
        if not _fits(binds, one, bound):
            return False, True
        general = most_general(one, bound)
        if not _occurs(binds, free, general):
            binds[free.name] = general
        return True, True
    if _occurs(binds, free, one):
        return False, False
    binds[free.name] = one
    return True, False


def _occurs(binds: Bindings, free: CELType, within: CELType) -> bool:
    if free == within:
        return True
    if is_free(within):
        bound = binds.get(within.name)
        return bound is not None and _occurs(binds, free, bound)
    return any(_occurs(binds, free, part) for part in within.of)


def most_general(a: CELType, b: CELType) -> CELType:
    """Return the wider of two types that fit each other."""
    return a if _is_as_general(a, b) else b


def _is_as_general(a: CELType, b: CELType) -> bool:
    if a == DYN or is_free(a):
        return True
    if b == DYN or is_free(b) or a.name != b.name or len(a.of) != len(b.of):
        return False
    return a.name == "type" or all(_is_as_general(x, y) for x, y in zip(a.of, b.of, strict=True))


def filled(binds: Bindings, one: CELType, *, with_dyn: bool = False) -> CELType:
    """Return a type with what free ones stand for; `with_dyn`: those that stand for nothing become dyn."""
    if is_free(one):
        bound = binds.get(one.name)
        if bound is not None:
            return filled(binds, bound, with_dyn=with_dyn)
        return DYN if with_dyn else one
    if not one.of:
        return one
    return CELType(one.name, tuple(filled(binds, part, with_dyn=with_dyn) for part in one.of), one.fields)


def fresh(types: Sequence[CELType], numbers: Iterator[int]) -> list[CELType]:
    """Return the types of a signature with free types of their own for its letters."""
    letters: dict[str, CELType] = {}

    def renamed(one: CELType) -> CELType:
        if len(one.name) == 1 and one.name.isupper():
            if one.name not in letters:
                letters[one.name] = CELType(f"{FREE}{next(numbers)}")
            return letters[one.name]
        return CELType(one.name, tuple(map(renamed, one.of)), one.fields) if one.of else one

    return [renamed(one) for one in types]
