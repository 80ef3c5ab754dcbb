"""`/warn-unready`: who creates an object that nothing acts on yet is told so; nothing is refused."""

from collections.abc import Mapping

from koordinator.api import unready
from koordinator.manager.webhooks.review import ALLOWED, AdmissionRequest, AdmissionVerdict

_WARNINGS: Mapping[tuple[str, str], str] = {
    (view.resource.group, view.resource.plural): unready.kind_warning(view) for view in unready.KINDS
}


async def warn(request: AdmissionRequest) -> AdmissionVerdict:
    """Allowed, with a warning at creation."""
    asked = request.resource
    warning = _WARNINGS.get((asked.group, asked.resource))
    if warning is None or request.operation != "CREATE" or request.sub_resource:
        return ALLOWED
    return AdmissionVerdict(warnings=(warning,))
