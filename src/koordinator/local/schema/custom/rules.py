"""`x-kubernetes-validations`: rules in CEL for parts of custom resources, compiled once per schema.

A rule that uses `oldSelf` asks about updates only. Ratcheting: what a write leaves as it was is not asked again.
Source: Kubernetes, "Validation rules"; texts are those of the API server.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from koordinator import cel
from koordinator.cel import checker, syntax
from koordinator.cel.overloads import CELType, optional_of
from koordinator.cel.syntax import Name, SyntaxNode
from koordinator.cel.values import NONE, CompileError, OptionalValue
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import errors
from koordinator.local.schema.custom.cel_values import Adapt, adapter, type_of

Json = dict[str, Any]

FIELD = "x-kubernetes-validations"
BUDGET = 50_000
"""Rounds of loops that all rules of one object may take together: some tenths of a second."""
RULES_MAX = 1_000
"""Rules of a schema."""
MESSAGE_MAX = 2048
_REASONS = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
UNCHECKED = errors.invalid(
    "<nil>",
    None,
    "some validation rules were not checked because the object was invalid; correct the existing errors to complete "
    "validation",
)
"""Message beside other errors where there are rules: they see valid objects only."""
_MISSING = object()


# When the definition is written


def check(schema: Json, field: str) -> list[StatusCause]:
    """Return what is wrong with the rules of a schema that is structural otherwise."""
    causes: list[StatusCause] = []
    count = 0
    for node, path, uncorrelatable in _nodes(schema, field, ""):
        for index, rule in enumerate(node.get(FIELD) or ()):
            count += 1
            where = f"{path}.{FIELD}[{index}]"
            causes += _check_rule(rule, node, where, uncorrelatable, is_root=node is schema)
    if count > RULES_MAX:
        causes.append(errors.too_many(field, count, RULES_MAX))
    return causes


def _nodes(schema: Json, field: str, uncorrelatable: str) -> Iterator[tuple[Json, str, str]]:
    """Yield all nodes of a schema with their path, and the list above them whose items cannot be found again."""
    yield schema, field, uncorrelatable
    for name, inner in (schema.get("properties") or {}).items():
        yield from _nodes(inner, f"{field}.properties[{name}]", uncorrelatable)
    more, items = schema.get("additionalProperties"), schema.get("items")
    if isinstance(more, dict):
        yield from _nodes(more, f"{field}.additionalProperties", uncorrelatable)
    if isinstance(items, dict):
        lost = "" if schema.get("x-kubernetes-list-type") == "map" else field
        yield from _nodes(items, f"{field}.items", uncorrelatable or lost)


def _check_rule(
    rule: Json, schema: Json, where: str, uncorrelatable: str, *, is_root: bool
) -> list[StatusCause]:
    text = rule.get("rule") or ""
    if not text.strip():
        return [errors.required(f"{where}.rule", "rule is not specified")]
    causes = _check_words(rule, schema, where)
    own = type_of(schema, is_root=is_root)
    if own is None:
        detail = "rules need a type: nobody says what is in this part of the schema"
        return [*causes, errors.invalid(f"{where}.rule", text, detail)]
    shown = {
        "Rule": text,
        "Message": rule.get("message", ""),
        "MessageExpression": rule.get("messageExpression", ""),
        "Reason": rule.get("reason"),
        "FieldPath": rule.get("fieldPath", ""),
        "OptionalOldSelf": rule.get("optionalOldSelf"),
    }
    variables = _variables(own, rule)
    try:
        if checker.type_of(text, variables).name not in ("bool", "dyn"):
            causes.append(errors.invalid(f"{where}.rule", shown, "cel expression must evaluate to a bool"))
        uses_old = _uses_old(text)
        if uses_old and uncorrelatable and not rule.get("optionalOldSelf"):
            detail = (
                f"oldSelf cannot be used on the uncorrelatable portion of the schema within {uncorrelatable}"
            )
            causes.append(errors.invalid(f"{where}.rule", text, detail))
        if rule.get("optionalOldSelf") is not None and not uses_old:
            detail = "may not be set if oldSelf is not used in rule"
            causes.append(errors.invalid(f"{where}.optionalOldSelf", rule["optionalOldSelf"], detail))
    except CompileError as error:
        causes.append(errors.invalid(f"{where}.rule", shown, f"compilation failed: {checker.marked(error)}"))
    message = rule.get("messageExpression")
    if message:
        causes += _check_message(message, variables, f"{where}.messageExpression", shown)
    return causes


def _check_message(text: str, variables: dict[str, CELType], where: str, shown: Json) -> list[StatusCause]:
    try:
        found = checker.type_of(text, variables)
    except CompileError as error:
        detail = f"messageExpression compilation failed: {checker.marked(error)}"
        return [errors.invalid(where, shown, detail)]
    if found.name in ("string", "dyn"):
        return []
    return [errors.invalid(where, shown, "messageExpression must evaluate to a string")]


def _check_words(rule: Json, schema: Json, where: str) -> list[StatusCause]:
    causes = []
    message, reason, path = rule.get("message") or "", rule.get("reason"), rule.get("fieldPath") or ""
    if "\n" in message:
        causes.append(errors.invalid(f"{where}.message", message, "must not contain line breaks"))
    elif len(message) > MESSAGE_MAX:
        causes.append(errors.too_long(f"{where}.message", MESSAGE_MAX))
    if reason and reason not in _REASONS:
        causes.append(errors.not_supported(f"{where}.reason", reason, _REASONS))
    if path and not _is_there(schema, path):
        causes.append(errors.invalid(f"{where}.fieldPath", path, "must be a valid path"))
    return causes


def _is_there(schema: Json, path: str) -> bool:
    """Return whether `.a.b['c']` leads to a part of the schema."""
    steps = _steps(path)
    if steps is None:
        return False
    for step in steps:
        more = schema.get("additionalProperties")
        below = (schema.get("properties") or {}).get(step, more if isinstance(more, dict) else None)
        if not isinstance(below, dict):
            return False
        schema = below
    return True


def _steps(path: str) -> list[str] | None:
    """Return the names in a path; None for what is no path."""
    found = []
    while path:
        if path.startswith("['") and "']" in path:
            name, _, path = path[2:].partition("']")
        elif path.startswith("."):
            end = min((at for at in (path.find(".", 1), path.find("[", 1)) if at > 0), default=len(path))
            name, path = path[1:end], path[end:]
        else:
            return None
        if not name:
            return None
        found.append(name)
    return found or None


def _variables(own: CELType, rule: Json) -> dict[str, CELType]:
    return {"self": own, "oldSelf": optional_of(own) if rule.get("optionalOldSelf") else own}


def _uses_old(text: str) -> bool:
    return _names_old(syntax.parse(text))


def _names_old(node: SyntaxNode) -> bool:
    if isinstance(node, Name):
        return node.name == "oldSelf"
    parts: list[Any] = [getattr(node, field) for field in node.__struct_fields__]
    while parts:
        part = parts.pop()
        if isinstance(part, tuple):
            parts += part
        elif isinstance(part, SyntaxNode) and _names_old(part):
            return True
    return False


# When objects are written


class _Rule(msgspec.Struct, frozen=True):
    shown: str
    """What stands for the rule in errors: its message, or else its text."""
    program: cel.Program
    message: str
    message_program: cel.Program | None
    reason: str
    path: str
    uses_old: bool
    takes_none: bool
    """Whether the rule is asked about new values, too, with an empty `oldSelf`."""


class _Node(msgspec.Struct):
    """A part of the schema at or below which there are rules."""

    rules: list[_Rule]
    adapt: Adapt | None
    kind: str
    properties: dict[str, "_Node"]
    values: "_Node | None"
    items: "_Node | None"
    keys: list[str] | None
    """Keys of a list whose items can be found again in its older state."""


Validate = Callable[[Json, Json | None], list[StatusCause]]
"""Function that returns what the rules find wrong with an object, given its older state if there is one."""


def compile_rules(schema: Json) -> Validate | None:
    """None for a schema without rules (assumed to have passed `check`; what cannot be compiled is left out)."""
    root = _compiled(schema, is_root=True)
    if root is None:
        return None
    tree = root

    def validate(obj: Json, old: Json | None) -> list[StatusCause]:
        run = _Run()
        before = _MISSING if old is None else old
        run.walk(tree, obj, _Older(before, before, None, is_root=True), "")
        return run.causes

    return validate


def _compiled(schema: Json, *, is_root: bool = False) -> _Node | None:
    more, items = schema.get("additionalProperties"), schema.get("items")
    properties = {
        name: node
        for name, inner in (schema.get("properties") or {}).items()
        if (node := _compiled(inner)) is not None
    }
    values = _compiled(more) if isinstance(more, dict) else None
    below = _compiled(items) if isinstance(items, dict) else None
    rules = [made for rule in schema.get(FIELD) or () if (made := _rule(rule)) is not None]
    if not (rules or properties or values or below):
        return None
    is_keyed = schema.get("x-kubernetes-list-type") == "map"
    return _Node(
        rules=rules,
        adapt=adapter(schema) if rules else None,
        kind=schema.get("type", ""),
        properties=properties,
        values=values,
        items=below,
        keys=schema.get("x-kubernetes-list-map-keys") if is_keyed else None,
    )


def _rule(rule: Json) -> _Rule | None:
    text, message = rule.get("rule", ""), rule.get("messageExpression")
    names = ("self", "oldSelf")
    try:
        return _Rule(
            program=cel.compile_expression(text, names),
            shown=(rule.get("message") or text).strip(),
            message=(rule.get("message") or "").strip() or f"failed rule: {text.strip()}",
            message_program=cel.compile_expression(message, names) if message else None,
            reason=rule.get("reason") or "FieldValueInvalid",
            path=rule.get("fieldPath") or "",
            uses_old=_uses_old(text),
            takes_none=bool(rule.get("optionalOldSelf")),
        )
    except CompileError:
        return None  # stored before rules were evaluated; every write of the definition says what is wrong


class _Older(NamedTuple):
    """What a part was: `for_rules` is the value of `oldSelf`, `value` what ratcheting compares with (or `_MISSING`);
    `nearest` is the nearest part above it that has an older state, with that."""

    for_rules: Any
    value: Any
    nearest: tuple[Any, Any] | None
    is_root: bool = False

    def below(self, holder: Any, for_rules: Any, value: Any) -> "_Older":
        """Return the same for a part of `holder`."""
        has_none = self.is_root or self.value is _MISSING
        return _Older(for_rules, value, self.nearest if has_none else (holder, self.value))

    def is_same(self, value: Any) -> bool:
        """Return whether the update leaves the part as it was; a whole object never is: its metadata differs."""
        if self.is_root:
            return False
        if self.value is not _MISSING:
            return bool(value == self.value)
        return self.nearest is not None and bool(self.nearest[0] == self.nearest[1])


class _Run:
    """One object on its way through the rules."""

    def __init__(self) -> None:
        self.causes: list[StatusCause] = []
        self._budget = cel.Budget(BUDGET)
        self._is_over = False

    def walk(self, node: _Node, value: Any, old: _Older, path: str) -> None:
        """Check the rules of a part and of all below it."""
        if value is None or self._is_over:
            return
        if node.rules:
            self._ask(node, value, old, path)
        if isinstance(value, dict):
            self._walk_object(node, value, old, path)
        elif isinstance(value, list) and node.items is not None:
            known, seen = _by_key(old.for_rules, node.keys), _by_key(old.value, node.keys)
            for index, item in enumerate(value):
                key = _key_of(item, node.keys or [])
                before = old.below(value, known.get(key, _MISSING), seen.get(key, _MISSING))
                self.walk(node.items, item, before, f"{path}[{index}]")

    def _walk_object(self, node: _Node, value: Json, old: _Older, path: str) -> None:
        was = old.for_rules if isinstance(old.for_rules, dict) else {}
        seen = old.value if isinstance(old.value, dict) else {}
        for name, below in node.properties.items():
            if name in value:
                before = old.below(value, was.get(name, _MISSING), seen.get(name, _MISSING))
                self.walk(below, value[name], before, f"{path}.{name}" if path else name)
        if node.values is not None:
            for name, item in value.items():
                before = old.below(value, was.get(name, _MISSING), seen.get(name, _MISSING))
                self.walk(node.values, item, before, f"{path}[{name}]")

    def _ask(self, node: _Node, value: Any, old: _Older, path: str) -> None:
        has_old = old.for_rules is not _MISSING and old.for_rules is not None
        scope: Json = {}
        for rule in node.rules:
            if rule.uses_old and not rule.takes_none and not has_old:
                continue
            try:
                if not scope:
                    scope = _scope(node, value, old.for_rules, has_old=has_old)
                asked = {**scope, "oldSelf": _optional(scope, has_old)} if rule.takes_none else scope
                if rule.program(asked, self._budget) is True:
                    continue
                if rule.uses_old or not old.is_same(value):
                    self._failed(rule, node, value, path, self._message(rule, asked))
            except cel.OutOfBudget:
                self._is_over = True
                detail = "validation failed due to running out of cost budget, no further validation rules will be run"
                self.causes.append(errors.invalid(path or "<nil>", node.kind, detail))
                return
            except cel.EvaluationError as error:
                self.causes.append(errors.invalid(path or "<nil>", node.kind, _error_text(rule, error)))

    def _message(self, rule: _Rule, scope: Json) -> str:
        """Return the rule's message; what the expression for it cannot say in one line, the plain one does."""
        if rule.message_program is None:
            return rule.message
        try:
            said = rule.message_program(scope, self._budget)
        except cel.OutOfBudget:
            raise
        except cel.EvaluationError:
            return rule.message
        text = said.strip() if isinstance(said, str) else ""
        return text if text and "\n" not in text and len(text) <= MESSAGE_MAX else rule.message

    def _failed(self, rule: _Rule, node: _Node, value: Any, path: str, message: str) -> None:
        field = (path + rule.path).lstrip(".") or "<nil>"
        shown = "" if node.kind in ("object", "array") else f": {errors.shown(value)}"
        match rule.reason:
            case "FieldValueRequired":
                text = f"Required value: {message}"
            case "FieldValueForbidden":
                text = f"Forbidden: {message}"
            case "FieldValueDuplicate":
                text = f"Duplicate value{shown}"
            case _:
                text = f"Invalid value{shown}: {message}"
        self.causes.append(StatusCause(reason=rule.reason, message=text, field=field))


def _error_text(rule: _Rule, error: cel.EvaluationError) -> str:
    if error.reason.startswith("no such overload"):
        return (
            f"'{error}': call arguments did not match a supported operator, function or macro signature for rule: "
            f"{rule.shown}"
        )
    return f"{error} evaluating rule: {rule.shown}"


def _scope(node: _Node, value: Any, old: Any, *, has_old: bool) -> Json:
    adapt = node.adapt
    scope = {"self": value if adapt is None else adapt(value)}
    if has_old:
        scope["oldSelf"] = old if adapt is None else adapt(old)
    return scope


def _optional(scope: Json, has_old: bool) -> OptionalValue:
    return OptionalValue(True, scope["oldSelf"]) if has_old else NONE


def _by_key(old: Any, keys: list[str] | None) -> dict[Any, Any]:
    if not keys or not isinstance(old, list):
        return {}
    return {_key_of(item, keys): item for item in old}


def _key_of(item: Any, keys: list[str]) -> tuple[Any, ...]:
    return tuple(item.get(key) for key in keys) if isinstance(item, dict) else ()
