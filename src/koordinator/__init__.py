"""Koordinator: co-location of services and batch work on Kubernetes nodes."""

__version__ = "0.1.0"
