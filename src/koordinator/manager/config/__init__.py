"""The ConfigMap `slo-controller-config`: parsed, merged per node, followed, and checked at admission."""
