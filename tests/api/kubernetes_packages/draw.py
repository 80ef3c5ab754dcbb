"""Share what random questions to packages of Kubernetes are drawn from: texts and objects at the edges of the rules."""

import random
from typing import Any

Json = dict[str, Any]

DIGITS = (
    "0",
    "1",
    "5",
    "9",
    "00",
    "007",
    "1000",
    "1023",
    "1024",
    "1025",
    "1536",
    "123456789",
    "9223372036854775807",
)
SUFFIXES = ("", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
EXPONENTS = ("e3", "E3", "e-3", "e+3", "e0", "E06", "e1", "e-9", "e-10", "e18", "e2", "E-1", "e20")
ODD = (
    "",
    " ",
    "+",
    "-",
    ".",
    "e",
    "e3",
    "1e",
    "1e+",
    "1 ",
    " 1",
    "K",
    "1K",
    "1ki",
    "1mi",
    "1i",
    "1Zi",
    "m",
    "k",
    "Ki",
    "-E",
    ".",
    ".m",
    "0x10",
    "1_000",
    "--1",
    "+-1",
    "1..2",
    "1.2.3",
    "1e3e3",
    "1e3k",
    "1ke3",
    "1m1",
    "٣",
    "1\n",
    "NaN",
    "inf",
    "1,5",
    "1Eii",
    "1e1.5",
)
RESOURCES = (
    "cpu",
    "memory",
    "hugepages-2Mi",
    "ephemeral-storage",
    "kubernetes.io/batch-cpu",
    "nvidia.com/gpu",
)
AMOUNTS = (
    "0",
    "1",
    "500m",
    "1500m",
    "2",
    "0.1",
    "100u",
    "1Gi",
    "1024Mi",
    "1e3",
    "1.5Gi",
    "3G",
    "128974848",
    2,
    0,
)
KEYS = ("app", "tier", "example.com/a", "a.b/c", "A_b.c")
VALUES = ("", "web", "db", "Web", "1", "a-b_c.d", "x" * 63)
BAD_KEYS = (
    "",
    "/",
    "a/",
    "/a",
    "-a",
    "a-",
    "a b",
    "A.com/x",
    "x" * 64,
    "a/b/c",
    "ä",
    f"{'x' * 254}/a",
    "a..b/c",
    "a!",
)
BAD_VALUES = ("-a", "a-", "a b", "x" * 64, "ä", "a/b", "a,b", ".")


class Draw(random.Random):
    """A source of random questions of one kind."""

    def __init__(self, kind: str, number: int) -> None:
        super().__init__(f"{kind} {number}")

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def some(self, known: Any, most: int) -> list[Any]:
        return self.sample(list(known), self.randint(0, min(most, len(known))))


# Quantities


def quantity_text(draw: Draw) -> str:
    """A text that is a quantity, or nearly."""
    if draw.chance(0.08):
        return draw.choice(ODD)
    whole, part = _digits(draw), _digits(draw)
    number = draw.choice((whole, whole, f"{whole}.{part}", f"{whole}.", f".{part}"))
    sign = draw.choice(("", "", "", "-", "+"))
    text = f"{sign}{number}{draw.choice(EXPONENTS if draw.chance(0.3) else SUFFIXES)}"
    if draw.chance(0.08):
        at = draw.randint(0, len(text))
        text = f"{text[:at]}{draw.choice('0.-+mkiK _x')}{text[at + draw.randint(0, 1) :]}"
    return text


def _digits(draw: Draw) -> str:
    kind = draw.random()
    if kind < 0.5:
        return draw.choice(DIGITS)
    if kind < 0.8:
        return str(draw.randint(0, 10 ** draw.randint(1, 6)))
    return "".join(draw.choices("0123456789", k=draw.randint(1, 30)))


def json_number(draw: Draw) -> Any:
    """A quantity as it may stand in JSON."""
    kind = draw.random()
    if kind < 0.4:
        return draw.choice((1, -1)) * draw.randint(0, 10 ** draw.randint(0, 19))
    if kind < 0.7:
        return draw.choice((1, -1)) * draw.random() * 10 ** draw.randint(-9, 15)
    if kind < 0.8:
        return draw.choice((None, True, False, [], {}, "null", 0.1, 1e20, 1e-7, 1e200, -0.0))
    return f"{draw.choice(('', ' ', '  '))}{quantity_text(draw)}{draw.choice(('', ' '))}"


# Pods


def pod(draw: Draw) -> Json:
    """A pod with all that counts for its amounts and its QoS class."""
    containers = [_container(draw, f"c{each}") for each in range(draw.randint(1, 3))]
    init = [_init_container(draw, f"i{each}") for each in range(draw.choice((0, 0, 1, 2, 4)))]
    spec: Json = {"containers": containers, "initContainers": init}
    if draw.chance(0.3):
        spec["overhead"] = _amounts(draw)
    if draw.chance(0.35):
        spec["resources"] = _requirements(draw)
    status: Json = {}
    if draw.chance(0.4):
        status["containerStatuses"] = [_status(draw, each["name"]) for each in containers if draw.chance(0.8)]
        status["initContainerStatuses"] = [_status(draw, each["name"]) for each in init if draw.chance(0.8)]
        if draw.chance(0.4):
            status["resources"] = _requirements(draw)
            status["allocatedResources"] = _amounts(draw)
    if draw.chance(0.2):
        status["qosClass"] = draw.choice(("Guaranteed", "Burstable", "BestEffort"))
    if draw.chance(0.3):
        reason = draw.choice(("Infeasible", "Deferred", ""))
        status["conditions"] = [{"type": "PodResizePending", "status": "True", "reason": reason}]
    return {"metadata": {"name": "p", "namespace": "default"}, "spec": spec, "status": status}


def _container(draw: Draw, name: str) -> Json:
    return {"name": name, "resources": _requirements(draw)} if draw.chance(0.9) else {"name": name}


def _init_container(draw: Draw, name: str) -> Json:
    return _container(draw, name) | ({"restartPolicy": "Always"} if draw.chance(0.5) else {})


def _status(draw: Draw, name: str) -> Json:
    found: Json = {"name": name}
    if draw.chance(0.8):
        found["resources"] = _requirements(draw)
    if draw.chance(0.6):
        found["allocatedResources"] = _amounts(draw)
    return found


def _requirements(draw: Draw) -> Json:
    kind = draw.random()
    if kind < 0.1:
        return {}
    if kind < 0.4:
        same = {"cpu": draw.choice(AMOUNTS), "memory": draw.choice(AMOUNTS)}
        return {"requests": same, "limits": dict(same)}
    drawn = {"requests": _amounts(draw), "limits": _amounts(draw)}
    return {name: amounts for name, amounts in drawn.items() if amounts}


def _amounts(draw: Draw) -> Json:
    return {name: draw.choice(AMOUNTS) for name in draw.some(RESOURCES, 4)}


# Labels


def label_sets(draw: Draw) -> list[dict[str, str]]:
    """Labels of a few objects."""
    return [{key: draw.choice(VALUES) for key in draw.some(KEYS, 4)} for _ in range(4)]


def label_selector(draw: Draw) -> Json:
    """A selector, as likely as not with something in it that no label can have."""
    bad = 0.05 if draw.chance(0.5) else 0.0
    found: Json = {}
    if draw.chance(0.5):
        found["matchLabels"] = {_key(draw, bad): _value(draw, bad) for _ in range(draw.randint(0, 2))}
    if draw.chance(0.7):
        found["matchExpressions"] = [_expression(draw, bad) for _ in range(draw.randint(0, 3))]
    return found


def _expression(draw: Draw, bad: float) -> Json:
    operator = draw.choice(("In", "NotIn", "Exists", "DoesNotExist"))
    if draw.chance(bad):
        operator = draw.choice(("", "in", "Equals", "Gt"))
    has_values = (operator in ("In", "NotIn")) != draw.chance(bad)
    values = {"values": [_value(draw, bad) for _ in range(draw.randint(1, 3))]} if has_values else {}
    return {"key": _key(draw, bad), "operator": operator, **values}


def _key(draw: Draw, bad: float) -> str:
    return draw.choice(BAD_KEYS if draw.chance(bad) else KEYS)


def _value(draw: Draw, bad: float) -> str:
    return draw.choice(BAD_VALUES if draw.chance(bad) else VALUES)


_TOKENS = (
    ",",
    ",",
    "(",
    ")",
    "=",
    "==",
    "!=",
    "!",
    " in ",
    " notin ",
    "in",
    "notin",
    " ",
    ">",
    "<",
    "\t",
    "a",
    "1",
)


def selector_text(draw: Draw) -> str:
    """A selector as text, now and then with a token too many or too few."""
    text = draw.choice((",", ", ", " ,")).join(_requirement(draw) for _ in range(draw.randint(0, 3)))
    if draw.chance(0.4):
        at = draw.randint(0, len(text))
        text = f"{text[:at]}{draw.choice(_TOKENS)}{text[at + draw.randint(0, 1) :]}"
    return text


def _requirement(draw: Draw) -> str:
    key, space = _key(draw, 0.02), draw.choice(("", "", " ", "  "))
    kind = draw.random()
    if kind < 0.2:
        return f"{draw.choice(('', '!', '! '))}{space}{key}{space}"
    if kind < 0.6:
        return f"{space}{key}{space}{draw.choice(('=', '==', '!='))}{space}{_value(draw, 0.02)}{space}"
    if kind < 0.7:
        bound = draw.choice(("0", "1", "-1", "07", "1.5", "x", "", "99999999999999999999"))
        return f"{key}{space}{draw.choice('<>')}{space}{bound}"
    values = f"{space},{space}".join(_value(draw, 0.02) for _ in range(draw.randint(0, 3)))
    return f"{key} {space}{draw.choice(('in', 'notin'))}{space}({space}{values}{space}){space}"


# Taints


def taint(draw: Draw) -> Json:
    return {
        "key": draw.choice(("a", "b", "")),
        "value": draw.choice(_NUMBERS),
        "effect": draw.choice(("NoSchedule", "PreferNoSchedule", "NoExecute", "")),
    }


def toleration(draw: Draw) -> Json:
    found = {
        "key": draw.choice(("a", "b", "")),
        "operator": draw.choice(("", "Equal", "Exists", "Lt", "Gt", "equal", "In")),
        "value": draw.choice(_NUMBERS),
        "effect": draw.choice(("NoSchedule", "PreferNoSchedule", "NoExecute", "", "")),
    }
    return {name: each for name, each in found.items() if each or draw.chance(0.5)}


_NUMBERS = (
    "",
    "a",
    "0",
    "1",
    "2",
    "-1",
    "-0",
    "+1",
    "01",
    " 1",
    "1.0",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "x",
    "--1",
    "1\n",
    "-",
    "١",
)


# NUMA hints


def hint_lists(draw: Draw, nodes: int) -> list[Json]:
    """Hints of some providers, by resource."""
    return [
        {f"r{each}": _hints(draw, nodes) for each in range(draw.randint(0, 2))}
        for _ in range(draw.randint(0, 3))
    ]


def _hints(draw: Draw, nodes: int) -> list[Json] | None:
    kind = draw.random()
    if kind < 0.08:
        return None
    if kind < 0.14:
        return []
    return [
        {"any": True, "preferred": draw.chance(0.8)}
        if draw.chance(0.05)
        else {"nodes": draw.sample(range(nodes), draw.randint(1, nodes)), "preferred": draw.chance(0.6)}
        for _ in range(draw.randint(1, 4))
    ]


# CPUs


def cpu_list(draw: Draw) -> str:
    """A list of CPUs as text, or nearly one."""
    items = []
    for _ in range(draw.randint(0, 5)):
        first = draw.randint(0, 40)
        items.append(
            draw.choice((str(first), str(first), f"{first}-{first + draw.randint(-2, 9)}", f"0{first}"))
        )
    text = ",".join(items)
    if draw.chance(0.3):
        at = draw.randint(0, len(text))
        text = f"{text[:at]}{draw.choice(',- +x_0.1')}{text[at + draw.randint(0, 1) :]}"
    return text
