"""koordlet as an NRI plugin: frames, calls, adjustments, joining and losing a runtime."""
