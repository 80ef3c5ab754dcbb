"""Checks between the fields of a built-in kind, and of what an update may change."""

from collections.abc import Callable
from typing import Any

from koordinator.cluster.errors import StatusCause
from koordinator.local.schema.builtin.checks import (
    cluster,
    networking,
    pod_updates,
    pods,
    policies,
    quotas,
    workloads,
)

Json = dict[str, Any]

_RBAC, _NETWORKING = "rbac.authorization.k8s.io", "networking.k8s.io"

CHECKS: dict[tuple[str, str], Callable[[Json], list[StatusCause]]] = {
    ("", "Pod"): pods.check_pod,
    ("", "PodTemplate"): workloads.check_pod_template,
    ("", "ReplicationController"): workloads.check_replication_controller,
    ("apps", "Deployment"): workloads.check_deployment,
    ("apps", "ReplicaSet"): workloads.check_replica_set,
    ("apps", "StatefulSet"): workloads.check_stateful_set,
    ("apps", "DaemonSet"): workloads.check_daemon_set,
    ("batch", "Job"): workloads.check_job,
    ("batch", "CronJob"): workloads.check_cron_job,
    ("", "Service"): networking.check_service,
    ("", "ConfigMap"): cluster.check_config,
    ("", "Secret"): cluster.check_secret,
    ("", "Endpoints"): networking.check_endpoints,
    ("discovery.k8s.io", "EndpointSlice"): networking.check_slice,
    ("", "ResourceQuota"): quotas.check_quota,
    ("", "LimitRange"): quotas.check_limit_range,
    (_RBAC, "Role"): cluster.check_role,
    (_RBAC, "ClusterRole"): cluster.check_cluster_role,
    (_RBAC, "RoleBinding"): cluster.check_role_binding,
    (_RBAC, "ClusterRoleBinding"): cluster.check_cluster_role_binding,
    (_NETWORKING, "Ingress"): networking.check_ingress,
    (_NETWORKING, "IngressClass"): networking.check_ingress_class,
    (_NETWORKING, "NetworkPolicy"): networking.check_network_policy,
    ("autoscaling", "HorizontalPodAutoscaler"): workloads.check_autoscaler,
    ("", "Node"): cluster.check_node,
    ("", "PersistentVolume"): cluster.check_volume,
    ("", "PersistentVolumeClaim"): cluster.check_claim,
    ("policy", "PodDisruptionBudget"): cluster.check_budget,
    ("scheduling.k8s.io", "PriorityClass"): cluster.check_priority_class,
    ("storage.k8s.io", "StorageClass"): cluster.check_storage_class,
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): policies.check_configuration,
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): policies.check_configuration,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): policies.check_policy,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): policies.check_binding,
}

UPDATE_CHECKS: dict[tuple[str, str], Callable[[Json, Json], list[StatusCause]]] = {
    ("", "Pod"): pod_updates.check_pod,
    ("apps", "Deployment"): workloads.check_selector_kept,
    ("apps", "ReplicaSet"): workloads.check_selector_kept,
    ("apps", "DaemonSet"): workloads.check_selector_kept,
    ("apps", "StatefulSet"): workloads.check_stateful_set_update,
    ("batch", "Job"): workloads.check_job_update,
    ("", "Service"): networking.check_service_update,
    ("", "Node"): cluster.check_node_update,
    ("", "ConfigMap"): cluster.check_config_update,
    ("", "Secret"): cluster.check_config_update,
    ("", "PersistentVolume"): cluster.check_volume_update,
    ("", "PersistentVolumeClaim"): cluster.check_claim_update,
    ("discovery.k8s.io", "EndpointSlice"): networking.check_slice_update,
    (_RBAC, "RoleBinding"): cluster.check_binding_update,
    (_RBAC, "ClusterRoleBinding"): cluster.check_binding_update,
    (_NETWORKING, "IngressClass"): networking.check_ingress_class_update,
    ("scheduling.k8s.io", "PriorityClass"): cluster.check_priority_class_update,
    ("storage.k8s.io", "StorageClass"): cluster.check_storage_class_update,
}
