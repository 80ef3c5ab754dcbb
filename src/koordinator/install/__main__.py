"""`python -m koordinator.install DIRECTORY`: write the generated files of `deploy/` (`make manifests`)."""

import sys
from pathlib import Path

from koordinator.install import manifests


def main(directory: Path) -> None:
    """Write what differs."""
    for name, text in manifests.repository().items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
