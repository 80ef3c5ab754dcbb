"""Area `runtime-proxy-merge`."""

from typing import Any

import msgspec

from koordinator.api.decode import from_builtins
from koordinator.host.cri_messages import LinuxContainerResources
from koordinator.runtime_proxy import dispatch, docker, merge
from tests.vectors.compare import subset

Case = dict[str, Any]


def _resources(body: Case | None) -> LinuxContainerResources | None:
    return None if body is None else from_builtins(body, LinuxContainerResources)


def _calls(case: Case) -> Any:
    path = dispatch.route(case["request"], case.get("runtimeHooks", ()), case.get("labels") or {})
    policy = dispatch.FailurePolicy.of(case.get("failurePolicy", ""))
    found = dispatch.calls(path, policy, case.get("hookFails", False))
    return {"calls": list(found.steps), "error": found.is_error}


def runtime_proxy_merge(case: Case) -> Any:
    match case["op"]:
        case "hook_response":
            found = merge.with_answer(_resources(case["current"]), _resources(case["response"]))
            return {"resources": msgspec.to_builtins(found)}
        case "update_request":
            found = merge.with_update(_resources(case["cached"]), _resources(case["request"]))
            return {"resources": msgspec.to_builtins(found)}
        case "docker_update":
            found = merge.with_docker_update(_resources(case["cached"]), _resources(case["request"]))
            return {"resources": msgspec.to_builtins(found)}
        case "calls":
            return _calls(case)
        case "docker_to_cri_path":
            return {"path": docker.to_cri_path(case["driver"], case["cgroupParent"])}
        case "docker_parent":
            return {"cgroupParent": docker.to_docker_parent(case["driver"], case["cgroupParent"])}
        case "docker_labels":
            return msgspec.to_builtins(docker.split_labels(case["labels"]))
        case "docker_env":
            return {"envs": docker.environment(case["env"])}
    raise ValueError(case["op"])


ADAPTERS = {"runtime-proxy-merge": runtime_proxy_merge}


def same(expected: Any, actual: Any) -> bool:
    """Resources must agree as a whole; calls only in what the case mentions."""
    if "resources" in expected:
        return bool(expected == actual)
    return subset(expected, actual)


COMPARE = {"runtime-proxy-merge": same}
