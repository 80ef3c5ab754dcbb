"""One sentence for each kind, for `kubectl explain`; fields have their descriptions from the model classes."""

KINDS: dict[str, str] = {
    "Pod": "A group of containers that run together on one node.",
    "PodTemplate": "A template for pods, kept as an object of its own.",
    "Node": "A machine of the cluster that runs pods.",
    "Namespace": "A scope for names; most objects live in one.",
    "Service": "A stable name and address for the pods that its selector finds.",
    "Endpoints": "The addresses behind a Service (superseded by EndpointSlice).",
    "EndpointSlice": "Some of the addresses behind a Service.",
    "ConfigMap": "Configuration as keys and values, for pods to consume.",
    "Secret": "Confidential data as keys and base64 values, for pods to consume.",
    "ServiceAccount": "An identity for the processes that run in pods.",
    "Event": "A report that something happened to an object; kept for a limited time.",
    "PersistentVolume": "A piece of storage of the cluster.",
    "PersistentVolumeClaim": "A user's request for storage.",
    "ReplicationController": "Keeps a number of equal pods running (superseded by Deployment).",
    "ResourceQuota": "Limits what a namespace may use in total.",
    "LimitRange": "Limits and defaults for single objects in a namespace.",
    "Binding": "Ties one object to another, such as a pod to a node.",
    "Deployment": "Keeps a number of equal pods running and rolls out changes of their template.",
    "ReplicaSet": "Keeps a number of equal pods running.",
    "StatefulSet": "Keeps pods with stable names and storage running.",
    "DaemonSet": "Keeps one pod running on each selected node.",
    "ControllerRevision": "A snapshot of the state of a StatefulSet or DaemonSet.",
    "Job": "Runs pods until enough of them have succeeded.",
    "CronJob": "Creates a Job on a schedule.",
    "HorizontalPodAutoscaler": "Changes the number of replicas of a workload by its metrics.",
    "Scale": "The number of replicas of a workload.",
    "PodDisruptionBudget": "How many pods of a set may be evicted at a time.",
    "Eviction": "A request to remove a pod, subject to its disruption budget.",
    "PriorityClass": "A name for a priority of pods.",
    "StorageClass": "How volumes of a class are provisioned.",
    "CSINode": "The storage drivers on a node.",
    "CSIDriver": "A storage driver of the cluster.",
    "CSIStorageCapacity": "How much storage a driver has left where.",
    "VolumeAttachment": "The intent to attach a volume to a node.",
    "ResourceClaim": "A wish for devices, and the devices once it is granted.",
    "ResourceClaimTemplate": "What claims look like that are made for pods.",
    "DeviceClass": "Devices that users ask for by one name.",
    "ResourceSlice": "Devices that a driver offers, on a node or for several.",
    "Lease": "A lock that its holder renews: heartbeats and leader election.",
    "RuntimeClass": "A container runtime that pods can ask for.",
    "Ingress": "Rules that let traffic from outside reach Services.",
    "IngressClass": "Which controller serves an Ingress.",
    "NetworkPolicy": "Which traffic pods may receive and send.",
    "Role": "Permissions in a namespace.",
    "RoleBinding": "Gives the permissions of a role to subjects in a namespace.",
    "ClusterRole": "Permissions in the whole cluster.",
    "ClusterRoleBinding": "Gives the permissions of a cluster role to subjects.",
    "CustomResourceDefinition": "A kind of object that users add to the API.",
    "MutatingWebhookConfiguration": "Webhooks that may change objects before they are stored.",
    "ValidatingAdmissionPolicy": "Expressions that may refuse objects before they are stored.",
    "ValidatingAdmissionPolicyBinding": "Where a ValidatingAdmissionPolicy counts, and with which parameters.",
    "ValidatingWebhookConfiguration": "Webhooks that may refuse objects before they are stored.",
    "APIService": "A server for a group and version of the API.",
    "ObjectMeta": "Metadata that every stored object has.",
    "PodTemplateSpec": "The pod that a workload creates: its labels, annotations and spec.",
    "Container": "One application container of a pod.",
    "LabelSelector": "A query over labels: all of matchLabels and matchExpressions must hold.",
    "ListMeta": "Metadata of a list.",
    "DeploymentStrategy": "How old pods are replaced by new ones.",
    "RollingUpdateDeployment": "How fast a rolling update may go.",
    "StatefulSetUpdateStrategy": "How pods of a StatefulSet are updated.",
    "DaemonSetUpdateStrategy": "How pods of a DaemonSet are updated.",
    "ResourceRequirements": "What a container asks for and may use at most.",
    "Affinity": "Which nodes, and which neighbours, a pod wants or avoids.",
    "Probe": "A check that the kubelet repeats on a container.",
    "Lifecycle": "What to do when a container has started and before it is stopped.",
    "SecurityContext": "Security settings of a container.",
    "PodSecurityContext": "Security settings of a pod.",
    "NodeMetrics": "What a node uses now.",
    "PodMetrics": "What the containers of a pod use now.",
}


def of_struct(name: str) -> str:
    """Return what an object of a Go struct is; empty when there is nothing worth saying."""
    if name in KINDS:
        return KINDS[name]
    for ending, sentence in (
        ("Spec", "The desired state of a {}."),
        ("Status", "The observed state of a {}, as last reported."),
        ("List", "A list of {} objects."),
        ("Condition", "One aspect of the state of a {} at a certain point."),
        ("Source", "Where a {} takes its contents from."),
    ):
        if name.endswith(ending) and len(name) > len(ending):
            return sentence.format(name[: -len(ending)])
    return ""


__all__ = ["KINDS", "of_struct"]
