"""What a KubeSchedulerConfiguration says, and the defaults."""
