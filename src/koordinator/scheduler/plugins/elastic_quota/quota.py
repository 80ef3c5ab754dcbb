"""One quota of a tree: what its owner wrote, and what its pods and children add up to.

Source: spec 06, sections 2.1 and 5.
"""

import enum

import msgspec

from koordinator.api import annotations as _annotations  # noqa: F401
