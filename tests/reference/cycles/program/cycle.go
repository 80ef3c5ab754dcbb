// in cmd/koord-scheduler/app
package app

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"runtime/debug"
	"sort"
	"time"

	nrtv1alpha1 "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha1"
	nrtfake "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/generated/clientset/versioned/fake"
	nrtinformers "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/generated/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	appsv1 "k8s.io/api/apps/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	internalcache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	schedruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	kubemetrics "k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/koordinator-sh/koordinator/apis/extension"
	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	koordclient "github.com/koordinator-sh/koordinator/pkg/client/clientset/versioned"
	koordfake "github.com/koordinator-sh/koordinator/pkg/client/clientset/versioned/fake"
	koordinformers "github.com/koordinator-sh/koordinator/pkg/client/informers/externalversions"
	_ "github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config/scheme"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext/defaultprofile"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/defaultprebind"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/deviceshare"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/loadaware"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/nodenumaresource"
	fitplus "github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/noderesourcefitplus"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/reservation"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/scarceresourceavoidance"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/schedulinghint"
	reservationutil "github.com/koordinator-sh/koordinator/pkg/util/reservation"
	"github.com/koordinator-sh/koordinator/pkg/util/transformer"

	nrtclient "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/generated/clientset/versioned"
)

type cyclesQuestion struct {
	Config  json.RawMessage   `json:"config"`
	Objects []json.RawMessage `json:"objects"`
	Pods    []json.RawMessage `json:"pods"`
}

type verdict struct {
	Code    string   `json:"code"`
	Reasons []string `json:"reasons"`
	Plugin  string   `json:"plugin"`
}

type cycleAnswer struct {
	PreFilter   *verdict                    `json:"preFilter"`
	Nodes       map[string]verdict          `json:"nodes"`
	Scores      map[string]map[string]int64 `json:"scores"`
	Victims     map[string][]string         `json:"victims"`
	Node        string                      `json:"node"`
	Reserved    *verdict                    `json:"reserved"`
	Annotations map[string]string           `json:"annotations"`
	Labels      map[string]string           `json:"labels"`
}

func init() {
	kubemetrics.Register()
	answering.Area("scheduling-cycles", answering.Of(cycles))
}

// still is an informer that is told its objects by the test.
type still struct {
	cache.SharedIndexInformer
	indexer  cache.Indexer
	handlers []cache.ResourceEventHandler
	change   cache.TransformFunc
}

func (s *still) GetIndexer() cache.Indexer           { return s.indexer }
func (s *still) GetStore() cache.Store               { return s.indexer }
func (s *still) HasSynced() bool                     { return true }
func (s *still) Run(<-chan struct{})                 {}
func (s *still) RunWithContext(context.Context)      {}
func (s *still) AddIndexers(i cache.Indexers) error  { return s.indexer.AddIndexers(i) }

func (s *still) SetTransform(change cache.TransformFunc) error {
	s.change = change
	for _, object := range s.indexer.List() {
		if err := s.indexer.Update(s.changed(object)); err != nil {
			return err
		}
	}
	return nil
}

func (s *still) changed(object any) any {
	if s.change == nil {
		return object
	}
	found, err := s.change(object)
	if err != nil {
		panic(err)
	}
	return found
}

func (s *still) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	s.handlers = append(s.handlers, handler)
	for _, object := range s.indexer.List() {
		handler.OnAdd(object, true)
	}
	return s, nil
}

// AddEventHandlerWithResyncPeriod is what handlers use that list the store themselves.
func (s *still) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, _ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	s.handlers = append(s.handlers, handler)
	return s, nil
}

func (s *still) set(object any) {
	object = s.changed(object)
	old, was, _ := s.indexer.Get(object)
	s.indexer.Update(object)
	for _, handler := range s.handlers {
		if was {
			handler.OnUpdate(old, object)
		} else {
			handler.OnAdd(object, false)
		}
	}
}

// world has the objects of a question where informers would have put them.
type world struct {
	kube  informers.SharedInformerFactory
	koord koordinformers.SharedInformerFactory
	nrt   nrtinformers.SharedInformerFactory
	kinds map[string]*still
	fwk.SharedLister
	preemption *defaultpreemption.DefaultPreemption
}

var kubeKinds = []runtime.Object{
	&corev1.Pod{}, &corev1.Node{}, &corev1.Namespace{}, &corev1.Service{}, &corev1.ReplicationController{},
	&corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}, &corev1.ConfigMap{}, &appsv1.ReplicaSet{},
	&appsv1.StatefulSet{}, &storagev1.StorageClass{}, &storagev1.CSINode{}, &storagev1.CSIDriver{},
	&storagev1.CSIStorageCapacity{}, &storagev1.VolumeAttachment{}, &policyv1.PodDisruptionBudget{},
	&resourcev1.ResourceClaim{}, &resourcev1.DeviceClass{}, &resourcev1.ResourceSlice{},
}

var koordKinds = []runtime.Object{
	&schedulingv1alpha1.Reservation{}, &schedulingv1alpha1.Device{}, &slov1alpha1.NodeMetric{},
	&schedulingv1alpha1.PodMigrationJob{},
}

func newWorld(kubeClient kubernetes.Interface, koordClient koordclient.Interface, nrtClient nrtclient.Interface,
	objects []json.RawMessage) (*world, error) {
	w := &world{
		kube:  informers.NewSharedInformerFactory(kubeClient, 0),
		koord: koordinformers.NewSharedInformerFactory(koordClient, 0),
		nrt:   nrtinformers.NewSharedInformerFactory(nrtClient, 0),
		kinds: map[string]*still{},
	}
	samples := map[string]reflect.Type{}
	put := func(sample runtime.Object) *still {
		kind := &still{indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc,
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
		name := reflect.TypeOf(sample).Elem().Name()
		w.kinds[name], samples[name] = kind, reflect.TypeOf(sample).Elem()
		return kind
	}
	for _, sample := range kubeKinds {
		kind := put(sample)
		w.kube.InformerFor(sample, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return kind })
	}
	for _, sample := range koordKinds {
		kind := put(sample)
		w.koord.InformerFor(sample, func(koordclient.Interface, time.Duration) cache.SharedIndexInformer { return kind })
	}
	topologies := put(&nrtv1alpha1.NodeResourceTopology{})
	w.nrt.InformerFor(&nrtv1alpha1.NodeResourceTopology{},
		func(nrtclient.Interface, time.Duration) cache.SharedIndexInformer { return topologies })
	for _, text := range objects {
		var meta metav1.TypeMeta
		if err := json.Unmarshal(text, &meta); err != nil {
			return nil, err
		}
		kind, known := w.kinds[meta.Kind]
		if !known {
			return nil, fmt.Errorf("no objects of kind %q", meta.Kind)
		}
		object := reflect.New(samples[meta.Kind]).Interface()
		if err := json.Unmarshal(text, object); err != nil {
			return nil, err
		}
		kind.set(object)
	}
	transformer.SetupTransformers(w.kube, w.koord, w.nrt)
	return w, nil
}

// look brings what plugins see of nodes up to date; an available Reservation is there as a pod.
func (w *world) look() {
	pods, nodes := []*corev1.Pod{}, []*corev1.Node{}
	for _, each := range w.kinds["Pod"].indexer.List() {
		if pod := each.(*corev1.Pod); pod.Spec.NodeName != "" {
			pods = append(pods, pod)
		}
	}
	for _, each := range w.kinds["Reservation"].indexer.List() {
		if found := each.(*schedulingv1alpha1.Reservation); reservationutil.IsReservationAvailable(found) {
			pods = append(pods, reservationutil.NewReservePod(found))
		}
	}
	for _, each := range w.kinds["Node"].indexer.List() {
		nodes = append(nodes, each.(*corev1.Node))
	}
	sort.Slice(pods, func(i, j int) bool { return pods[i].Name < pods[j].Name })
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].Name < nodes[j].Name })
	w.SharedLister = internalcache.NewSnapshot(pods, nodes)
}

// endReservation is what the controller does to a Reservation for one pod.
func (w *world) endReservation(pod *corev1.Pod) {
	for _, each := range w.kinds["Reservation"].indexer.List() {
		found := each.(*schedulingv1alpha1.Reservation).DeepCopy()
		taken, err := extension.GetReservationAllocated(pod)
		if err == nil && taken != nil && taken.UID == found.UID && extension.IsReservationAllocateOnce(found) {
			found.Status.Phase = schedulingv1alpha1.ReservationSucceeded
			found.Status.CurrentOwners = []corev1.ObjectReference{{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}}
			w.kinds["Reservation"].set(found)
		}
	}
}

func profileOf(text []byte) (*config.KubeSchedulerProfile, error) {
	object, _, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	read, is := object.(*config.KubeSchedulerConfiguration)
	if !is {
		return nil, fmt.Errorf("not a configuration")
	}
	defaultprofile.AppendDefaultPlugins(read.Profiles)
	return &read.Profiles[0], nil
}

func cycles(given cyclesQuestion) (any, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	defer func() {
		if problem := recover(); problem != nil {
			panic(fmt.Sprintf("%v\n%s", problem, debug.Stack()))
		}
	}()
	profile, err := profileOf(given.Config)
	if err != nil {
		return nil, err
	}
	kubeClient, koordClient := kubefake.NewSimpleClientset(), koordfake.NewSimpleClientset()
	w, err := newWorld(kubeClient, koordClient, nrtfake.NewSimpleClientset(), given.Objects)
	if err != nil {
		return nil, err
	}
	w.look()
	extenders, err := frameworkext.NewFrameworkExtenderFactory(
		frameworkext.WithKoordinatorClientSet(koordClient),
		frameworkext.WithKoordinatorSharedInformerFactory(w.koord),
		frameworkext.WithNodeResourceTopologySharedInformerFactory(w.nrt),
	)
	if err != nil {
		return nil, err
	}
	extenders.InitScheduler(frameworkext.NewFakeScheduler())
	registry := plugins.NewInTreeRegistry()
	preempting := registry[defaultpreemption.Name]
	registry[defaultpreemption.Name] = func(ctx context.Context, args runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		plugin, err := preempting(ctx, args, handle)
		w.preemption, _ = plugin.(*defaultpreemption.DefaultPreemption)
		return plugin, err
	}
	for name, factory := range map[string]schedruntime.PluginFactory{
		loadaware.Name: loadaware.New, nodenumaresource.Name: nodenumaresource.New, reservation.Name: reservation.New,
		deviceshare.Name: deviceshare.New, defaultprebind.Name: defaultprebind.New, fitplus.Name: fitplus.New,
		scarceresourceavoidance.Name: scarceresourceavoidance.New, schedulinghint.Name: schedulinghint.New,
	} {
		registry[name] = frameworkext.PluginFactoryProxy(extenders, factory)
	}
	run, err := schedruntime.NewFramework(ctx, registry, profile,
		schedruntime.WithClientSet(kubeClient),
		schedruntime.WithInformerFactory(w.kube),
		schedruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(w.kube.Storage().V1().CSINodes().Lister())),
		schedruntime.WithSnapshotSharedLister(w),
		schedruntime.WithPodNominator(frameworkext.NewFakePodNominator()),
		schedruntime.WithEventRecorder(events.NewFakeRecorder(1000)),
		schedruntime.WithParallelism(1),
		schedruntime.WithLogger(klog.Background()),
	)
	if err != nil {
		return nil, err
	}
	extender := extenders.GetExtender(profile.SchedulerName)
	extender.SetConfiguredPlugins(run.ListPlugins())
	answers := []*cycleAnswer{}
	for _, text := range given.Pods {
		var meta metav1.TypeMeta
		if err := json.Unmarshal(text, &meta); err != nil {
			return nil, err
		}
		var answer *cycleAnswer
		if meta.Kind == "Reservation" {
			answer, err = w.placeReservation(ctx, extender, koordClient, text)
		} else {
			answer, err = w.placePod(ctx, extender, kubeClient, text)
		}
		if err != nil {
			return nil, err
		}
		answers = append(answers, answer)
	}
	return answers, nil
}

func (w *world) placePod(ctx context.Context, run frameworkext.FrameworkExtender, client kubernetes.Interface, text []byte) (*cycleAnswer, error) {
	pod := &corev1.Pod{}
	if err := json.Unmarshal(text, pod); err != nil {
		return nil, err
	}
	pods := client.CoreV1().Pods(pod.Namespace)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	w.kinds["Pod"].set(pod.DeepCopy())
	w.look()
	seen, _, _ := w.kinds["Pod"].indexer.Get(pod)
	answer, err := cycle(ctx, run, w, seen.(*corev1.Pod).DeepCopy())
	if err != nil || answer.Annotations == nil {
		return answer, err
	}
	stored, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	bound := stored.DeepCopy()
	answer.Annotations, answer.Labels = bound.Annotations, bound.Labels
	bound.Spec.NodeName = answer.Node
	bound.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
	w.kinds["Pod"].set(bound)
	w.endReservation(bound)
	return answer, nil
}

func (w *world) placeReservation(ctx context.Context, run frameworkext.FrameworkExtender, client koordclient.Interface, text []byte) (*cycleAnswer, error) {
	reservation := &schedulingv1alpha1.Reservation{}
	if err := json.Unmarshal(text, reservation); err != nil {
		return nil, err
	}
	reservations := client.SchedulingV1alpha1().Reservations()
	if _, err := reservations.Create(ctx, reservation, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	w.kinds["Reservation"].set(reservation.DeepCopy())
	w.look()
	pod := reservationutil.NewReservePod(reservation)
	answer, err := cycle(ctx, run, w, pod)
	if err != nil || answer.Annotations == nil {
		return answer, err
	}
	stored, err := reservations.Get(ctx, reservation.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	bound := stored.DeepCopy()
	answer.Annotations, answer.Labels = bound.Annotations, bound.Labels
	if err := reservationutil.SetReservationAvailable(bound, answer.Node); err != nil {
		return nil, err
	}
	w.kinds["Reservation"].set(bound)
	return answer, nil
}

// cycle is what a scheduling cycle does, without stopping at enough nodes; of equally good ones the first by name.
func cycle(ctx context.Context, run frameworkext.FrameworkExtender, w *world, pod *corev1.Pod) (*cycleAnswer, error) {
	found := &cycleAnswer{Nodes: map[string]verdict{}, Scores: map[string]map[string]int64{}}
	state := framework.NewCycleState()
	frameworkext.InitDiagnosis(state, pod)
	left, status, leftBy := run.RunPreFilterPlugins(ctx, state, pod)
	if !status.IsSuccess() {
		found.PreFilter = verdictOf(status)
		return found, nil
	}
	nodes, err := w.NodeInfos().List()
	if err != nil {
		return nil, err
	}
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].Node().Name < nodes[j].Node().Name })
	feasible, refused := []fwk.NodeInfo{}, []fwk.NodeInfo{}
	for _, info := range nodes {
		name := info.Node().Name
		status := fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", leftBy.UnsortedList()))
		if left.AllNodes() || left.NodeNames.Has(name) {
			status = run.RunFilterPluginsWithNominatedPods(ctx, state, pod, info)
		}
		found.Nodes[name] = *verdictOf(status)
		if status.IsSuccess() {
			feasible = append(feasible, info)
		} else if status.Code() == fwk.Unschedulable {
			refused = append(refused, info)
		}
	}
	if len(feasible) == 0 {
		if !reservationutil.IsReservePod(pod) {
			w.findVictims(ctx, state, pod, refused, found)
		}
		return found, nil
	}
	if status := run.RunPreScorePlugins(ctx, state, pod, feasible); !status.IsSuccess() {
		return nil, status.AsError()
	}
	scores, status := run.RunScorePlugins(ctx, state, pod, feasible)
	if !status.IsSuccess() {
		return nil, status.AsError()
	}
	best := int64(-1)
	for _, each := range scores {
		byPlugin := map[string]int64{}
		for _, score := range each.Scores {
			byPlugin[score.Name] = score.Score
		}
		found.Scores[each.Name] = byPlugin
		if each.TotalScore > best {
			best, found.Node = each.TotalScore, each.Name
		}
	}
	return found, place(ctx, run, state, pod, found)
}

// findVictims says which pods would have to leave each node for this one.
func (w *world) findVictims(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo, found *cycleAnswer) {
	found.Victims = map[string][]string{}
	for _, info := range nodes {
		pods, _, status := w.preemption.SelectVictimsOnNode(ctx, state.Clone(), pod, info.Snapshot(), nil)
		names := []string{}
		for _, each := range pods {
			names = append(names, each.Name)
		}
		sort.Strings(names)
		if status.IsSuccess() {
			found.Victims[info.Node().Name] = names
		}
	}
}

func place(ctx context.Context, run frameworkext.FrameworkExtender, state fwk.CycleState, pod *corev1.Pod, found *cycleAnswer) error {
	if nominator := run.GetReservationNominator(); nominator != nil {
		if status := nominator.ReservationNominate(ctx, state, pod, found.Node); !status.IsSuccess() {
			found.Reserved = verdictOf(status)
			return nil
		}
	}
	assumed := pod.DeepCopy()
	assumed.Spec.NodeName = found.Node
	status := run.RunReservePluginsReserve(ctx, state, assumed, found.Node)
	if !status.IsSuccess() {
		run.RunReservePluginsUnreserve(ctx, state, assumed, found.Node)
		found.Reserved = verdictOf(status)
		return nil
	}
	if status := run.RunPreBindPlugins(ctx, state, assumed, found.Node); !status.IsSuccess() {
		return status.AsError()
	}
	found.Annotations = map[string]string{}
	return nil
}

func verdictOf(status *fwk.Status) *verdict {
	found := verdict{Code: status.Code().String(), Reasons: []string{}}
	if !status.IsSuccess() {
		found.Reasons, found.Plugin = append(found.Reasons, status.Reasons()...), status.Plugin()
	}
	return &found
}
