"""koordlet on a real containerd with a real runc: pods by CRI calls, read by their first instruction."""
