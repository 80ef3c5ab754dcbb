// in pkg/descheduler/test
package test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/framework"
)

const originMicros = 1_700_000_000_000_000

var times = map[string]bool{
	"creationTimestamp": true, "deletionTimestamp": true, "lastTransitionTime": true, "updateTime": true, "startTime": true,
}

func init() { klog.SetLogger(logr.Discard()) }

// At is a time on the clock of the questions.
func At(seconds float64) time.Time {
	return time.UnixMicro(originMicros + int64(math.Round(seconds*1e6))).UTC()
}

// Of decodes the input of a question, times and durations of which are numbers of seconds.
func Of[T any](answer func(T) (any, error)) answering.Answer {
	return func(input json.RawMessage) (any, error) {
		decoder := json.NewDecoder(bytes.NewReader(input))
		decoder.UseNumber()
		var given any
		if err := decoder.Decode(&given); err != nil {
			return nil, err
		}
		text, err := json.Marshal(wire(given))
		if err != nil {
			return nil, err
		}
		return answering.Of(answer)(text)
	}
}

func wire(given any) any {
	switch value := given.(type) {
	case []any:
		for index, member := range value {
			value[index] = wire(member)
		}
	case map[string]any:
		found := make(map[string]any, len(value))
		for name, member := range value {
			number, isNumber := member.(json.Number)
			switch {
			case isNumber && times[name]:
				seconds, _ := number.Float64()
				found[name] = At(seconds).Format(time.RFC3339Nano)
			case isNumber && (name == "ttlSeconds" || name == "timeoutSeconds"):
				found[name[:len(name)-len("Seconds")]] = number.String() + "s"
			default:
				found[name] = wire(member)
			}
		}
		return found
	}
	return given
}

// Turned says that a list is to be turned around: what hangs on the order of lists and maps is no answer.
var Turned bool

// Often is enough for any order of a small map to show.
const Often = 16

// Repeated asks again and again for what all answers share.
func Repeated(times int, answer answering.Answer, shared func(one, more any) (any, error)) answering.Answer {
	return func(input json.RawMessage) (any, error) {
		Turned = false
		found, err := answer(input)
		for again := 1; again < times && err == nil; again++ {
			var more any
			Turned = !Turned
			if more, err = answer(input); err == nil {
				found, err = shared(found, more)
			}
		}
		return found, err
	}
}

// Stable asks again and again for the same answer.
func Stable(times int, answer answering.Answer) answering.Answer {
	return Repeated(times, answer, func(one, more any) (any, error) {
		if !reflect.DeepEqual(one, more) {
			return nil, errors.New("the answer hangs on the order of a list or map")
		}
		return one, nil
	})
}

// InTurn is a list, turned around every second time.
func InTurn[T any](list []T) []T {
	if Turned {
		slices.Reverse(list)
	}
	return list
}

// PodsOn lists the pods of a node.
func PodsOn(pods []*corev1.Pod) framework.GetPodsAssignedToNodeFunc {
	return func(node string, filter framework.FilterFunc) ([]*corev1.Pod, error) {
		var found []*corev1.Pod
		for _, pod := range pods {
			if pod.Spec.NodeName == node && (filter == nil || filter(pod)) {
				found = append(found, pod)
			}
		}
		return found, nil
	}
}

// Key names a pod.
func Key(pod *corev1.Pod) string { return fmt.Sprintf("%s/%s", pod.Namespace, pod.Name) }

// ClientSet is of a cluster that knows evictions.
func ClientSet(objects ...runtime.Object) *fake.Clientset {
	client := fake.NewSimpleClientset(objects...)
	for _, version := range []string{"v1", "policy/v1"} {
		client.Resources = append(client.Resources, &metav1.APIResourceList{
			GroupVersion: version, APIResources: []metav1.APIResource{{Name: "pods/eviction", Kind: "Eviction"}},
		})
	}
	return client
}

// Scene is what a plugin sees of its profile; it remembers what it was asked.
type Scene struct {
	framework.Handle
	Pods    []*corev1.Pod
	Rejects []string
	Accepts func(pod *corev1.Pod) bool
	Client  kubernetes.Interface

	Evicted  []string
	Reasons  []string
	Evictors int
}

func (s *Scene) ClientSet() kubernetes.Interface { return s.Client }

func (s *Scene) GetPodsAssignedToNodeFunc() framework.GetPodsAssignedToNodeFunc {
	return PodsOn(s.Pods)
}

func (s *Scene) Evictor() framework.Evictor {
	s.Evictors++
	return s
}

func (s *Scene) Filter(pod *corev1.Pod) bool {
	for _, name := range s.Rejects {
		if name == Key(pod) {
			return false
		}
	}
	return true
}

func (s *Scene) EventRecorder() events.EventRecorder { return events.NewFakeRecorder(100) }

func (s *Scene) PreEvictionFilter(*corev1.Pod) bool { return true }

func (s *Scene) Evict(_ context.Context, pod *corev1.Pod, options framework.EvictOptions) bool {
	if s.Accepts != nil && !s.Accepts(pod) {
		return false
	}
	s.Evicted = append(s.Evicted, Key(pod))
	s.Reasons = append(s.Reasons, options.Reason)
	return true
}
