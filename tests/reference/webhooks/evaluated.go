// in pkg/webhook/quotaevaluate
package quotaevaluate

import (
	"context"
	"encoding/json"
	"errors"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/util/fieldindex"
)

func init() { answering.Area("quota-evaluate", answering.Of(evaluated)) }

type evaluateQuestion struct {
	Op    string `json:"op"`
	Quota struct {
		Max          corev1.ResourceList `json:"max"`
		Admission    json.RawMessage     `json:"admission"`
		ChildRequest json.RawMessage     `json:"childRequest"`
	} `json:"quota"`
	Pods []struct {
		Requests corev1.ResourceList `json:"requests"`
	} `json:"pods"`
}

// evaluated lets pods come one after another, as work that waits.
func evaluated(asked evaluateQuestion) (any, error) {
	if asked.Op != "evaluate" {
		return nil, errors.New("nobody answers " + asked.Op)
	}
	quota := &v1alpha1.ElasticQuota{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "q", Annotations: map[string]string{},
	}}
	quota.Spec.Max = asked.Quota.Max
	for key, raw := range map[string]json.RawMessage{
		extension.AnnotationAdmission: asked.Quota.Admission, extension.AnnotationChildRequest: asked.Quota.ChildRequest,
	} {
		var text string
		if raw != nil && json.Unmarshal(raw, &text) != nil {
			text = string(raw)
		}
		if text != "" {
			quota.Annotations[key] = text
		}
	}
	cluster := fieldindex.Cluster(quota)
	evaluator := NewQuotaEvaluator(NewQuotaAccessor(cluster), 1, make(chan struct{})).(*quotaEvaluator)
	allowed := []bool{}
	for _, each := range asked.Pods {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
		pod.Spec.Containers = []corev1.Container{{
			Name: "c", Resources: corev1.ResourceRequirements{Requests: each.Requests},
		}}
		waiter := newAdmissionWaiter(&Attributes{
			QuotaNamespace: "ns", QuotaName: "q", Operation: admissionv1.Create, Pod: pod,
		})
		evaluator.addWork(waiter)
		key, waiters, _ := evaluator.getWork()
		evaluator.checkAttributes(key, waiters)
		evaluator.completeWork(key)
		allowed = append(allowed, waiter.result == nil)
	}
	found := &v1alpha1.ElasticQuota{}
	if err := cluster.Get(context.TODO(), types.NamespacedName{Namespace: "ns", Name: "q"}, found); err != nil {
		return nil, err
	}
	used := map[string]any{}
	if text := found.Annotations[extension.AnnotationChildRequest]; text != "" {
		if err := json.Unmarshal([]byte(text), &used); err != nil {
			return nil, err
		}
	}
	return map[string]any{"allowed": allowed, "childRequest": used}, nil
}
