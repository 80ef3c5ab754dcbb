"""Read a KubeSchedulerConfiguration, and fill in the defaults."""
