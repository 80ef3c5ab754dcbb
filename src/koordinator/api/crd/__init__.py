"""CustomResourceDefinitions of everything that Koordinator adds to a cluster, generated from the views."""

from koordinator.api.crd.definitions import DEFINITIONS, Column, Definition
from koordinator.api.crd.manifest import manifest, manifests

__all__ = ["DEFINITIONS", "Column", "Definition", "manifest", "manifests"]
