"""The programs of the demonstration, in C: the service, its load, and batch work. Compiled where they run."""
