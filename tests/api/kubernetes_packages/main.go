// Asks packages of Kubernetes: one question as JSON a line in, the answer as JSON a line out.
package main

import (
	"bufio"
	"encoding/json"
	"os"

	"github.com/go-logr/logr"
	cadvisor "github.com/google/cadvisor/info/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	podresource "k8s.io/component-helpers/resource"
	taints "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
	"k8s.io/utils/cpuset"
)

type answer = map[string]any

// Questions by their kind: each takes the question's line.
var questions = map[string]func([]byte) answer{
	"quantity": quantities,
	"json":     jsonQuantity,
	"pod":      pod,
	"selector": labelSelector,
	"text":     textSelector,
	"taints":   tolerated,
	"hints":    hints,
	"cpuset":   cpus,
}

func main() {
	klog.SetLogger(logr.Discard())
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked struct{ Kind string }
		must(json.Unmarshal(line, &asked))
		must(out.Encode(questions[asked.Kind](line)))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Quantities

// quantities tells of two texts what each is and what they make together.
func quantities(line []byte) answer {
	var asked struct{ A, B string }
	must(json.Unmarshal(line, &asked))
	a, errA := resource.ParseQuantity(asked.A)
	b, errB := resource.ParseQuantity(asked.B)
	told := answer{"a": quantity(a, errA), "b": quantity(b, errB)}
	if errA == nil && errB == nil {
		sum, difference := a.DeepCopy(), a.DeepCopy()
		sum.Add(b)
		difference.Sub(b)
		told["cmp"], told["sum"], told["difference"] = a.Cmp(b), canonical(sum), canonical(difference)
	}
	return told
}

func jsonQuantity(line []byte) answer {
	var asked struct{ Raw json.RawMessage }
	must(json.Unmarshal(line, &asked))
	var found resource.Quantity
	return quantity(found, found.UnmarshalJSON(asked.Raw), &found)
}

func quantity(read resource.Quantity, err error, decoded ...*resource.Quantity) answer {
	if err != nil {
		return nil
	}
	for _, each := range decoded {
		read = *each
	}
	return answer{"text": canonical(read), "value": read.Value(), "milli": read.MilliValue()}
}

// canonical is the text of what was calculated; a text that was read is kept as it was.
func canonical(read resource.Quantity) string {
	number, suffix := read.CanonicalizeBytes(nil)
	return string(number) + string(suffix)
}

// Pods

func pod(line []byte) answer {
	var asked struct{ Pod corev1.Pod }
	must(json.Unmarshal(line, &asked))
	counted := podresource.PodResourcesOptions{
		UseStatusResources: true, InPlacePodLevelResourcesVerticalScalingEnabled: true,
	}
	// A copy for each, because overhead may be added to pod-level amounts in the pod itself.
	given := asked.Pod.DeepCopy
	return answer{
		"requests":        podresource.PodRequests(given(), counted),
		"limits":          podresource.PodLimits(given(), counted),
		"specRequests":    podresource.PodRequests(given(), podresource.PodResourcesOptions{}),
		"withoutOverhead": podresource.PodRequests(given(), podresource.PodResourcesOptions{ExcludeOverhead: true}),
		"qos":             qos.GetPodQOS(given()),
		"computedQos":     qos.ComputePodQOS(given()),
	}
}

// Selectors

func labelSelector(line []byte) answer {
	var asked struct {
		Selector metav1.LabelSelector
		Labels   []labels.Set
	}
	must(json.Unmarshal(line, &asked))
	found, err := metav1.LabelSelectorAsSelector(&asked.Selector)
	return matches(found, err, asked.Labels)
}

func textSelector(line []byte) answer {
	var asked struct {
		Text   string
		Labels []labels.Set
	}
	must(json.Unmarshal(line, &asked))
	found, err := labels.Parse(asked.Text)
	return matches(found, err, asked.Labels)
}

func matches(selector labels.Selector, err error, sets []labels.Set) answer {
	if err != nil {
		return answer{}
	}
	found := []bool{}
	for _, each := range sets {
		found = append(found, selector.Matches(each))
	}
	return answer{"matches": found}
}

// Taints

func tolerated(line []byte) answer {
	var asked struct {
		Tolerations []corev1.Toleration
		Taint       corev1.Taint
	}
	must(json.Unmarshal(line, &asked))
	return answer{
		"tolerated": taints.TolerationsTolerateTaint(logr.Discard(), asked.Tolerations, &asked.Taint, true),
	}
}

// NUMA hints

type hint struct {
	Nodes     []int
	Any       bool
	Preferred bool
}

func hints(line []byte) answer {
	var asked struct {
		Nodes     int
		Policy    string
		Providers []map[string][]hint
	}
	must(json.Unmarshal(line, &asked))
	topology := []cadvisor.Node{}
	for id := range asked.Nodes {
		topology = append(topology, cadvisor.Node{Id: id})
	}
	options := topologymanager.PolicyOptions{}
	info, err := topologymanager.NewNUMAInfo(topology, options)
	must(err)
	policies := map[string]topologymanager.Policy{
		topologymanager.PolicyBestEffort:     topologymanager.NewBestEffortPolicy(info, options),
		topologymanager.PolicyRestricted:     topologymanager.NewRestrictedPolicy(info, options),
		topologymanager.PolicySingleNumaNode: topologymanager.NewSingleNumaNodePolicy(info, options),
	}
	providers := []map[string][]topologymanager.TopologyHint{}
	for _, each := range asked.Providers {
		providers = append(providers, provided(each))
	}
	best, admitted := policies[asked.Policy].Merge(logr.Discard(), providers)
	told := answer{"preferred": best.Preferred, "admitted": admitted, "any": best.NUMANodeAffinity == nil}
	if best.NUMANodeAffinity != nil {
		told["nodes"] = best.NUMANodeAffinity.GetBits()
	}
	return told
}

// provided keeps apart what is no preference (null) and what is impossible (empty).
func provided(given map[string][]hint) map[string][]topologymanager.TopologyHint {
	found := map[string][]topologymanager.TopologyHint{}
	for name, each := range given {
		if each == nil {
			found[name] = nil
			continue
		}
		found[name] = []topologymanager.TopologyHint{}
		for _, one := range each {
			made := topologymanager.TopologyHint{Preferred: one.Preferred}
			if !one.Any {
				mask, err := bitmask.NewBitMask(one.Nodes...)
				must(err)
				made.NUMANodeAffinity = mask
			}
			found[name] = append(found[name], made)
		}
	}
	return found
}

// CPUs

func cpus(line []byte) answer {
	var asked struct{ Text string }
	must(json.Unmarshal(line, &asked))
	found, err := cpuset.Parse(asked.Text)
	if err != nil {
		return answer{}
	}
	return answer{"cpus": found.List(), "text": found.String()}
}
