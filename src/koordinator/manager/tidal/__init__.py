"""Tidal pools: whole nodes lent to batch work by the hour, or while services need little."""
