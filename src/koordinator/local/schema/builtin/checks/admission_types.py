"""Types of the variables of policies and match conditions: objects are of any type, requests and namespaces of one.

Source: Kubernetes, "Validating Admission Policy"; k8s.io/apiserver/pkg/admission/plugin/cel.
"""

from koordinator.cel.overloads import BOOL, DYN, INT, STRING, TIMESTAMP, CELType, list_of, map_of


def _struct(name: str, /, **fields: CELType) -> CELType:
    return CELType(f"kubernetes.{name}", (), fields)


_KIND = _struct("GroupVersionKind", group=STRING, version=STRING, kind=STRING)
_RESOURCE = _struct("GroupVersionResource", group=STRING, version=STRING, resource=STRING)
_USER = _struct(
    "UserInfo", username=STRING, uid=STRING, groups=list_of(STRING), extra=map_of(STRING, list_of(STRING))
)
_REQUEST = _struct(
    "AdmissionRequest",
    kind=_KIND,
    resource=_RESOURCE,
    subResource=STRING,
    requestKind=_KIND,
    requestResource=_RESOURCE,
    requestSubResource=STRING,
    name=STRING,
    namespace=STRING,
    operation=STRING,
    userInfo=_USER,
    dryRun=BOOL,
    options=DYN,
)
_CONDITION = _struct(
    "NamespaceCondition",
    status=STRING,
    type=STRING,
    lastTransitionTime=TIMESTAMP,
    message=STRING,
    reason=STRING,
)
_META = _struct(
    "NamespaceMetadata",
    name=STRING,
    generateName=STRING,
    namespace=STRING,
    labels=map_of(STRING, STRING),
    annotations=map_of(STRING, STRING),
    UID=STRING,
    creationTimestamp=TIMESTAMP,
    deletionGracePeriodSeconds=INT,
    deletionTimestamp=TIMESTAMP,
    generation=INT,
    resourceVersion=STRING,
    finalizers=list_of(STRING),
)
_NAMESPACE = _struct(
    "Namespace",
    metadata=_META,
    spec=_struct("NamespaceSpec", finalizers=list_of(STRING)),
    status=_struct("NamespaceStatus", conditions=list_of(_CONDITION), phase=STRING),
)

OF: dict[str, CELType] = {
    "object": DYN,
    "oldObject": DYN,
    "request": _REQUEST,
    "params": DYN,
    "namespaceObject": _NAMESPACE,
}
"""By name; `variables` are of the types that their expressions have."""
