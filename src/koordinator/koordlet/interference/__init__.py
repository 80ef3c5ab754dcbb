"""Notice how services suffer from batch, name who makes them, and do something about it (docs/interference.md)."""
