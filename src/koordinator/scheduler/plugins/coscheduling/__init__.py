"""Coscheduling: the pods of a gang are bound together or not at all."""
