"""Builders of slices, classes, claims and pods that use them."""

from typing import Any

from tests.scheduler.world import pod

Json = dict[str, Any]
DRIVER = "gpu.example.com"


def device(name: str, *, taints: list[Json] | None = None, memory: str = "80Gi", **attributes: Any) -> Json:
    kinds = {bool: "bool", int: "int", str: "string"}
    return {
        "name": name,
        "attributes": {key: {kinds[type(value)]: value} for key, value in attributes.items()},
        "capacity": {"memory": {"value": memory}},
        "taints": taints or [],
    }


def resource_slice(
    name: str,
    *devices: Json,
    node: str = "",
    pool: str = "",
    generation: int = 1,
    count: int = 1,
    **reach: Any,
) -> Json:
    where: Json = {"nodeName": node} if node else (reach or {"allNodes": True})
    return {
        "metadata": {"name": name},
        "spec": {
            "driver": DRIVER,
            "pool": {"name": pool or node or name, "generation": generation, "resourceSliceCount": count},
            **where,
            "devices": list(devices),
        },
    }


def selector(*expressions: str) -> list[Json]:
    return [{"cel": {"expression": expression}} for expression in expressions]


def device_class(name: str = "gpu", *expressions: str, **spec: Any) -> Json:
    expressions = expressions or (f"device.driver == '{DRIVER}'",)
    return {"metadata": {"name": name}, "spec": {"selectors": selector(*expressions), **spec}}


def exactly(name: str = "req", count: int = 1, device_class_name: str = "gpu", **more: Any) -> Json:
    if more.get("allocationMode") != "All":
        more["count"] = count
    return {"name": name, "exactly": {"deviceClassName": device_class_name, **more}}


def claim(name: str, *requests: Json, constraints: Any = (), config: Any = ()) -> Json:
    devices: Json = {"requests": list(requests) or [exactly()]}
    if constraints:
        devices["constraints"] = list(constraints)
    if config:
        devices["config"] = list(config)
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices}}


def template(name: str, *requests: Json) -> Json:
    return {
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": claim("x", *requests)["spec"]},
    }


def user_of(name: str, *claims: str, templates: tuple[str, ...] = (), **parts: Any) -> Json:
    wanted: list[Json] = [
        {"name": f"c{number}", "resourceClaimName": each} for number, each in enumerate(claims)
    ]
    wanted += [
        {"name": f"t{number}", "resourceClaimTemplateName": each} for number, each in enumerate(templates)
    ]
    return pod(name, resourceClaims=wanted, **parts)


def counters(set_name: str, **amounts: Any) -> Json:
    """A counter set of a slice."""
    return {"name": set_name, "counters": {name: {"value": str(value)} for name, value in amounts.items()}}


def takes(set_name: str, **amounts: Any) -> Json:
    """What a device consumes of a counter set."""
    return {"counterSet": set_name, "counters": counters(set_name, **amounts)["counters"]}


def counter_slice(name: str, *sets: Json, pool: str, count: int = 2) -> Json:
    body = resource_slice(name, pool=pool, count=count)
    body["spec"]["sharedCounters"] = list(sets)
    del body["spec"]["devices"]
    return body


def partitioned(node: str, *, gpus: int = 1, memory: int = 4) -> list[Json]:
    """The two slices of a node whose cards can be given away whole, as halves or as quarters."""
    devices = []
    for gpu in range(gpus):
        for size, per_gpu in ((memory, 1), (memory // 2, 2), (memory // 4, 4)):
            for part in range(per_gpu):
                part_of = device(f"{node}-g{gpu}-{size}-{part}", memory=f"{size}Gi", gpu=gpu, size=size)
                devices.append({**part_of, "consumesCounters": [takes(f"gpu-{gpu}", memory=f"{size}Gi")]})
    sets = [counters(f"gpu-{gpu}", memory=f"{memory}Gi") for gpu in range(gpus)]
    return [
        counter_slice(f"{node}-counters", *sets, pool=node),
        resource_slice(node, *devices, node=node, count=2),
    ]


def shareable(name: str, policy: Json | None = None, memory: str = "80Gi", **attributes: Any) -> Json:
    """A device that several claims may have parts of."""
    body = {**device(name, memory=memory, **attributes), "allowMultipleAllocations": True}
    if policy is not None:
        body["capacity"]["memory"]["requestPolicy"] = policy
    return body


def of_size(size: int) -> list[Json]:
    return selector(f"device.attributes['{DRIVER}'].size == {size}")


def share(memory: str | int, **more: Any) -> Json:
    """A request for that much memory of a device."""
    return exactly(capacity={"requests": {"memory": memory}}, **more)
