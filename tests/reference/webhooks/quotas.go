// in pkg/webhook/elasticquota
package elasticquota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/util/fieldindex"
)

func init() {
	answering.Area("quota-webhook", answering.Of(afterSteps))
	answering.Area("elasticquota-webhook", answering.Of(afterExisting))
}

type answer = map[string]any

// reasons says which rule a refusal is about: the first of these texts that is in its words.
var reasons = [][2]string{
	{"quota.Spec.Max's value < 0", "max-negative"},
	{"quota.Spec.Min's value < 0", "min-negative"},
	{"quota.Annotation[" + extension.AnnotationSharedWeight + "]'s value < 0", "shared-weight-negative"},
	{"'s value is invalid", "strict-keys"},
	{"sharedWeight failed", "shared-weight"},
	{"included in used", "strict-key-not-in-max"},
	{"included in min", "min-key-not-in-max"},
	{" < used ", "max-below-used"},
	{" > max ", "min-above-max"},
	{"already exist", "exists"},
	{"is already bound to quota", "namespace-bound"},
	{"not exist in quotaInfoMap", "not-found"},
	{"not found quota", "not-found"},
	{"parent not exist", "parent-missing"},
	{"but not find parentInfo", "parent-missing"},
	{"IsParent is false", "parent-not-parent"},
	{"max keys are not", "max-keys"},
	{"min keys are not", "min-keys"},
	{"all brothers' MinQuota", "min-sum-brothers"},
	{"all children's MinQuota", "min-sum-children"},
	{"tree id changed", "tree-changed"},
	{"tree id is different", "tree-parent"},
	{"invalid quota", "forbidden"},
	{"can not delete quotaGroup", "forbidden"},
	{"quota has children", "has-children"},
	{"child quotas", "has-children"},
	{"has bound pods", "has-pods"},
	{"child pods", "has-pods"},
	{"can't guarantee", "guarantee"},
	{"parentQuotaGroup", "parent-quota"},
	{"Preemptible label", "preemptible"},
	{"json", "shared-weight"},
	{"quantities must match", "shared-weight"},
	{"unable to parse quantity", "shared-weight"},
	{"invalid character", "shared-weight"},
	{"unexpected end of JSON input", "shared-weight"},
}

// refusal is the rule that a check breaks, empty for none. A check that finds now this, now that cannot be asked.
func refusal(check func() error) (string, error) {
	found := map[string]bool{}
	for range 20 {
		err := check()
		if err == nil && len(found) == 0 {
			return "", nil
		}
		reason := "allowed"
		if err != nil {
			reason = ""
			for _, each := range reasons {
				if strings.Contains(err.Error(), each[0]) {
					reason = each[1]
					break
				}
			}
			if reason == "" {
				return "", fmt.Errorf("unknown refusal: %w", err)
			}
		}
		found[reason] = true
	}
	for reason := range found {
		if len(found) == 1 {
			return reason, nil
		}
	}
	return "", errors.New("the answer depends on the order of a map")
}

// world is a topology, and the quotas and pods that the API server has.
type world struct {
	topology *quotaTopology
	quotas   map[string]*v1alpha1.ElasticQuota
}

func newWorld() *world {
	return &world{NewQuotaTopology(nil), map[string]*v1alpha1.ElasticQuota{}}
}

func (w *world) checker(pods []corev1.Pod) *QuotaMetaChecker {
	var objects []client.Object
	for _, quota := range w.quotas {
		objects = append(objects, quota.DeepCopy())
	}
	for i := range pods {
		objects = append(objects, pods[i].DeepCopy())
	}
	found := fieldindex.Cluster(objects...)
	w.topology.client = found
	return &QuotaMetaChecker{Client: found, Decoder: admission.NewDecoder(found.Scheme()), QuotaTopo: w.topology}
}

func request(operation admissionv1.Operation, old, object any) admission.Request {
	raw := func(object any) runtime.RawExtension {
		text, _ := json.Marshal(object)
		return runtime.RawExtension{Raw: text}
	}
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{
		Operation: operation, Object: raw(object), OldObject: raw(old),
	}}
}

func (w *world) pod(pod, old *corev1.Pod) (answer, error) {
	asked := request(admissionv1.Create, nil, pod)
	if old != nil {
		asked = request(admissionv1.Update, old, pod)
	}
	reason, err := refusal(func() error { return w.checker(nil).ValidatePod(context.TODO(), asked) })
	return shown(reason), err
}

func (w *world) validate(operation admissionv1.Operation, old, quota *v1alpha1.ElasticQuota, pods []corev1.Pod) (string, error) {
	if w.hasCircle() {
		return "", errors.New("quotas in a circle are followed for ever")
	}
	checker := w.checker(pods)
	asked := request(operation, old, quota)
	reason, err := refusal(func() error {
		decoded := &v1alpha1.ElasticQuota{}
		if err := checker.DecodeRaw(asked.Object, decoded); err != nil {
			return err
		}
		return checker.ValidateQuota(context.TODO(), asked, decoded)
	})
	if err == nil && reason == "" {
		delete(w.quotas, quota.Name)
		if _, known := w.topology.quotaInfoMap[quota.Name]; known { // not so after an update that changed nothing
			w.quotas[quota.Name] = quota
		}
	}
	return reason, err
}

func (w *world) hasCircle() bool {
	known := w.topology.quotaInfoMap
	for _, info := range known {
		for range len(known) {
			if info = known[info.ParentName]; info == nil {
				break
			}
		}
		if info != nil {
			return true
		}
	}
	return false
}

func shown(reason string) answer {
	if reason == "" {
		return answer{"allowed": true}
	}
	return answer{"allowed": false, "reason": reason}
}

func mutated(quota *v1alpha1.ElasticQuota, treeID string) answer {
	weight := map[string]any{}
	if text := quota.Annotations[extension.AnnotationSharedWeight]; text != "null" {
		_ = json.Unmarshal([]byte(text), &weight)
	}
	return answer{
		"parent":       quota.Labels[extension.LabelQuotaParent],
		treeID:         quota.Labels[extension.LabelQuotaTreeID],
		"sharedWeight": weight,
	}
}

type quotaSteps struct {
	Gates []string `json:"gates"`
	Steps []struct {
		Op     string                 `json:"op"`
		Quota  *v1alpha1.ElasticQuota `json:"quota"`
		Old    *v1alpha1.ElasticQuota `json:"old"`
		Pod    *corev1.Pod            `json:"pod"`
		OldPod *corev1.Pod            `json:"oldPod"`
		Pods   []corev1.Pod           `json:"pods"`
	} `json:"steps"`
}

func afterSteps(asked quotaSteps) (any, error) {
	if err := fieldindex.Gates(asked.Gates...); err != nil {
		return nil, err
	}
	w, results := newWorld(), []answer{}
	for _, step := range asked.Steps {
		var result answer
		var reason string
		var err error
		switch step.Op {
		case "podCreate", "podUpdate":
			result, err = w.pod(step.Pod, step.OldPod)
		case "delete":
			reason, err = w.validate(admissionv1.Delete, nil, step.Quota, step.Pods)
			result = shown(reason)
		case "update":
			old := step.Old
			if old == nil {
				old = w.quotas[step.Quota.Name]
			}
			if old == nil {
				old = step.Quota
			}
			reason, err = w.validate(admissionv1.Update, old, step.Quota, step.Pods)
			result = shown(reason)
		case "create":
			result, err = w.create(step.Quota)
		default:
			err = fmt.Errorf("no such step: %s", step.Op)
		}
		if err != nil {
			return nil, err
		}
		results = append(results, result)
	}
	return answer{"results": results}, nil
}

func (w *world) admit(quota *v1alpha1.ElasticQuota) (string, error) {
	checker := w.checker(nil)
	return refusal(func() error {
		return checker.AdmitQuota(context.TODO(), request(admissionv1.Create, nil, quota), quota)
	})
}

func (w *world) create(quota *v1alpha1.ElasticQuota) (answer, error) {
	reason, err := w.admit(quota)
	if err == nil && reason == "" {
		reason, err = w.validate(admissionv1.Create, nil, quota, nil)
	}
	result := shown(reason)
	if reason == "" {
		for name, value := range mutated(quota, "treeID") {
			result[name] = value
		}
	}
	return result, err
}

// shortQuota is an ElasticQuota in the words of area elasticquota-webhook.
type shortQuota struct {
	Name         string              `json:"name"`
	Parent       *string             `json:"parent"`
	TreeID       *string             `json:"treeId"`
	IsParent     *bool               `json:"isParent"`
	IsTreeRoot   *bool               `json:"isTreeRoot"`
	ForceUpdate  *bool               `json:"forceUpdate"`
	SharedWeight json.RawMessage     `json:"sharedWeight"`
	Namespaces   json.RawMessage     `json:"namespaces"`
	Guaranteed   json.RawMessage     `json:"guaranteed"`
	StrictKeys   json.RawMessage     `json:"maxStrictCheckKeys"`
	Max          corev1.ResourceList `json:"max"`
	Min          corev1.ResourceList `json:"min"`
	Used         corev1.ResourceList `json:"used"`
}

func (s shortQuota) whole() *v1alpha1.ElasticQuota {
	quota := &v1alpha1.ElasticQuota{ObjectMeta: metav1.ObjectMeta{
		Name: s.Name, Namespace: "kube-system", Labels: map[string]string{}, Annotations: map[string]string{},
	}}
	quota.Spec.Max, quota.Spec.Min, quota.Status.Used = s.Max, s.Min, s.Used
	for key, text := range map[string]*string{extension.LabelQuotaParent: s.Parent, extension.LabelQuotaTreeID: s.TreeID} {
		if text != nil {
			quota.Labels[key] = *text
		}
	}
	for key, flag := range map[string]*bool{
		extension.LabelQuotaIsParent: s.IsParent, extension.LabelQuotaIsRoot: s.IsTreeRoot,
		extension.LabelAllowForceUpdate: s.ForceUpdate,
	} {
		if flag != nil {
			quota.Labels[key] = fmt.Sprint(*flag)
		}
	}
	for key, raw := range map[string]json.RawMessage{
		extension.AnnotationSharedWeight: s.SharedWeight, extension.AnnotationQuotaNamespaces: s.Namespaces,
		extension.AnnotationGuaranteed: s.Guaranteed, extension.AnnotationMaxStrictCheckResourceKeys: s.StrictKeys,
	} {
		var text string
		if raw != nil && json.Unmarshal(raw, &text) != nil {
			text = string(raw)
		}
		if raw != nil {
			quota.Annotations[key] = text
		}
	}
	return quota
}

type shortPod struct {
	Quota       *string `json:"quotaLabel"`
	Preemptible *string `json:"preemptibleLabel"`
}

func (s shortPod) whole() *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "d", Labels: map[string]string{}}}
	for key, text := range map[string]*string{extension.LabelQuotaName: s.Quota, extension.LabelPreemptible: s.Preemptible} {
		if text != nil {
			pod.Labels[key] = *text
		}
	}
	return pod
}

type quotaAsked struct {
	Kind      string       `json:"kind"`
	Operation string       `json:"operation"`
	Gates     []string     `json:"gates"`
	Existing  []shortQuota `json:"existing"`
	Object    shortQuota   `json:"object"`
	BoundPods []string     `json:"boundPods"`
	Pod       shortPod     `json:"pod"`
	Old       shortPod     `json:"old"`
}

// otherNames has what this area calls some of the rules.
var otherNames = map[string]string{
	"shared-weight-negative": "weight-negative", "min-sum-brothers": "siblings-min-sum",
	"min-sum-children": "children-min-sum", "forbidden": "reserved",
}

func afterExisting(asked quotaAsked) (any, error) {
	if err := fieldindex.Gates(asked.Gates...); err != nil {
		return nil, err
	}
	w := newWorld()
	for _, each := range asked.Existing {
		quota := each.whole()
		w.topology.OnQuotaAdd(quota)
		w.quotas[quota.Name] = quota
	}
	quota, old := asked.Object.whole(), &v1alpha1.ElasticQuota{}
	if known := w.quotas[quota.Name]; known != nil {
		old = known
	}
	var pods []corev1.Pod
	for _, name := range asked.BoundPods {
		pod := shortPod{Quota: &quota.Name}.whole()
		pod.Name = name
		pods = append(pods, *pod)
	}
	var reason string
	var err error
	switch asked.Kind {
	case "pod":
		var before *corev1.Pod
		if asked.Operation == "update" {
			before = asked.Old.whole()
		}
		found, err := w.pod(asked.Pod.whole(), before)
		return answer{"allowed": found["allowed"]}, err
	case "default":
		if reason, err = w.admit(quota); reason != "" || err != nil {
			return answer{"error": true}, err
		}
		return mutated(quota, "treeId"), nil
	case "create":
		reason, err = w.validate(admissionv1.Create, nil, quota, pods)
	case "update":
		reason, err = w.validate(admissionv1.Update, old, quota, pods)
	default:
		reason, err = w.validate(admissionv1.Delete, nil, quota, pods)
	}
	if other, found := otherNames[reason]; found {
		reason = other
	}
	return answer{"allowed": reason == "", "why": reason}, err
}

// Known makes these the quotas that every plugin of this process knows.
func Known(quotas []v1alpha1.ElasticQuota) {
	quotaMetaCheck.QuotaTopo = NewQuotaTopology(nil)
	for i := range quotas {
		quotaMetaCheck.QuotaTopo.OnQuotaAdd(&quotas[i])
	}
}
