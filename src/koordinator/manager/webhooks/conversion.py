"""`/convert`: ConversionReviews of custom resources (apiextensions.k8s.io/v1).

All our CRDs have one version, so nobody needs a conversion: objects that are in the wanted version already are
returned as they are, anything else is refused.
"""

from typing import Any

import msgspec

PATH = "/convert"
API_VERSIONS = ("apiextensions.k8s.io/v1", "apiextensions.k8s.io/v1beta1")

Json = dict[str, Any]


class _Request(msgspec.Struct, frozen=True, rename="camel"):
    uid: str = ""
    desired_api_version: str = msgspec.field(default="", name="desiredAPIVersion")
    objects: list[Json] = []


class _Review(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = API_VERSIONS[0]
    request: _Request | None = None


def convert(body: bytes) -> bytes:
    """Return the answer to one ConversionReview; whatever is wrong with it is said in the answer."""
    try:
        review = msgspec.json.decode(body, type=_Review)
    except (msgspec.DecodeError, RecursionError) as error:
        return _answer(API_VERSIONS[0], "", [], f"decode ConversionReview: {error}")
    version, request = review.api_version, review.request
    if version not in API_VERSIONS:
        return _answer(API_VERSIONS[0], "", [], f"unsupported ConversionReview version {version!r}")
    if request is None:
        return _answer(version, "", [], "ConversionReview without request")
    for obj in request.objects:
        if obj.get("apiVersion") != request.desired_api_version:
            problem = (
                f"conversion of {obj.get('kind')} from {obj.get('apiVersion')} to {request.desired_api_version} is "
                "not supported: its definition has one version"
            )
            return _answer(version, request.uid, [], problem)
    return _answer(version, request.uid, request.objects, "")


def _answer(version: str, uid: str, objects: list[Json], problem: str) -> bytes:
    result: Json = {"status": "Failure", "message": problem} if problem else {"status": "Success"}
    response: Json = {"uid": uid, "convertedObjects": objects, "result": result}
    return msgspec.json.encode({"apiVersion": version, "kind": "ConversionReview", "response": response})
