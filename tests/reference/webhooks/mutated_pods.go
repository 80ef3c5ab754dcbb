// in pkg/webhook/pod/mutating
package mutating

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	configv1alpha1 "github.com/koordinator-sh/koordinator/apis/config/v1alpha1"
	"github.com/koordinator-sh/koordinator/apis/extension"
	quotav1alpha1 "github.com/koordinator-sh/koordinator/apis/quota/v1alpha1"
	"github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/controller/colocationprofile"
	"github.com/koordinator-sh/koordinator/pkg/util/fieldindex"
	"github.com/koordinator-sh/koordinator/pkg/webhook/elasticquota"
)

func init() {
	answering.Area("colocationprofile-mutate", answering.Of(profiled))
	answering.Area("pod-inject", answering.Of(injected))
}

type answer = map[string]any

var creation = admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Operation: admissionv1.Create}}

type profileQuestion struct {
	Op              string                                    `json:"op"`
	Pod             *corev1.Pod                               `json:"pod"`
	Profile         *configv1alpha1.ClusterColocationProfile  `json:"profile"`
	Profiles        []configv1alpha1.ClusterColocationProfile `json:"profiles"`
	Namespaces      map[string]map[string]string              `json:"namespaces"`
	PriorityClasses map[string]struct {
		Value            int32                    `json:"value"`
		PreemptionPolicy *corev1.PreemptionPolicy `json:"preemptionPolicy"`
	} `json:"priorityClasses"`
	Random int  `json:"random"`
	Skips  bool `json:"skipResourcesGate"`
}

// profiled asks several times: mappings that are chained have as many outcomes as their map has orders.
func profiled(asked profileQuestion) (any, error) {
	var first any
	for range asked.times() {
		found, err := asked.once()
		if err != nil {
			return nil, err
		}
		if first == nil {
			first = found
		}
		if !reflect.DeepEqual(first, found) {
			return nil, errors.New("the answer depends on the order of a map")
		}
	}
	return first, nil
}

func (asked profileQuestion) times() int {
	all := asked.Profiles
	if asked.Profile != nil {
		all = append(all, *asked.Profile)
	}
	for _, each := range all {
		if len(each.Spec.LabelKeysMapping) > 1 || len(each.Spec.AnnotationKeysMapping) > 1 {
			return 16
		}
	}
	return 1
}

func (asked profileQuestion) once() (any, error) {
	pod := asked.Pod.DeepCopy()
	if asked.Op == "reconcilePendingPod" {
		pod, err := colocationprofile.Reconciled(asked.Profile, pod, asked.Random)
		return shown(pod), err
	}
	var gates []string
	if asked.Skips {
		gates = append(gates, "ColocationProfileSkipMutatingResources")
	}
	if err := fieldindex.Gates(gates...); err != nil {
		return nil, err
	}
	var objects []client.Object
	for i := range asked.Profiles {
		objects = append(objects, asked.Profiles[i].DeepCopy())
	}
	for name, own := range asked.Namespaces {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: own}})
	}
	for name, class := range asked.PriorityClasses {
		objects = append(objects, &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Value: class.Value, PreemptionPolicy: class.PreemptionPolicy,
		})
	}
	randIntnFn = func(int) int { return asked.Random }
	handler := &PodMutatingHandler{Client: fieldindex.Cluster(objects...)}
	if err := handler.clusterColocationProfileMutatingPod(context.TODO(), creation, pod); err != nil {
		return answer{"error": true}, nil
	}
	return shown(pod), nil
}

func shown(pod *corev1.Pod) any { return answer{"pod": withoutEmpty(plain(pod))} }

func plain(value any) (found any) {
	text, _ := json.Marshal(value)
	_ = json.Unmarshal(text, &found)
	return found
}

func withoutEmpty(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for name, member := range value {
			member = withoutEmpty(member)
			if members, isMap := member.(map[string]any); member == nil || isMap && len(members) == 0 {
				delete(value, name)
			} else {
				value[name] = member
			}
		}
	case []any:
		for i := range value {
			value[i] = withoutEmpty(value[i])
		}
	}
	return value
}

type injectQuestion struct {
	Op         string                              `json:"op"`
	Containers []corev1.Container                  `json:"containers"`
	Annotation *string                             `json:"annotation"`
	Resources  corev1.ResourceRequirements         `json:"resources"`
	Gate       bool                                `json:"gate"`
	Pod        *corev1.Pod                         `json:"pod"`
	Quotas     []v1alpha1.ElasticQuota             `json:"quotas"`
	Profiles   []quotav1alpha1.ElasticQuotaProfile `json:"profiles"`
}

func injected(asked injectQuestion) (any, error) {
	handler, pod := &PodMutatingHandler{}, &corev1.Pod{}
	switch asked.Op {
	case "extendedResourceSpec":
		pod.Spec.Containers = asked.Containers
		if asked.Annotation != nil {
			pod.Annotations = map[string]string{extension.AnnotationExtendedResourceSpec: *asked.Annotation}
		}
		if handler.extendedResourceSpecMutatingPod(context.TODO(), creation, pod) != nil {
			return answer{"error": true}, nil
		}
		var spec any
		if text, found := pod.Annotations[extension.AnnotationExtendedResourceSpec]; found {
			if err := json.Unmarshal([]byte(text), &spec); err != nil {
				return nil, err
			}
		}
		return answer{"spec": spec}, nil
	case "gpuResources":
		pod.Spec.Containers = []corev1.Container{{Resources: asked.Resources}}
		if err := handler.deviceResourceSpecMutatingPod(context.TODO(), creation, pod); err != nil {
			return nil, err
		}
		return answer{"resources": plain(pod.Spec.Containers[0].Resources)}, nil
	case "quotaTreeAffinity":
		return asked.affinity(handler)
	}
	return nil, fmt.Errorf("no op %s", asked.Op)
}

func (asked injectQuestion) affinity(handler *PodMutatingHandler) (any, error) {
	var gates []string
	if asked.Gate {
		gates = append(gates, "MultiQuotaTree")
	}
	if err := fieldindex.Gates(gates...); err != nil {
		return nil, err
	}
	var objects []client.Object
	added := 0
	for i := range asked.Profiles {
		objects = append(objects, &asked.Profiles[i])
		if selector := asked.Profiles[i].Spec.NodeSelector; selector != nil {
			added = max(added, len(selector.MatchLabels))
		}
	}
	handler.Client = fieldindex.Cluster(objects...)
	elasticquota.Known(asked.Quotas)
	before := asked.Pod.DeepCopy()
	if err := handler.addNodeAffinityForMultiQuotaTree(context.TODO(), creation, asked.Pod); err != nil {
		return nil, err
	}
	for i, term := range terms(asked.Pod) {
		own := 0
		if old := terms(before); i < len(old) {
			own = len(old[i].MatchExpressions)
		}
		rest := term.MatchExpressions[own:]
		slices.SortFunc(rest[:min(added, len(rest))], func(a, b corev1.NodeSelectorRequirement) int {
			return strings.Compare(a.Key, b.Key)
		})
	}
	return answer{"affinity": plain(asked.Pod.Spec.Affinity)}, nil
}

func terms(pod *corev1.Pod) []corev1.NodeSelectorTerm {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil {
		return nil
	}
	if required := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		return required.NodeSelectorTerms
	}
	return nil
}
