// Runs plugins of the Kubernetes descheduler on cases: one case as JSON a line in, what it evicts a line out.
//
// A plugin is made as Koordinator makes it: defaults first, the arguments decoded over them, then validated. Its filters
// are both the profile's filter, and it learns of a failed eviction only that it failed.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"time"

	"github.com/go-logr/logr"
	promapi "github.com/prometheus/client_golang/api"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/descheduler/pkg/descheduler/evictions"
	"sigs.k8s.io/descheduler/pkg/descheduler/metricscollector"
	nodeutil "sigs.k8s.io/descheduler/pkg/descheduler/node"
	podutil "sigs.k8s.io/descheduler/pkg/descheduler/pod"
	"sigs.k8s.io/descheduler/pkg/framework/plugins/defaultevictor"
	"sigs.k8s.io/descheduler/pkg/framework/plugins/nodeutilization"
	"sigs.k8s.io/descheduler/pkg/framework/plugins/podlifetime"
	"sigs.k8s.io/descheduler/pkg/framework/plugins/removeduplicates"
	"sigs.k8s.io/descheduler/pkg/framework/plugins/removefailedpods"
	"sigs.k8s.io/descheduler/pkg/framework/plugins/removepodshavingtoomanyrestarts"
	antiaffinity "sigs.k8s.io/descheduler/pkg/framework/plugins/removepodsviolatinginterpodantiaffinity"
	"sigs.k8s.io/descheduler/pkg/framework/plugins/removepodsviolatingnodeaffinity"
	"sigs.k8s.io/descheduler/pkg/framework/plugins/removepodsviolatingnodetaints"
	spread "sigs.k8s.io/descheduler/pkg/framework/plugins/removepodsviolatingtopologyspreadconstraint"
	"sigs.k8s.io/descheduler/pkg/framework/types"
)

// Case is what a plugin looks at. Times in it are meant at Now and are moved to the moment at which it runs.
type Case struct {
	Plugin     string                          `json:"plugin"`
	Args       json.RawMessage                 `json:"args"`
	Now        int64                           `json:"now"`
	Nodes      []*corev1.Node                  `json:"nodes"`
	Pods       []*corev1.Pod                   `json:"pods"`
	Namespaces []*corev1.Namespace             `json:"namespaces"`
	Budgets    []*policyv1.PodDisruptionBudget `json:"budgets"`
	Claims     []*corev1.PersistentVolumeClaim `json:"claims"`
	Classes    []*schedulingv1.PriorityClass   `json:"classes"`
	// Evictor has the arguments of the DefaultEvictor that filters for the plugin, if one does.
	Evictor json.RawMessage `json:"evictor"`
	// Spared pods do not pass the profile's filter, and the eviction of those that are Failing fails.
	Spared  []string `json:"spared"`
	Failing []string `json:"failing"`
	// Limits of evictions by node, by namespace and in all, as Koordinator's evictor keeps them; no limit: none.
	Limits struct {
		Node, Namespace, Total *int
	} `json:"limits"`
	// Runs that look for outcomes which differ by the order of maps.
	Runs int `json:"runs"`
}

// Answer has the evictions of each outcome, in order, or what DefaultEvictor says of each pod: filter, and late filter.
type Answer struct {
	Error    string             `json:"error,omitempty"`
	Outcomes [][]string         `json:"outcomes"`
	Passes   map[string][2]bool `json:"passes,omitempty"`
}

type factory func(context.Context, runtime.Object, types.Handle) (types.Plugin, error)

type descriptor struct {
	make     factory
	args     func() runtime.Object
	defaults func(runtime.Object)
	validate func(runtime.Object) error
}

var plugins = map[string]descriptor{
	defaultevictor.PluginName: {
		defaultevictor.New,
		func() runtime.Object { return &defaultevictor.DefaultEvictorArgs{} },
		defaultevictor.SetDefaults_DefaultEvictorArgs, defaultevictor.ValidateDefaultEvictorArgs,
	},
	nodeutilization.HighNodeUtilizationPluginName: {
		nodeutilization.NewHighNodeUtilization,
		func() runtime.Object { return &nodeutilization.HighNodeUtilizationArgs{} },
		nodeutilization.SetDefaults_HighNodeUtilizationArgs, nodeutilization.ValidateHighNodeUtilizationArgs,
	},
	nodeutilization.LowNodeUtilizationPluginName: {
		nodeutilization.NewLowNodeUtilization,
		func() runtime.Object { return &nodeutilization.LowNodeUtilizationArgs{} },
		nodeutilization.SetDefaults_LowNodeUtilizationArgs, nodeutilization.ValidateLowNodeUtilizationArgs,
	},
	podlifetime.PluginName: {
		podlifetime.New,
		func() runtime.Object { return &podlifetime.PodLifeTimeArgs{} },
		podlifetime.SetDefaults_PodLifeTimeArgs, podlifetime.ValidatePodLifeTimeArgs,
	},
	removeduplicates.PluginName: {
		removeduplicates.New,
		func() runtime.Object { return &removeduplicates.RemoveDuplicatesArgs{} },
		removeduplicates.SetDefaults_RemoveDuplicatesArgs, removeduplicates.ValidateRemoveDuplicatesArgs,
	},
	removefailedpods.PluginName: {
		removefailedpods.New,
		func() runtime.Object { return &removefailedpods.RemoveFailedPodsArgs{} },
		removefailedpods.SetDefaults_RemoveFailedPodsArgs, removefailedpods.ValidateRemoveFailedPodsArgs,
	},
	removepodshavingtoomanyrestarts.PluginName: {
		removepodshavingtoomanyrestarts.New,
		func() runtime.Object { return &removepodshavingtoomanyrestarts.RemovePodsHavingTooManyRestartsArgs{} },
		removepodshavingtoomanyrestarts.SetDefaults_RemovePodsHavingTooManyRestartsArgs,
		removepodshavingtoomanyrestarts.ValidateRemovePodsHavingTooManyRestartsArgs,
	},
	antiaffinity.PluginName: {
		antiaffinity.New,
		func() runtime.Object { return &antiaffinity.RemovePodsViolatingInterPodAntiAffinityArgs{} },
		antiaffinity.SetDefaults_RemovePodsViolatingInterPodAntiAffinityArgs,
		antiaffinity.ValidateRemovePodsViolatingInterPodAntiAffinityArgs,
	},
	removepodsviolatingnodeaffinity.PluginName: {
		removepodsviolatingnodeaffinity.New,
		func() runtime.Object { return &removepodsviolatingnodeaffinity.RemovePodsViolatingNodeAffinityArgs{} },
		removepodsviolatingnodeaffinity.SetDefaults_RemovePodsViolatingNodeAffinityArgs,
		removepodsviolatingnodeaffinity.ValidateRemovePodsViolatingNodeAffinityArgs,
	},
	removepodsviolatingnodetaints.PluginName: {
		removepodsviolatingnodetaints.New,
		func() runtime.Object { return &removepodsviolatingnodetaints.RemovePodsViolatingNodeTaintsArgs{} },
		removepodsviolatingnodetaints.SetDefaults_RemovePodsViolatingNodeTaintsArgs,
		removepodsviolatingnodetaints.ValidateRemovePodsViolatingNodeTaintsArgs,
	},
	spread.PluginName: {
		spread.New,
		func() runtime.Object { return &spread.RemovePodsViolatingTopologySpreadConstraintArgs{} },
		spread.SetDefaults_RemovePodsViolatingTopologySpreadConstraintArgs,
		spread.ValidateRemovePodsViolatingTopologySpreadConstraintArgs,
	},
}

func (d descriptor) read(name string, raw json.RawMessage) (runtime.Object, error) {
	args := d.args()
	d.defaults(args)
	if len(raw) > 0 {
		gvk := schema.GroupVersionKind{Group: "descheduler", Version: "v1alpha2", Kind: name + "Args"}
		decoded, _, err := scheme.Codecs.UniversalDecoder().Decode(raw, &gvk, args)
		if err != nil {
			return nil, err
		}
		args = decoded
	}
	return args, d.validate(args)
}

func build(name string, raw json.RawMessage, handle types.Handle) (types.Plugin, error) {
	found := plugins[name]
	args, err := found.read(name, raw)
	if err != nil {
		return nil, err
	}
	return found.make(context.Background(), args, handle)
}

// world is the handle of the plugins, and the evictor that remembers.
type world struct {
	client    clientset.Interface
	informers informers.SharedInformerFactory
	pods      map[string][]*corev1.Pod
	spared    map[string]bool
	failing   map[string]bool
	filter    types.EvictorPlugin
	limits    func(*corev1.Pod) bool
	evicted   []string
	gone      map[string]bool
}

func key(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

func set(keys []string) map[string]bool {
	found := map[string]bool{}
	for _, one := range keys {
		found[one] = true
	}
	return found
}

func newWorld(of *Case) *world {
	objects := []runtime.Object{}
	for _, one := range of.Classes {
		objects = append(objects, one)
	}
	client := fake.NewSimpleClientset(objects...)
	made := &world{
		client: client, informers: informers.NewSharedInformerFactory(client, 0),
		pods: map[string][]*corev1.Pod{}, spared: set(of.Spared), failing: set(of.Failing), gone: map[string]bool{},
		limits: limiter(of),
	}
	for _, one := range of.Pods {
		made.pods[one.Spec.NodeName] = append(made.pods[one.Spec.NodeName], one)
	}
	return made
}

func (w *world) fill(of *Case) {
	core := w.informers.Core().V1()
	for _, one := range of.Pods {
		add(core.Pods().Informer(), one)
	}
	for _, one := range of.Nodes {
		add(core.Nodes().Informer(), one)
	}
	for _, one := range of.Namespaces {
		add(core.Namespaces().Informer(), one)
	}
	for _, one := range of.Claims {
		add(core.PersistentVolumeClaims().Informer(), one)
	}
	for _, one := range of.Budgets {
		add(w.informers.Policy().V1().PodDisruptionBudgets().Informer(), one)
	}
}

func add(informer cache.SharedIndexInformer, object any) {
	if err := informer.GetIndexer().Add(object); err != nil {
		panic(err)
	}
}

func (w *world) ClientSet() clientset.Interface                         { return w.client }
func (w *world) PrometheusClient() promapi.Client                       { return nil }
func (w *world) Evictor() types.Evictor                                 { return w }
func (w *world) SharedInformerFactory() informers.SharedInformerFactory { return w.informers }
func (w *world) MetricsCollector() *metricscollector.MetricsCollector   { return nil }
func (w *world) PluginInstanceID() string                               { return "" }
func (w *world) PreEvictionFilter(pod *corev1.Pod) bool                 { return w.Filter(pod) }
func (w *world) GetPodsAssignedToNodeFunc() podutil.GetPodsAssignedToNodeFunc {
	return func(node string, passes podutil.FilterFunc) ([]*corev1.Pod, error) {
		found := []*corev1.Pod{}
		for _, one := range w.pods[node] {
			if passes == nil || passes(one) {
				found = append(found, one)
			}
		}
		return found, nil
	}
}

func (w *world) Filter(pod *corev1.Pod) bool {
	return !w.spared[key(pod)] && !w.gone[key(pod)] && (w.filter == nil || w.filter.Filter(pod))
}

func (w *world) Evict(_ context.Context, pod *corev1.Pod, _ evictions.EvictOptions) error {
	if w.failing[key(pod)] || !w.gone[key(pod)] && !w.limits(pod) {
		return errors.New("refused")
	}
	if !w.gone[key(pod)] {
		w.gone[key(pod)] = true
		w.evicted = append(w.evicted, key(pod))
	}
	return nil
}

func evictor(of *Case, raw json.RawMessage, w *world) (types.EvictorPlugin, error) {
	made, err := build(defaultevictor.PluginName, raw, w)
	if err != nil {
		return nil, err
	}
	w.fill(of)
	return made.(types.EvictorPlugin), nil
}

// limiter counts evictions, and says whether one more is allowed.
func limiter(of *Case) func(*corev1.Pod) bool {
	counts := map[string]int{}
	return func(pod *corev1.Pod) bool {
		places := map[string]*int{
			"node " + pod.Spec.NodeName: of.Limits.Node, "namespace " + pod.Namespace: of.Limits.Namespace, "": of.Limits.Total,
		}
		for place, most := range places {
			if most != nil && counts[place]+1 > *most {
				return false
			}
		}
		for place := range places {
			counts[place]++
		}
		return true
	}
}

// pass runs the plugin once and gives the evictions in order.
func pass(of *Case) ([]string, error) {
	w := newWorld(of)
	if len(of.Evictor) > 0 {
		filter, err := evictor(of, of.Evictor, w)
		if err != nil {
			return nil, err
		}
		w.filter = filter
	}
	made, err := build(of.Plugin, of.Args, w)
	if err != nil {
		return nil, err
	}
	nodes := []*corev1.Node{}
	for _, one := range of.Nodes {
		if nodeutil.IsReady(one) {
			nodes = append(nodes, one)
		}
	}
	var status *types.Status
	if plugin, ok := made.(types.DeschedulePlugin); ok {
		status = plugin.Deschedule(context.Background(), nodes)
	} else {
		status = made.(types.BalancePlugin).Balance(context.Background(), nodes)
	}
	if status != nil && status.Err != nil {
		return nil, status.Err
	}
	return append([]string{}, w.evicted...), nil
}

func answer(of *Case) Answer {
	if of.Plugin == defaultevictor.PluginName {
		w := newWorld(of)
		filter, err := evictor(of, of.Args, w)
		if err != nil {
			return Answer{Error: err.Error()}
		}
		passes := map[string][2]bool{}
		for _, one := range of.Pods {
			passes[key(one)] = [2]bool{filter.Filter(one), filter.PreEvictionFilter(one)}
		}
		return Answer{Passes: passes}
	}
	found := Answer{}
	for run := 0; run <= of.Runs; run++ {
		evicted, err := pass(of)
		if err != nil {
			return Answer{Error: err.Error()}
		}
		if !has(found.Outcomes, evicted) {
			found.Outcomes = append(found.Outcomes, evicted)
		}
	}
	return found
}

func has(outcomes [][]string, one []string) bool {
	for _, known := range outcomes {
		if reflect.DeepEqual(known, one) {
			return true
		}
	}
	return false
}

// moved gives the case with its times as long ago as they are at its Now.
func moved(of *Case, now time.Time) {
	by := now.Sub(time.Unix(of.Now, 0))
	of.Now = now.Unix()
	for _, one := range of.Pods {
		shift(&one.CreationTimestamp, by)
		shift(one.Status.StartTime, by)
		for i := range one.Status.Conditions {
			shift(&one.Status.Conditions[i].LastTransitionTime, by)
		}
	}
}

func shift(at *metav1.Time, by time.Duration) {
	if at != nil && !at.IsZero() {
		at.Time = at.Add(by)
	}
}

func main() {
	klog.SetLogger(logr.Discard())
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var of Case
		if err := json.Unmarshal(lines.Bytes(), &of); err != nil {
			panic(err)
		}
		for {
			second := time.Now().Truncate(time.Second)
			moved(&of, second)
			found := answer(&of)
			if time.Now().Truncate(time.Second).Equal(second) {
				if err := out.Encode(found); err != nil {
					panic(err)
				}
				break
			}
		}
	}
}
