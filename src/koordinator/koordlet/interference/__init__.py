"""Notice when batch degrades services, name the culprit, and act on it (docs/interference.md)."""
