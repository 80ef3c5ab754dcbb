// Answers cases (JSON lines) by the plugins of kube-scheduler itself: what each node says to a pod, what it scores, and
// whom preemption would evict there. One line of answers per case, in order.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"runtime/debug"
	"sort"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	extender "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	"k8s.io/kubernetes/pkg/scheduler/framework/preemption"
	schedruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

type testCase struct {
	Config    json.RawMessage   `json:"config"`
	Pod       *v1.Pod           `json:"pod"`
	Nodes     []*v1.Node        `json:"nodes"`
	Pods      []*v1.Pod         `json:"pods"`
	Nominated []*v1.Pod         `json:"nominated"`
	Objects   []json.RawMessage `json:"objects"`
	Preempt   bool              `json:"preempt"`
}

type verdict struct {
	Code    string   `json:"code"`
	Reasons []string `json:"reasons"`
	Plugin  string   `json:"plugin"`
}

type share struct {
	Raw        int64 `json:"raw"`
	Normalised int64 `json:"normalised"`
}

type victims struct {
	Verdict    verdict  `json:"verdict"`
	Pods       []string `json:"pods"`
	Violations int      `json:"violations"`
}

type answer struct {
	Error      string                      `json:"error"`
	LeftOut    []string                    `json:"leftOut"`
	PreFilter  *verdict                    `json:"preFilter"`
	Nodes      map[string]verdict          `json:"nodes"`
	Scores     map[string]map[string]share `json:"scores"`
	Victims    map[string]victims          `json:"victims"`
	Chosen     string                      `json:"chosen"`
	Ineligible string                      `json:"ineligible"`
}

func main() {
	gates := flag.String("feature-gates", "", "as kube-scheduler takes them")
	flag.Parse()
	klog.SetLogger(klog.Logger{})
	if err := utilfeature.DefaultMutableFeatureGate.Set(*gates); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	metrics.Register()
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 1 {
			if err := encoder.Encode(answerTo(line)); err != nil {
				panic(err)
			}
			out.Flush()
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			panic(err)
		}
	}
}

func answerTo(line []byte) (found answer) {
	defer func() {
		if problem := recover(); problem != nil {
			found = answer{Error: fmt.Sprintf("panic: %v\n%s", problem, debug.Stack())}
		}
	}()
	var given testCase
	if err := json.Unmarshal(line, &given); err != nil {
		return answer{Error: err.Error()}
	}
	found, err := asked(&given)
	if err != nil {
		return answer{Error: err.Error()}
	}
	return found
}

// asked repeats what a scheduling cycle does, without stopping at enough nodes.
func asked(given *testCase) (answer, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	profile, err := profileOf(given.Config)
	if err != nil {
		return answer{}, err
	}
	snapshot := internalcache.NewSnapshot(given.Pods, given.Nodes)
	world, err := worldOf(given.Objects)
	if err != nil {
		return answer{}, err
	}
	built := map[string]fwk.Plugin{}
	nominator, err := nominatorOf(given.Nominated)
	if err != nil {
		return answer{}, err
	}
	run, err := schedruntime.NewFramework(ctx, registry(built), profile,
		schedruntime.WithClientSet(fake.NewClientset()),
		schedruntime.WithInformerFactory(world),
		schedruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(world.Storage().V1().CSINodes().Lister())),
		schedruntime.WithSnapshotSharedLister(snapshot),
		schedruntime.WithPodNominator(nominator),
		schedruntime.WithParallelism(1),
		schedruntime.WithLogger(klog.Background()),
	)
	if err != nil {
		return answer{}, err
	}
	state := framework.NewCycleState()
	found := answer{Nodes: map[string]verdict{}, Scores: map[string]map[string]share{}, Victims: map[string]victims{}}
	left, status, leftBy := run.RunPreFilterPlugins(ctx, state, given.Pod)
	found.LeftOut = sets.List(state.GetSkipFilterPlugins())
	if !status.IsSuccess() {
		refusal := verdictOf(status)
		found.PreFilter = &refusal
		if given.Preempt {
			return found, findVictims(ctx, run, built, state, given, snapshot, statusOfAll(given, status), &found)
		}
		return found, nil
	}
	feasible := []fwk.NodeInfo{}
	statuses := map[string]*fwk.Status{}
	for _, node := range given.Nodes {
		info, err := snapshot.Get(node.Name)
		if err != nil {
			return answer{}, err
		}
		if !left.AllNodes() && !left.NodeNames.Has(node.Name) {
			status = fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
				fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", sets.List(leftBy)))
		} else {
			status = run.RunFilterPluginsWithNominatedPods(ctx, state, given.Pod, info)
		}
		statuses[node.Name] = status
		found.Nodes[node.Name] = verdictOf(status)
		if status.IsSuccess() {
			feasible = append(feasible, info)
		}
	}
	if given.Preempt {
		return found, findVictims(ctx, run, built, state, given, snapshot, statuses, &found)
	}
	return found, findScores(ctx, run, built, state, given.Pod, feasible, &found)
}

func findScores(ctx context.Context, run framework.Framework, built map[string]fwk.Plugin, state fwk.CycleState,
	pod *v1.Pod, feasible []fwk.NodeInfo, found *answer) error {
	if len(feasible) == 0 {
		return nil
	}
	if status := run.RunPreScorePlugins(ctx, state, pod, feasible); !status.IsSuccess() {
		return status.AsError()
	}
	weights := map[string]int64{}
	for _, each := range run.ListPlugins().Score.Enabled {
		weights[each.Name] = int64(each.Weight)
	}
	// Normalised by the framework first: plugins may change the list only.
	normalised, status := run.RunScorePlugins(ctx, state, pod, feasible)
	if !status.IsSuccess() {
		return status.AsError()
	}
	for at, info := range feasible {
		for _, each := range normalised[at].Scores {
			raw, status := built[each.Name].(fwk.ScorePlugin).Score(ctx, state, pod, info)
			if !status.IsSuccess() {
				return status.AsError()
			}
			if found.Scores[each.Name] == nil {
				found.Scores[each.Name] = map[string]share{}
			}
			found.Scores[each.Name][info.Node().Name] = share{raw, each.Score / weights[each.Name]}
		}
	}
	return nil
}

type candidate struct {
	name    string
	victims *extender.Victims
}

func (c candidate) Name() string               { return c.name }
func (c candidate) Victims() *extender.Victims { return c.victims }

func statusOfAll(given *testCase, status *fwk.Status) map[string]*fwk.Status {
	statuses := map[string]*fwk.Status{}
	for _, node := range given.Nodes {
		statuses[node.Name] = status
	}
	return statuses
}

func findVictims(ctx context.Context, run framework.Framework, built map[string]fwk.Plugin, state fwk.CycleState,
	given *testCase, snapshot *internalcache.Snapshot, statuses map[string]*fwk.Status, found *answer) error {
	plugin := built["DefaultPreemption"].(*defaultpreemption.DefaultPreemption)
	nominated := statuses[given.Pod.Status.NominatedNodeName]
	if may, why := plugin.PodEligibleToPreemptOthers(ctx, given.Pod, nominated); !may {
		found.Ineligible = why
		return nil
	}
	budgets, err := run.SharedInformerFactory().Policy().V1().PodDisruptionBudgets().Lister().List(labels.Everything())
	if err != nil {
		return err
	}
	sort.Slice(budgets, func(i, j int) bool { return budgets[i].Name < budgets[j].Name })
	candidates := []preemption.Candidate{}
	for name, status := range statuses {
		if status.Code() != fwk.Unschedulable {
			continue
		}
		info, err := snapshot.Get(name)
		if err != nil {
			return err
		}
		pods, violations, status := plugin.SelectVictimsOnNode(ctx, state.Clone(), given.Pod, info.Snapshot(), budgets)
		names := []string{}
		for _, pod := range pods {
			names = append(names, pod.Name)
		}
		found.Victims[name] = victims{verdictOf(status), names, violations}
		if len(pods) > 0 {
			gone := extender.Victims{Pods: pods, NumPDBViolations: int64(violations)}
			candidates = append(candidates, candidate{name, &gone})
		}
	}
	if len(candidates) > 0 {
		found.Chosen = plugin.Evaluator.SelectCandidate(ctx, candidates).Name()
	}
	return nil
}

func verdictOf(status *fwk.Status) verdict {
	found := verdict{Code: status.Code().String(), Reasons: []string{}}
	if !status.IsSuccess() {
		found.Reasons, found.Plugin = append(found.Reasons, status.Reasons()...), status.Plugin()
	}
	return found
}

// profileOf reads a KubeSchedulerConfiguration as kube-scheduler does.
func profileOf(text []byte) (*config.KubeSchedulerProfile, error) {
	object, gvk, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	read, is := object.(*config.KubeSchedulerConfiguration)
	if !is {
		return nil, fmt.Errorf("not a configuration: %v", gvk)
	}
	read.TypeMeta.APIVersion = gvk.GroupVersion().String()
	if err := validation.ValidateKubeSchedulerConfiguration(read); err != nil {
		return nil, err
	}
	return &read.Profiles[0], nil
}

// registry notes the plugins that it builds, so that their raw scores can be asked for.
func registry(built map[string]fwk.Plugin) schedruntime.Registry {
	noting := schedruntime.Registry{}
	for name, factory := range plugins.NewInTreeRegistry() {
		noting[name] = func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			plugin, err := factory(ctx, args, handle)
			built[name] = plugin
			return plugin, err
		}
	}
	return noting
}

type nominations map[string][]fwk.PodInfo

func nominatorOf(pods []*v1.Pod) (nominations, error) {
	found := nominations{}
	for _, pod := range pods {
		info, err := framework.NewPodInfo(pod)
		if err != nil {
			return nil, err
		}
		found[pod.Status.NominatedNodeName] = append(found[pod.Status.NominatedNodeName], info)
	}
	return found, nil
}

func (n nominations) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}
func (n nominations) DeleteNominatedPodIfExists(*v1.Pod)                            {}
func (n nominations) UpdateNominatedPod(klog.Logger, *v1.Pod, fwk.PodInfo)          {}
func (n nominations) NominatedPodsForNode(name string) []fwk.PodInfo                { return n[name] }

// still is an informer that knows from the start all that it will ever know.
type still struct {
	cache.SharedIndexInformer
	indexer cache.Indexer
}

func (s still) GetIndexer() cache.Indexer              { return s.indexer }
func (s still) GetStore() cache.Store                  { return s.indexer }
func (s still) HasSynced() bool                        { return true }
func (s still) SetTransform(cache.TransformFunc) error { return nil }
func (s still) AddIndexers(indexers cache.Indexers) error {
	return s.indexer.AddIndexers(indexers)
}

func (s still) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	for _, object := range s.indexer.List() {
		handler.OnAdd(object, true)
	}
	return nil, nil
}

// worldOf has the objects of a case where informers would have put them.
func worldOf(objects []json.RawMessage) (informers.SharedInformerFactory, error) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	kinds := map[reflect.Type]still{}
	for _, text := range objects {
		object, _, err := clientscheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
		if err != nil {
			return nil, err
		}
		kind, is := kinds[reflect.TypeOf(object)]
		if !is {
			kind = still{indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc,
				cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
			kinds[reflect.TypeOf(object)] = kind
			factory.InformerFor(object, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return kind })
		}
		if err := kind.indexer.Add(object); err != nil {
			return nil, err
		}
	}
	return factory, nil
}
