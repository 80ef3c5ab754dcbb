// in pkg/koordlet/qosmanager/plugins/cpuburst
package cpuburst

import (
	"encoding/json"
	"fmt"
	"time"

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
	"github.com/koordinator-sh/koordinator/pkg/util"
)

type burstContainer struct {
	Name             string
	LimitCPU         string
	HasID, Running   *bool
	Quota            int64
	ThrottledRatio   *float64
	UsedCores        *float64
	InitialTokens    *int64
	SecondsSinceLast float64
}

type burstQuestion struct {
	Op                        string
	NodeUsedCores             *float64
	CPUs                      *int
	Pods                      []struct{ UID, QOS, RequestCPU string }
	PodUsedCores              map[string]float64
	SharePoolThresholdPercent int64
	NodeConfig, Config        *slov1alpha1.CPUBurstConfig
	Annotation                *string
	QOS, Phase, NodeState     string
	Containers                []burstContainer
	PodQuota                  int64
	PeriodSeconds             int64
	BurstPercent              int64
	Tokens                    int64
	Seconds                   float64
	UsagePercent              int64
	LimitCPU                  string
	Quota                     int64
	InitialTokens             *int64
	Rounds                    []struct {
		NodeState                 string
		ThrottledRatio, UsedCores *float64
		Seconds                   *float64
	}
}

const podDir = "kubepods/pod"

var (
	nodeStates = map[string]nodeStateForBurst{
		"overload": nodeBurstOverload, "cooling": nodeBurstCooling, "idle": nodeBurstIdle, "unknown": nodeBurstUnknown,
	}
	operations = map[cfsOperation]string{cfsScaleUp: "up", cfsScaleDown: "down", cfsRemain: "remain", cfsReset: "reset"}
)

func init() { answering.Area("cpu-burst", answering.Of(burstAnswer)) }

func burstAnswer(asked burstQuestion) (any, error) {
	switch asked.Op {
	case "node_state":
		return asked.nodeState(), nil
	case "config":
		pod := &corev1.Pod{}
		if asked.Annotation != nil {
			pod.Annotations = map[string]string{slov1alpha1.AnnotationPodCPUBurst: *asked.Annotation}
		}
		return map[string]any{"config": genPodBurstConfig(pod, asked.NodeConfig)}, nil
	case "managed":
		pod := podOf("p", asked.QOS, "")
		pod.Status.Phase = corev1.PodPhase(asked.Phase)
		return map[string]any{"managed": util.IsPodCPUBurstable(pod) && !util.IsPodInactive(pod)}, nil
	case "burst_values":
		return asked.burstValues(), nil
	case "quota_step":
		return asked.quotaStep(), nil
	case "limiter":
		limiter := newBurstLimiter(asked.PeriodSeconds, asked.BurstPercent)
		limiter.currentToken = asked.Tokens
		now := time.Now()
		limiter.lastUpdateTime = now.Add(-secondsOf(asked.Seconds))
		allowed, tokens := limiter.Allow(now, asked.UsagePercent)
		return map[string]any{"allowed": allowed, "tokens": tokens}, nil
	case "sequence":
		return asked.sequence(), nil
	}
	return nil, fmt.Errorf("nothing answers %s", asked.Op)
}

func secondsOf(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

func podOf(uid, qos, request string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid), Labels: map[string]string{}}}
	if qos != "" {
		pod.Labels[apiext.LabelPodQoS] = qos
	}
	if request != "" {
		requests := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(request)}
		pod.Spec.Containers = []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}
	}
	return pod
}

func (q burstQuestion) nodeState() any {
	metrics, pods := metriccache.NewKnown(), []*corev1.Pod{}
	if q.NodeUsedCores != nil {
		metrics.PutOne(metriccache.NodeCPUUsageMetric, nil, *q.NodeUsedCores)
	}
	if q.CPUs != nil {
		processors := make([]koordletutil.ProcessorInfo, *q.CPUs)
		metrics.Set(metriccache.NodeCPUInfoKey, &metriccache.NodeCPUInfo{ProcessorInfos: processors})
	}
	for uid, used := range q.PodUsedCores {
		metrics.PutOne(metriccache.PodCPUUsageMetric, metriccache.MetricPropertiesFunc.Pod(uid), used)
	}
	for _, each := range q.Pods {
		pods = append(pods, podOf(each.UID, each.QOS, each.RequestCPU))
	}
	metas := statesinformer.MetasOf(pods)
	b := &cpuBurst{reconcileInterval: time.Second, statesInformer: &statesinformer.Known{Pods: metas}, metricCache: metrics}
	found := b.getNodeStateForBurst(q.SharePoolThresholdPercent, metas)
	for name, state := range nodeStates {
		if state == found {
			return map[string]any{"state": name}
		}
	}
	return nil
}

// podWith containers of which each has its name as ID.
func podWith(containers []burstContainer) *statesinformer.PodMeta {
	pod := podOf("p", "LS", "")
	for _, each := range containers {
		container, status := corev1.Container{Name: each.Name}, corev1.ContainerStatus{Name: each.Name}
		if each.LimitCPU != "" {
			container.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(each.LimitCPU)}
		}
		if each.HasID == nil || *each.HasID {
			status.ContainerID = idOf(each.Name)
		}
		if each.Running == nil || *each.Running {
			status.State.Running = &corev1.ContainerStateRunning{}
		}
		pod.Spec.Containers = append(pod.Spec.Containers, container)
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
	}
	return &statesinformer.PodMeta{Pod: pod, CgroupDir: podDir}
}

func idOf(name string) string { return "containerd://" + name }

func dirOf(name string) string {
	dir, err := koordletutil.GetContainerCgroupParentDir(podDir, &corev1.ContainerStatus{ContainerID: idOf(name)})
	if err != nil {
		panic(err)
	}
	return dir
}

func (q burstQuestion) burstValues() any {
	files := &resourceexecutor.Known{}
	b := &cpuBurst{executor: files}
	b.applyCPUBurst(q.Config, podWith(q.Containers))
	values, found := map[string]any{}, map[string]any{"pod": nil}
	for _, write := range files.Writes {
		if write.Dir == podDir {
			found["pod"] = json.Number(write.Value)
		}
		for _, each := range q.Containers {
			if write.Dir == dirOf(each.Name) {
				values[each.Name] = json.Number(write.Value)
			}
		}
	}
	found["containers"] = values
	return found
}

func (q burstQuestion) quotaStep() any {
	files := &resourceexecutor.Known{Quotas: map[string]int64{podDir: q.PodQuota}}
	b := &cpuBurst{
		executor: files, cgroupReader: files, metricCache: metriccache.NewKnown(),
		metricCollectInterval: time.Second, containerLimiter: map[string]*burstLimiter{},
	}
	for _, each := range q.Containers {
		files.Quotas[dirOf(each.Name)] = each.Quota
		b.know(each.Name, each.UsedCores, each.ThrottledRatio)
		if each.InitialTokens != nil {
			b.fill(each.Name, q.Config, *each.InitialTokens, each.SecondsSinceLast)
		}
	}
	found := b.step(q.Config, podWith(q.Containers), q.NodeState)
	quotas, writes := map[string]int64{}, []string{}
	for _, each := range q.Containers {
		quotas[each.Name] = files.Quotas[dirOf(each.Name)]
	}
	for _, write := range files.Writes {
		name := "pod"
		for _, each := range q.Containers {
			if write.Dir == dirOf(each.Name) {
				name = each.Name
			}
		}
		writes = append(writes, name+"="+write.Value)
	}
	return map[string]any{"containers": quotas, "pod": files.Quotas[podDir], "operations": found, "writes": writes}
}

func (b *cpuBurst) know(name string, used, throttled *float64) {
	metrics, of := b.metricCache.(*metriccache.Known), metriccache.MetricPropertiesFunc.Container(idOf(name))
	metrics.Put(metriccache.ContainerCPUUsageMetric, of, sampleOf(used))
	metrics.Put(metriccache.ContainerCPUThrottledMetric, of, sampleOf(throttled))
}

func sampleOf(value *float64) metriccache.Sample {
	if value == nil {
		return metriccache.Sample{}
	}
	return metriccache.Sample{Count: 1, Avg: value, Last: value}
}

func (b *cpuBurst) fill(name string, config *slov1alpha1.CPUBurstConfig, tokens int64, seconds float64) {
	if config.CFSQuotaBurstPeriodSeconds == nil || config.CFSQuotaBurstPercent == nil {
		return
	}
	limiter := newBurstLimiter(*config.CFSQuotaBurstPeriodSeconds, *config.CFSQuotaBurstPercent)
	limiter.currentToken = tokens
	limiter.lastUpdateTime = time.Now().Add(-secondsOf(seconds))
	b.containerLimiter[idOf(name)] = limiter
}

// step applies a round; it says what is done to each container, as a copy of the buckets tells.
func (b *cpuBurst) step(config *slov1alpha1.CPUBurstConfig, meta *statesinformer.PodMeta, state string) map[string]string {
	twin := *b
	twin.containerLimiter = map[string]*burstLimiter{}
	for name, limiter := range b.containerLimiter {
		same := *limiter
		twin.containerLimiter[name] = &same
	}
	found := map[string]string{}
	for index := range meta.Pod.Spec.Containers {
		container, status := &meta.Pod.Spec.Containers[index], &meta.Pod.Status.ContainerStatuses[index]
		if status.State.Running == nil || koordletutil.GetContainerBaseCFSQuota(container) <= 0 {
			continue
		}
		_, operation := changeOperationByNode(nodeStates[state], twin.genOperationByContainer(config, meta.Pod, container, status))
		found[container.Name] = operations[operation]
	}
	b.applyCFSQuotaBurst(config, meta, nodeStates[state])
	return found
}

func (q burstQuestion) sequence() any {
	files := &resourceexecutor.Known{Quotas: map[string]int64{podDir: q.PodQuota, dirOf("c"): q.Quota}}
	b := &cpuBurst{
		executor: files, cgroupReader: files, metricCache: metriccache.NewKnown(),
		metricCollectInterval: time.Second, containerLimiter: map[string]*burstLimiter{},
	}
	if q.InitialTokens != nil {
		b.fill("c", q.Config, *q.InitialTokens, 0)
	}
	meta, rounds := podWith([]burstContainer{{Name: "c", LimitCPU: q.LimitCPU}}), []any{}
	for _, each := range q.Rounds {
		b.know("c", each.UsedCores, each.ThrottledRatio)
		limiter, known := b.containerLimiter[idOf("c")]
		if known {
			seconds := 1.0
			if each.Seconds != nil {
				seconds = *each.Seconds
			}
			limiter.lastUpdateTime = time.Now().Add(-secondsOf(seconds))
		}
		operation := b.step(q.Config, meta, each.NodeState)["c"]
		round := map[string]any{"operation": operation, "quota": files.Quotas[dirOf("c")], "podQuota": files.Quotas[podDir]}
		if percent := q.Config.CFSQuotaBurstPercent; known && percent != nil && *percent >= 100 && *q.Config.CFSQuotaBurstPeriodSeconds >= 0 {
			round["tokens"] = limiter.currentToken
		}
		rounds = append(rounds, round)
	}
	return map[string]any{"rounds": rounds}
}
