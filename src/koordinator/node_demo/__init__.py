"""Show what the node agent does for a service on this machine: real processes in real groups, measured."""
