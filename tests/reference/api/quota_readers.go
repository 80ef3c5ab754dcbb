// in pkg/util/transformer
package transformer

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/coscheduling/util"
)

func (q ReadQuestion) quota() *v1alpha1.ElasticQuota {
	quota := &v1alpha1.ElasticQuota{ObjectMeta: q.meta()}
	quota.Spec.Max = q.Spec.Max
	return quota
}

func init() {
	for name, get := range map[string]func(*v1alpha1.ElasticQuota) (corev1.ResourceList, error){
		"quota-runtime": extension.GetRuntime, "quota-request": extension.GetRequest,
		"quota-child-request": extension.GetChildRequest, "quota-allocated": extension.GetAllocated,
		"quota-guaranteed": extension.GetGuaranteed, "quota-admission": extension.GetAdmission,
		"quota-non-preemptible-request": extension.GetNonPreemptibleRequest,
		"quota-non-preemptible-used":    extension.GetNonPreemptibleUsed,
		"quota-unschedulable-resource":  extension.GetUnschedulableResource,
	} {
		Readers[name] = func(q ReadQuestion) (any, error) { return get(q.quota()) }
	}
	for name, get := range map[string]func(*v1alpha1.ElasticQuota) bool{
		"quota-is-parent": extension.IsParentQuota, "quota-is-root": extension.IsTreeRootQuota,
		"quota-allow-lent": extension.IsAllowLentResource, "quota-allow-force-update": extension.IsAllowForceUpdate,
	} {
		Readers[name] = func(q ReadQuestion) (any, error) { return get(q.quota()), nil }
	}
	Readers["quota-parent"] = func(q ReadQuestion) (any, error) { return extension.GetParentQuotaName(q.quota()), nil }
	Readers["quota-tree-id"] = func(q ReadQuestion) (any, error) { return extension.GetQuotaTreeID(q.quota()), nil }
	Readers["quota-shared-weight"] = func(q ReadQuestion) (any, error) { return extension.GetSharedWeight(q.quota()), nil }
	Readers["quota-namespaces"] = func(q ReadQuestion) (any, error) { return extension.GetAnnotationQuotaNamespaces(q.quota()), nil }
	Readers["quota-max-strict-check-resource-keys"] = func(q ReadQuestion) (any, error) {
		return extension.GetMaxStrictCheckResourceKeys(q.quota())
	}
	Readers["gang-name"] = func(q ReadQuestion) (any, error) { return util.GetGangNameByPod(q.Pod()), nil }
	Readers["gang-min-available"] = func(q ReadQuestion) (any, error) { return util.GetGangMinNumFromPod(q.Pod()) }
	Readers["gang-groups"] = func(q ReadQuestion) (any, error) {
		return util.StringToGangGroupSlice(q.Annotations[extension.AnnotationGangGroups])
	}
}
