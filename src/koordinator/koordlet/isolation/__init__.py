"""Prove by their effect that the kernel mechanisms work which isolation rests on (docs/isolation-probe.md)."""
