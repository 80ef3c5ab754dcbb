// in pkg/koordlet/qosmanager/plugins/util
package util

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apiext "github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
)

type evictQuestion struct {
	Op             string
	Feature        string
	Annotations    map[string]string
	Labels         map[string]string
	Default        int64
	Pod            *corev1.Pod
	Resource       corev1.ResourceName
	Tasks          []arbitratedTask
	AlreadyEvicted []string
	EvictionFails  []string
}

type arbitratedTask struct {
	Target    string
	ToRelease Amounts
	Order     []string
	Counts    map[string]Amounts
}

// Amounts of resources as areas write them: milli-cores, bytes.
type Amounts map[corev1.ResourceName]int64

func (a Amounts) list() corev1.ResourceList {
	found := corev1.ResourceList{}
	for name, amount := range a {
		found[name] = ConvertInt64ToQuantity(name, amount)
	}
	return found
}

// AmountsOf a list; nothing of a resource is the same as none.
func AmountsOf(list corev1.ResourceList) Amounts {
	found := Amounts{}
	for name, amount := range list {
		if !amount.IsZero() {
			found[name] = ConvertQuantityToInt64(name, amount)
		}
	}
	return found
}

var targets = map[string]ReleaseTargetType{
	"used": ReleaseTargetTypeResourceUsed, "request": ReleaseTargetTypeResourceRequest,
}

func init() { answering.Area("evict-common", answering.Of(evictCommon)) }

func evictCommon(asked evictQuestion) (any, error) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: asked.Annotations, Labels: asked.Labels}}
	switch asked.Op {
	case "policy":
		return map[string]any{"allowed": IsEvictionPolicyAllowed(asked.Feature, pod)}, nil
	case "sub_priority":
		return map[string]any{"value": GetPodPriorityLabel(pod, asked.Default)}, nil
	case "priority":
		class := apiext.GetPodPriorityClassWithDefault(asked.Pod)
		return map[string]any{"class": class, "value": *apiext.GetPodPriorityValueWithDefault(asked.Pod)}, nil
	case "request":
		name, amount := GetRequestTypeAndValueFromPod(asked.Pod, asked.Resource)
		return map[string]any{"resource": name, "amount": amount}, nil
	case "arbitrate":
		return arbitrated(asked), nil
	}
	return nil, fmt.Errorf("nothing answers %s", asked.Op)
}

func arbitrated(asked evictQuestion) any {
	executor := &KnownExecutor{Evicted: asked.AlreadyEvicted, Fails: asked.EvictionFails, Victims: []string{}}
	tasks := []*EvictTaskInfo{}
	for _, each := range asked.Tasks {
		counts := each.Counts
		task := &EvictTaskInfo{
			ReleaseTarget: targets[each.Target], ToReleaseResource: each.ToRelease.list(),
			GetPodResourceFunc: func(info *PodEvictInfo) corev1.ResourceList { return counts[info.Pod.Name].list() },
		}
		for _, name := range each.Order {
			meta := metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}
			task.SortedEvictPods = append(task.SortedEvictPods, &PodEvictInfo{Pod: &corev1.Pod{ObjectMeta: meta}})
		}
		tasks = append(tasks, task)
	}
	released, isNew := KillAndEvictPods(executor, nil, tasks)
	found, left := map[string]Amounts{}, []Amounts{}
	for name, target := range targets {
		if amounts := AmountsOf(released[target]); len(amounts) > 0 {
			found[name] = amounts
		}
	}
	for _, task := range tasks {
		_, missing := EvictTaskCheck(task, released)
		left = append(left, AmountsOf(missing))
	}
	return map[string]any{"victims": executor.Victims, "newlyEvicted": isNew, "released": found, "left": left}
}

// KnownExecutor evicts, but for the pods of which a question says that it fails.
type KnownExecutor struct {
	Evicted []string
	Fails   []string
	Victims []string
}

func (e *KnownExecutor) IsPodEvicted(pod *corev1.Pod) bool { return has(e.Evicted, string(pod.UID)) }

func (e *KnownExecutor) Evict(pod *corev1.Pod, _ *corev1.Node, _, _ string) bool {
	if has(e.Fails, pod.Name) {
		return false
	}
	e.Victims = append(e.Victims, pod.Name)
	return true
}

func has(names []string, name string) bool {
	for _, each := range names {
		if each == name {
			return true
		}
	}
	return false
}

// EvictRound is what areas ask of both resources.
type EvictRound struct {
	Op                     string
	Feature                string
	PriorityThreshold      *int32
	Capacity               string
	Allocatable            corev1.ResourceList
	Pods                   []*corev1.Pod
	PodUsed                map[string]float64
	Features               []string
	Node                   *struct{ Capacity, Allocatable corev1.ResourceList }
	NodeUsed               *float64
	CollectIntervalSeconds *int64
	AlreadyEvicted         []string
	EvictionFails          []string
}

// Executor of a round.
func (r EvictRound) Executor() *KnownExecutor {
	return &KnownExecutor{Evicted: r.AlreadyEvicted, Fails: r.EvictionFails, Victims: []string{}}
}

// NamesOf candidates.
func NamesOf(infos []*PodEvictInfo) any {
	names := []string{}
	for _, info := range infos {
		names = append(names, info.Pod.Name)
	}
	return map[string]any{"order": names}
}

// ValidityOf a configuration; the wording of a problem is free.
func ValidityOf(err error) any {
	if err != nil {
		return map[string]any{"valid": false, "problem": err.Error()}
	}
	return map[string]any{"valid": true, "problem": nil}
}
