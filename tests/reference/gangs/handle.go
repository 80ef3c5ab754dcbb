// in pkg/scheduler/plugins/coscheduling/core
package core

import (
	"context"
	"sort"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwktype "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework/parallelize"
	"k8s.io/kubernetes/pkg/scheduler/metrics"

	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext/networktopology"
	koordmetrics "github.com/koordinator-sh/koordinator/pkg/scheduler/metrics"
)

func init() {
	klog.SetLogger(logr.Discard())
	metrics.Register()
	koordmetrics.Register()
}

// rack stands for the scheduler around the plugin: nodes with cpu, pods that wait, and what is done to them.
type rack struct {
	frameworkext.ExtendedHandle
	snapshot    fwktype.SharedLister
	client      *fake.Clientset
	waiting     map[types.UID]*waiter
	trees       networktopology.TreeManager
	nominations map[string]string
	activated   []string
}

func newRack(nodes []*corev1.Node, pods []*corev1.Pod) *rack {
	client := fake.NewSimpleClientset()
	for _, pod := range pods {
		_ = client.Tracker().Add(pod)
	}
	return &rack{snapshot: cache.NewSnapshot(pods, nodes), client: client, waiting: map[types.UID]*waiter{},
		nominations: map[string]string{}}
}

// waiter is a pod in Permit.
type waiter struct {
	fwktype.WaitingPod
	pod               *corev1.Pod
	allowed           bool
	rejected, message string
}

func (w *waiter) GetPod() *corev1.Pod        { return w.pod }
func (w *waiter) Allow(string)               { w.allowed = true }
func (w *waiter) Reject(plugin, text string) { w.rejected, w.message = plugin, text }

func (r *rack) SnapshotSharedLister() fwktype.SharedLister { return r.snapshot }
func (r *rack) Parallelizer() fwktype.Parallelizer         { return parallelize.NewParallelizer(1) }
func (r *rack) ClientSet() clientset.Interface             { return r.client }
func (r *rack) EventRecorder() events.EventRecorder        { return &events.FakeRecorder{} }
func (r *rack) NominatedPodsForNode(string) []fwktype.PodInfo {
	return nil
}
func (r *rack) GetNetworkTopologyTreeManager() networktopology.TreeManager { return r.trees }
func (r *rack) DeleteNominatedPodIfExists(pod *corev1.Pod)                 { r.nominations[pod.Name] = "" }
func (r *rack) AddNominatedPod(_ klog.Logger, pod fwktype.PodInfo, where *fwktype.NominatingInfo) {
	r.nominations[pod.GetPod().Name] = where.NominatedNodeName
}

func (r *rack) GetWaitingPod(uid types.UID) fwktype.WaitingPod {
	if found := r.waiting[uid]; found != nil {
		return found
	}
	return nil
}

func (r *rack) IterateOverWaitingPods(visit func(fwktype.WaitingPod)) {
	for _, each := range r.waiting {
		visit(each)
	}
}

func (r *rack) RunFilterPluginsWithNominatedPods(_ context.Context, _ fwktype.CycleState, pod *corev1.Pod, node fwktype.NodeInfo) *fwktype.Status {
	free := node.GetAllocatable().GetMilliCPU() - node.GetRequested().GetMilliCPU()
	if asked := cpuOf(pod); asked > 0 && asked > free {
		return fwktype.NewStatus(fwktype.Unschedulable, "Insufficient cpu")
	}
	return nil
}

func (r *rack) RunPreFilterExtensionAddPod(context.Context, fwktype.CycleState, *corev1.Pod, fwktype.PodInfo, fwktype.NodeInfo) *fwktype.Status {
	return nil
}

func (r *rack) RunPreFilterExtensionRemovePod(context.Context, fwktype.CycleState, *corev1.Pod, fwktype.PodInfo, fwktype.NodeInfo) *fwktype.Status {
	return nil
}

func (r *rack) Scheduler() frameworkext.Scheduler { return desk{rack: r} }

type desk struct {
	frameworkext.Scheduler
	frameworkext.SchedulingQueue
	rack *rack
}

func (d desk) GetSchedulingQueue() frameworkext.SchedulingQueue { return d }
func (d desk) Activate(_ klog.Logger, pods map[string]*corev1.Pod) {
	for key := range pods {
		d.rack.activated = append(d.rack.activated, key)
	}
}

// tree is a network that does not change.
type tree struct {
	networktopology.TreeManager
	snapshot *networktopology.TreeSnapshot
}

func (t tree) GetSnapshot() *networktopology.TreeSnapshot { return t.snapshot }

func cpuOf(pod *corev1.Pod) int64 {
	return pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
}

func sortedKeys[T any](of map[string]T) []string {
	keys := make([]string, 0, len(of))
	for key := range of {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
