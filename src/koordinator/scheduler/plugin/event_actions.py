"""What the scheduler was doing when something happened: the `action` of its events, as kube-scheduler names it."""

SCHEDULING = "Scheduling"
BINDING = "Binding"
PREEMPTING = "Preempting"
