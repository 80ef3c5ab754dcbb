// in pkg/koordlet/qosmanager/plugins/cpusuppress
package cpusuppress

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"

	topov1alpha1 "github.com/k8stopologyawareschedwg/noderesourcetopology-api/pkg/apis/topology/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	apiext "github.com/koordinator-sh/koordinator/apis/extension"
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/metriccache"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/resourceexecutor"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/statesinformer"
	koordletutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
)

type suppressQuestion struct {
	Op   string
	Node struct {
		CapacityCPU, AllocatableCPU string
		Reservation                 json.RawMessage
	}
	NodeUsedCores    float64
	PodUsedCores     map[string]float64
	HostAppUsedCores map[string]float64
	HostApps         []struct{ Name, QOS, CgroupBase string }
	Pods             []struct{ UID, QOS, KubeQOS, CPUSet string }
	ThresholdPercent int64
	MinPercent       *int64
	Count            int32
	Processors       []koordletutil.ProcessorInfo
	BEMilliCPU       int64
	OldCPUSet        string
	ReservedCPUs     string
	SystemQOS        json.RawMessage
	CapacityCPU      string
	CurrentQuota     int64
}

func init() {
	answering.Area("cpu-suppress", answering.Of(suppressAnswer))
	system.UseCgroupsV2.Store(false)
}

func suppressAnswer(asked suppressQuestion) (any, error) {
	files := &resourceexecutor.Known{CPUs: asked.OldCPUSet}
	metrics := metriccache.NewKnown()
	metrics.Set(metriccache.NodeCPUInfoKey, &metriccache.NodeCPUInfo{ProcessorInfos: asked.Processors})
	states := &statesinformer.Known{Pods: asked.pods(), NodeTopo: &topov1alpha1.NodeResourceTopology{}}
	states.NodeTopo.Annotations = asked.annotations()
	r := &CPUSuppress{
		statesInformer: states, metricCache: metrics, executor: files, cgroupReader: files,
		suppressPolicyStatuses: map[string]suppressPolicyStatus{},
	}
	be := koordletutil.GetPodQoSRelativePath(corev1.PodQOSBestEffort)
	switch asked.Op {
	case "amount":
		return asked.amount(r), nil
	case "pick":
		found := calculateBESuppressCPUSetPolicy(asked.Count, asked.Processors)
		return map[string]any{"cpus": append([]int32{}, found...)}, nil
	case "cpuset":
		// the groups are looked for on the disk
		root, err := os.MkdirTemp("", "answering")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(root)
		system.Conf.CgroupRootDir = root
		if err := os.MkdirAll(koordletutil.GetRootCgroupCPUSetDir(corev1.PodQOSBestEffort), 0o755); err != nil {
			return nil, err
		}
		r.adjustByCPUSet(resource.NewMilliQuantity(asked.BEMilliCPU, resource.DecimalSI), &metriccache.NodeCPUInfo{ProcessorInfos: asked.Processors})
		if len(files.Writes) == 0 {
			return map[string]any{"beCPUSet": nil}, nil
		}
		return map[string]any{"beCPUSet": files.Writes[len(files.Writes)-1].Value}, nil
	case "recover":
		found, err := r.calcBECPUSet()
		if err != nil {
			return nil, err
		}
		return map[string]any{"beCPUSet": found.String()}, nil
	case "quota":
		files.Quotas = map[string]int64{be: asked.CurrentQuota}
		node := &corev1.Node{}
		node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(asked.CapacityCPU)}
		r.adjustByCfsQuota(resource.NewMilliQuantity(asked.BEMilliCPU, resource.DecimalSI), node)
		return map[string]any{"write": len(files.Writes) > 0, "quota": files.Quotas[be]}, nil
	}
	return nil, fmt.Errorf("nothing answers %s", asked.Op)
}

func (q suppressQuestion) pods() []*statesinformer.PodMeta {
	pods := []*corev1.Pod{}
	for index, each := range q.Pods {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(index), UID: types.UID(each.UID)}}
		pod.Labels, pod.Annotations = map[string]string{}, map[string]string{}
		if each.QOS != "" {
			pod.Labels[apiext.LabelPodQoS] = each.QOS
		}
		pod.Status.QOSClass = corev1.PodQOSClass(each.KubeQOS)
		text, _ := json.Marshal(apiext.ResourceStatus{CPUSet: each.CPUSet})
		pod.Annotations[apiext.AnnotationResourceStatus] = string(text)
		pods = append(pods, pod)
	}
	return statesinformer.MetasOf(pods)
}

func (q suppressQuestion) annotations() map[string]string {
	found := map[string]string{}
	if q.ReservedCPUs != "" {
		text, _ := json.Marshal(apiext.NodeReservation{ReservedCPUs: q.ReservedCPUs})
		found[apiext.AnnotationNodeReservation] = string(text)
	}
	if q.SystemQOS != nil {
		found[apiext.AnnotationNodeSystemQOSResource] = string(q.SystemQOS)
	}
	return found
}

func (q suppressQuestion) amount(r *CPUSuppress) any {
	node := &corev1.Node{}
	node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(q.Node.CapacityCPU)}
	node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(q.Node.AllocatableCPU)}
	if q.Node.Reservation != nil {
		node.Annotations = map[string]string{apiext.AnnotationNodeReservation: string(q.Node.Reservation)}
	}
	apps := []slov1alpha1.HostApplicationSpec{}
	for _, each := range q.HostApps {
		app := slov1alpha1.HostApplicationSpec{Name: each.Name, QoS: apiext.QoSClass(each.QOS)}
		if each.CgroupBase != "" {
			app.CgroupPath = &slov1alpha1.CgroupPath{Base: slov1alpha1.CgroupBaseType(each.CgroupBase)}
		}
		apps = append(apps, app)
	}
	found := r.calculateBESuppressCPU(node, q.NodeUsedCores, q.PodUsedCores, r.statesInformer.GetAllPods(), apps,
		q.HostAppUsedCores, q.ThresholdPercent, q.MinPercent)
	return map[string]any{"beMilliCPU": found.MilliValue()}
}
