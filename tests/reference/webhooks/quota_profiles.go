// in pkg/quota-controller/profile
package profile

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/apis/quota/v1alpha1"
	schedv1alpha1 "github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/util/fieldindex"
)

func init() { answering.Area("quota-profile", answering.Of(profiled)) }

type profileQuestion struct {
	Profile  *v1alpha1.ElasticQuotaProfile `json:"profile"`
	Nodes    []corev1.Node                 `json:"nodes"`
	Existing *schedv1alpha1.ElasticQuota   `json:"existingQuota"`
}

func profiled(asked profileQuestion) (any, error) {
	objects := []client.Object{asked.Profile}
	for i := range asked.Nodes {
		objects = append(objects, &asked.Nodes[i])
	}
	if asked.Existing != nil {
		objects = append(objects, asked.Existing)
	}
	cluster := fieldindex.Cluster(objects...)
	reconciler := &QuotaProfileReconciler{cluster, cluster.Scheme(), record.NewFakeRecorder(10)}
	key := types.NamespacedName{Namespace: asked.Profile.Namespace, Name: asked.Profile.Name}
	if _, err := reconciler.Reconcile(context.TODO(), ctrl.Request{NamespacedName: key}); err != nil {
		return nil, err
	}
	profile, quota := &v1alpha1.ElasticQuotaProfile{}, &schedv1alpha1.ElasticQuota{}
	if err := cluster.Get(context.TODO(), key, profile); err != nil {
		return nil, err
	}
	key.Name = asked.Profile.Spec.QuotaName
	if err := cluster.Get(context.TODO(), key, quota); err != nil {
		return nil, err
	}
	var total, unschedulable any
	for annotation, into := range map[string]*any{
		extension.AnnotationTotalResource: &total, extension.AnnotationUnschedulableResource: &unschedulable,
	} {
		if err := json.Unmarshal([]byte(quota.Annotations[annotation]), into); err != nil {
			return nil, err
		}
	}
	return map[string]any{
		"profileTreeID": profile.Labels[extension.LabelQuotaTreeID],
		"quota": map[string]any{
			"name": quota.Name, "namespace": quota.Namespace, "labels": quota.Labels,
			"min": amounts(quota.Spec.Min), "max": amounts(quota.Spec.Max),
			"totalResource": total, "unschedulableResource": unschedulable,
		},
	}, nil
}

func amounts(list corev1.ResourceList) corev1.ResourceList {
	if list == nil {
		return corev1.ResourceList{}
	}
	return list
}
