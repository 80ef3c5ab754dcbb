"""Checks of built-in kinds: of single fields, between the fields of a struct wherever it occurs, of whole objects, and
of what an update may change."""

import functools
from collections.abc import Callable
from typing import Any

from koordinator.api import cron
from koordinator.cluster.errors import StatusCause
from koordinator.local.schema import names
from koordinator.local.schema.builtin.checks import (
    cluster,
    common,
    containers,
    jobs,
    networking,
    pod_updates,
    pods,
    policies,
    quotas,
    workloads,
)

Json = dict[str, Any]

_RBAC, _NETWORKING = "rbac.authorization.k8s.io", "networking.k8s.io"

_NAMES: tuple[tuple[names.NameRule, str, str], ...] = (
    (names.label_1123, "Container", "name"),
    (names.label_1123, "EphemeralContainer", "name"),
    (names.label_1123, "Volume", "name"),
    (names.label_1123, "PodSpec", "hostname subdomain"),
    (names.label_1123, "StatefulSetSpec", "serviceName"),
    (names.subdomain_1123, "PodSpec", "nodeName serviceAccountName priorityClassName runtimeClassName"),
    (names.subdomain_1123, "IngressTLS", "secretName"),
    (names.subdomain_1123, "PersistentVolumeSpec", "storageClassName"),
    (names.subdomain_1123, "PersistentVolumeClaimSpec", "storageClassName"),
    (names.qualified_name, "Toleration", "key"),
    (names.port_name, "ContainerPort", "name"),
    (names.env_name, "EnvVar", "name"),
    (cron.trouble, "CronJobSpec", "schedule"),
)
"""Rules of texts that are not empty, and the Go structs and fields that they are for."""

FieldCheck = Callable[[Any, str], list[StatusCause]]
"""Value and its path → what is wrong with it."""

FIELDS: dict[tuple[str, str], FieldCheck] = {
    **{
        (owner, name): functools.partial(names.check_given, rule)
        for rule, owner, fields in _NAMES
        for name in fields.split()
    },
    ("PodAffinityTerm", "topologyKey"): pods.check_topology_key,
    ("PodAffinityTerm", "namespaces"): pods.check_namespaces,
    ("HTTPGetAction", "httpHeaders"): containers.check_headers,
    ("CronJobSpec", "timeZone"): jobs.check_time_zone,
    ("JobSpec", "managedBy"): jobs.check_managed_by,
    ("PodReadinessGate", "conditionType"): functools.partial(names.check, names.qualified_name),
    ("PodSecurityContext", "supplementalGroups"): containers.check_groups,
    ("Toleration", "effect"): common.check_effect,
    ("HostAlias", "ip"): common.check_ip,
    ("HostAlias", "hostnames"): networking.check_names,
    ("CSIDriverSpec", "volumeLifecycleModes"): cluster.check_lifecycles,
    ("RuntimeClass", "handler"): functools.partial(names.check, names.label_1123),
    ("VolumeAttachmentSpec", "nodeName"): functools.partial(names.check, names.subdomain_1123),
    ("LimitRangeItem", "type"): quotas.check_limit_type,
    ("PodSpec", "nodeSelector"): names.check_labels,
    ("PodSpec", "overhead"): common.check_resource_list,
    ("HTTPGetAction", "port"): common.check_port,
    ("TCPSocketAction", "port"): common.check_port,
    ("IngressTLS", "hosts"): networking.check_hosts,
    ("IngressRule", "host"): networking.check_rule_host,
    ("NetworkPolicySpec", "policyTypes"): networking.check_policy_types,
    ("StorageClass", "provisioner"): cluster.check_provisioner,
}
"""Go struct and field → the check of its value."""

STRUCTS: dict[str, Callable[[Json, str], list[StatusCause]]] = {
    "AggregationRule": cluster.check_aggregation,
    "ConfigMapKeySelector": containers.check_key,
    "Container": pods.check_container,
    "ContainerResizePolicy": containers.check_resize_policy,
    "ExecAction": containers.check_exec,
    "SecretVolumeSource": containers.check_secret_volume,
    "HostPathVolumeSource": containers.check_host_path,
    "VolumeAttachmentSource": cluster.check_attachment_source,
    "Endpoint": networking.check_endpoint,
    "EnvFromSource": containers.check_env_from,
    "VolumeNodeAffinity": cluster.check_volume_affinity,
    "DownwardAPIProjection": containers.check_files,
    "DownwardAPIVolumeSource": containers.check_files,
    "EndpointSubset": networking.check_subset,
    "EnvVar": pods.check_variable,
    "EnvVarSource": containers.check_source,
    "EphemeralContainer": pods.check_container,
    "HPAScalingPolicy": workloads.check_scaling_policy,
    "HPAScalingRules": workloads.check_scaling_rules,
    "HTTPIngressPath": networking.check_path,
    "IPBlock": networking.check_block,
    "IngressBackend": networking.check_backend,
    "LabelSelector": common.check_label_selector,
    "LifecycleHandler": pods.check_handler,
    "MetricSpec": workloads.check_metric,
    "MutatingWebhook": policies.check_webhook,
    "NamedRuleWithOperations": policies.check_rule,
    "NetworkPolicyPeer": networking.check_peer,
    "NetworkPolicyPort": networking.check_policy_port,
    "NodeSelector": pods.check_node_selector,
    "NodeSelectorTerm": pods.check_node_term,
    "ParamRef": policies.check_param,
    "PodSpec": pods.check_spec,
    "PodTemplateSpec": pods.check_template,
    "PolicyRule": cluster.check_rule,
    "Probe": pods.check_handler,
    "ResourceRequirements": pods.check_resources,
    "RuleWithOperations": policies.check_rule,
    "SeccompProfile": containers.check_seccomp,
    "SecretKeySelector": containers.check_key,
    "SecurityContext": containers.check_security,
    "Toleration": pods.check_toleration,
    "ValidatingWebhook": policies.check_webhook,
    "Volume": pods.check_volume,
}
"""Go struct → the check between its fields, wherever it occurs."""

CHECKS: dict[tuple[str, str], Callable[[Json], list[StatusCause]]] = {
    ("", "Pod"): pods.check_pod,
    ("", "PodTemplate"): workloads.check_pod_template,
    ("", "ReplicationController"): workloads.check_replication_controller,
    ("apps", "Deployment"): workloads.check_deployment,
    ("apps", "ReplicaSet"): workloads.check_replica_set,
    ("apps", "StatefulSet"): workloads.check_stateful_set,
    ("apps", "DaemonSet"): workloads.check_daemon_set,
    ("batch", "Job"): jobs.check_job,
    ("batch", "CronJob"): jobs.check_cron_job,
    ("apps", "ControllerRevision"): workloads.check_revision,
    ("", "Service"): networking.check_service,
    ("", "ConfigMap"): cluster.check_config,
    ("", "Secret"): cluster.check_secret,
    ("discovery.k8s.io", "EndpointSlice"): networking.check_slice,
    ("", "ResourceQuota"): quotas.check_quota,
    ("", "LimitRange"): quotas.check_limit_range,
    (_RBAC, "Role"): cluster.check_role,
    (_RBAC, "RoleBinding"): functools.partial(
        cluster.check_binding, kinds=("Role", "ClusterRole"), is_namespaced=True
    ),
    (_RBAC, "ClusterRoleBinding"): functools.partial(
        cluster.check_binding, kinds=("ClusterRole",), is_namespaced=False
    ),
    (_NETWORKING, "Ingress"): networking.check_ingress,
    (_NETWORKING, "IngressClass"): networking.check_ingress_class,
    ("autoscaling", "HorizontalPodAutoscaler"): workloads.check_autoscaler,
    ("", "Event"): cluster.check_event,
    ("", "Namespace"): cluster.check_namespace,
    ("", "Node"): cluster.check_node,
    ("", "PersistentVolume"): cluster.check_volume,
    ("", "PersistentVolumeClaim"): cluster.check_claim,
    ("policy", "PodDisruptionBudget"): cluster.check_budget,
    ("scheduling.k8s.io", "PriorityClass"): cluster.check_priority_class,
    ("admissionregistration.k8s.io", "MutatingWebhookConfiguration"): policies.check_configuration,
    ("admissionregistration.k8s.io", "ValidatingWebhookConfiguration"): policies.check_configuration,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicy"): policies.check_policy,
    ("admissionregistration.k8s.io", "ValidatingAdmissionPolicyBinding"): policies.check_binding,
}

UPDATE_CHECKS: dict[tuple[str, str], Callable[[Json, Json], list[StatusCause]]] = {
    ("", "Pod"): pod_updates.check_pod,
    ("apps", "Deployment"): common.keeps("spec.selector"),
    ("apps", "ReplicaSet"): common.keeps("spec.selector"),
    ("apps", "DaemonSet"): common.keeps("spec.selector"),
    ("apps", "StatefulSet"): workloads.check_stateful_set_update,
    ("apps", "ControllerRevision"): common.keeps("data"),
    ("batch", "Job"): workloads.check_job_update,
    ("", "Service"): networking.check_service_update,
    ("", "Node"): cluster.check_node_update,
    ("", "ConfigMap"): cluster.check_config_update,
    ("", "Secret"): cluster.check_config_update,
    ("", "PersistentVolume"): cluster.check_volume_update,
    ("", "PersistentVolumeClaim"): cluster.check_claim_update,
    ("discovery.k8s.io", "EndpointSlice"): common.keeps("addressType"),
    ("", "ResourceQuota"): cluster.check_quota_update,
    ("node.k8s.io", "RuntimeClass"): common.keeps("handler", ""),
    (_RBAC, "RoleBinding"): cluster.check_role_kept,
    (_RBAC, "ClusterRoleBinding"): cluster.check_role_kept,
    (_NETWORKING, "IngressClass"): common.keeps("spec.controller", ""),
    ("scheduling.k8s.io", "PriorityClass"): cluster.check_priority_class_update,
    ("storage.k8s.io", "StorageClass"): cluster.check_storage_class_update,
}
