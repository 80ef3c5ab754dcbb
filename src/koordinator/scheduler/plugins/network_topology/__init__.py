"""Network topology: gangs are placed close together in the network of switches above the nodes."""
