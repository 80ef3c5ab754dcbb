"""Tidal pools: whole nodes lent to batch work by the hour. Decisions only, the controller is not there yet."""
