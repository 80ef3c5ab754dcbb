"""koordlet as a plugin of the container runtime (Node Resource Interface): it answers before containers exist."""
