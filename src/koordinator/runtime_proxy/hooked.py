"""One intercepted call between kubelet and runtime: hooks asked, what was made remembered, what was stopped forgotten.

The same for each kind of runtime. Source: behaviour/koordlet-act 23.2.
"""

import contextlib
import logging
from collections.abc import Awaitable

from koordinator.host.errors import ContentError
from koordinator.runtime_proxy import dispatch
from koordinator.runtime_proxy.checkpoints import Checkpoints
from koordinator.runtime_proxy.dispatch import Checkpoint, Stages
from koordinator.runtime_proxy.hook_client import HookClient, HookOutcome
from koordinator.runtime_proxy.interception import Interception
from koordinator.runtime_proxy.relay import Refused

log = logging.getLogger(__name__)


class HookedExchange:
    """A call whose hooks have run."""

    def __init__(self, call: Interception, path: Stages, checkpoints: Checkpoints, hooks: HookClient) -> None:
        self.request = call.request()
        self._call, self._path = call, path
        self._checkpoints = checkpoints
        self._hooks = hooks

    def answered(self, response: bytes | None) -> Awaitable[HookOutcome] | None:
        """Remember what was made, forget what was stopped, whether or not that went well.

        Return the call of the hook that comes after one that succeeded; its answer counts for nothing.
        """
        if self._path.checkpoint is Checkpoint.DELETE:
            self._call.delete(self._checkpoints)
        elif response is not None:
            with contextlib.suppress(ContentError):  # kubelet will see for itself
                self._call.store(response, self._checkpoints)
        after = self._path.after
        if response is not None and after and after in self._hooks.by_stage:
            return self._hooks.call(after, self._call.hook_request())
        return None


class HookedCalls:
    """Asks hooks before calls. `skip` is the label of pods that never reach them."""

    def __init__(self, hooks: HookClient, checkpoints: Checkpoints, skip: tuple[str, str]) -> None:
        self._hooks = hooks
        self._checkpoints = checkpoints
        self._skip = skip

    async def begun(self, method: str, call: Interception) -> HookedExchange:
        """Return a call as its hook wants it. Raises: Refused where the hook failed and that is to count."""
        path = dispatch.route(method, self._hooks.by_stage, call.labels, self._skip)
        return HookedExchange(await self._before(path, call), path, self._checkpoints, self._hooks)

    async def _before(self, path: Stages, call: Interception) -> Interception:
        if not path.before:
            return call
        asked = self._hooks.call(path.before, call.hook_request())
        call.prepare()
        outcome = await asked
        problem = outcome.problem
        if not problem:
            try:
                return call.with_answer(outcome.answer)
            except ContentError as error:
                problem = f"hook {path.before}: its answer is damaged: {error}"
                log.warning("hook failed", extra={"problem": problem})
        if dispatch.calls(path, outcome.policy, hook_fails=True).is_error:
            raise Refused(problem)
        return call
