"""Keep models beyond a restart: a file for each, taken over when it is known whose they are."""

import logging
from collections.abc import Callable

from koordinator.koordlet.config import PredictConfig
from koordinator.koordlet.errors import ModelError
from koordinator.koordlet.predict import models
from koordinator.koordlet.predict.models import CheckpointFiles, Models

log = logging.getLogger(__name__)

FUTURE_S_MAX = 24 * 3600.0
"""A checkpoint from further ahead was made under a wrong clock: its samples would never fade."""


class KeptModels:
    """Models, and their files in a directory."""

    def __init__(self, config: PredictConfig, directory: str, *, is_read_only: bool) -> None:
        """No models yet. Raises: ModelError when a half-life is not above zero."""
        self.models = Models(config)
        self._config = config
        self._files = CheckpointFiles(directory, is_read_only=is_read_only)
        self._unloaded: dict[str, bytes] | None = None

    def load(self, is_wanted: Callable[[str], bool | None], now_s: float) -> None:
        """Take over the checkpoints that are wanted, and remove others; None says that nobody can tell yet."""
        if self._unloaded is None:
            self._unloaded = self._files.read()
        for name in list(self._unloaded):
            wanted = is_wanted(name)
            if wanted is None:
                continue
            content = self._unloaded.pop(name)
            if wanted:
                self._load_one(name, content, now_s)
            else:
                self._files.remove(name)

    def tidy(self, now_s: float) -> None:
        """Forget models that learn no more, and write a few checkpoints: the first that fails ends the round."""
        for model in self.models.expire(now_s, self._config.expiration_s):
            self._files.remove(model)
        due = self.models.unsaved(
            now_s, self._config.checkpoint_interval_s, self._config.checkpoints_per_step
        )
        for model in due:
            if not self._files.write(model, models.encode_checkpoint(self.models.checkpoint(model))):
                return
            self.models.saved([model], now_s)

    def _load_one(self, name: str, content: bytes, now_s: float) -> None:
        if name in self.models:
            return  # it has learnt since, and its file will be replaced
        try:
            saved = models.decode_checkpoint(name, content)
            if saved.updated_s > now_s + FUTURE_S_MAX:
                raise ModelError(name, "the checkpoint comes from the future")
            self.models.load(saved, now_s)
        except ModelError as error:
            log.warning("checkpoint dropped", extra={"problem": str(error)})
            self._files.remove(name)
