// in pkg/scheduler/plugins/loadaware
package loadaware

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwktype "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/koordinator-sh/koordinator/apis/extension"
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
	v1 "github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config/v1"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config/validation"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/loadaware/estimator"
)

const theNode = "node"

type loadQuestion struct {
	Kind string                     `json:"kind"`
	Args v1.LoadAwareSchedulingArgs `json:"args"`
	Node struct {
		Allocatable corev1.ResourceList `json:"allocatable"`
		Annotations map[string]string   `json:"annotations"`
	} `json:"node"`
	NodeMetric   *flatMetric   `json:"nodeMetric"`
	AssignedPods []assignedPod `json:"assignedPods"`
	Pod          *corev1.Pod   `json:"pod"`
}

type flatMetric struct {
	ReportIntervalSeconds *int64              `json:"reportIntervalSeconds"`
	UpdateAgeSeconds      *int64              `json:"updateAgeSeconds"`
	NodeUsage             corev1.ResourceList `json:"nodeUsage"`
	SystemUsage           corev1.ResourceList `json:"systemUsage"`
	AggregatedNodeUsages  []struct {
		DurationSeconds int64                                             `json:"durationSeconds"`
		Usage           map[extension.AggregationType]corev1.ResourceList `json:"usage"`
	} `json:"aggregatedNodeUsages"`
	Pods []struct {
		Namespace string                  `json:"namespace"`
		Name      string                  `json:"name"`
		Priority  extension.PriorityClass `json:"priority"`
		Usage     corev1.ResourceList     `json:"usage"`
	} `json:"pods"`
}

type assignedPod struct {
	ScheduledAgeSeconds   *int64      `json:"scheduledAgeSeconds"`
	InitializedAgeSeconds *int64      `json:"initializedAgeSeconds"`
	Pod                   *corev1.Pod `json:"pod"`
}

func init() {
	answering.Area("loadaware-filter", answering.Of(filtered))
	answering.Area("loadaware-score", answering.Of(scored))
	answering.Area("loadaware-podcache", answering.Of(cached))
	answering.Area("loadaware-estimate", answering.Of(estimated))
}

// oneNode is a handle that knows one node.
type oneNode struct {
	fwktype.Handle
	fwktype.SharedLister
	fwktype.NodeInfoLister
	info *framework.NodeInfo
}

func (o oneNode) SnapshotSharedLister() fwktype.SharedLister    { return o }
func (o oneNode) NodeInfos() fwktype.NodeInfoLister             { return o }
func (o oneNode) Get(nodeName string) (fwktype.NodeInfo, error) { return o.info, nil }

func (m *flatMetric) object(now time.Time) *slov1alpha1.NodeMetric {
	metric := &slov1alpha1.NodeMetric{ObjectMeta: metav1.ObjectMeta{Name: theNode}}
	metric.Spec.CollectPolicy = &slov1alpha1.NodeMetricCollectPolicy{ReportIntervalSeconds: m.ReportIntervalSeconds}
	if m.UpdateAgeSeconds != nil {
		metric.Status.UpdateTime = &metav1.Time{Time: now.Add(-seconds(*m.UpdateAgeSeconds))}
	}
	if m.NodeUsage != nil {
		info := &slov1alpha1.NodeMetricInfo{}
		info.NodeUsage.ResourceList, info.SystemUsage.ResourceList = m.NodeUsage, m.SystemUsage
		for _, each := range m.AggregatedNodeUsages {
			usage := map[extension.AggregationType]slov1alpha1.ResourceMap{}
			for kind, amounts := range each.Usage {
				usage[kind] = slov1alpha1.ResourceMap{ResourceList: amounts}
			}
			info.AggregatedNodeUsages = append(info.AggregatedNodeUsages, slov1alpha1.AggregatedUsage{
				Usage: usage, Duration: metav1.Duration{Duration: seconds(each.DurationSeconds)}})
		}
		metric.Status.NodeMetric = info
	}
	for _, each := range m.Pods {
		pod := &slov1alpha1.PodMetricInfo{Namespace: each.Namespace, Name: each.Name, Priority: each.Priority}
		pod.PodUsage.ResourceList = each.Usage
		metric.Status.PodsMetric = append(metric.Status.PodsMetric, pod)
	}
	return metric
}

func seconds(count int64) time.Duration { return time.Duration(count) * time.Second }

func (a assignedPod) object(now time.Time) *corev1.Pod {
	pod := a.Pod.DeepCopy()
	pod.UID = types.UID(pod.Namespace + "/" + pod.Name)
	pod.Status.Conditions = nil
	for kind, age := range map[corev1.PodConditionType]*int64{
		corev1.PodScheduled: a.ScheduledAgeSeconds, corev1.PodInitialized: a.InitializedAgeSeconds,
	} {
		if age != nil {
			pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
				Type: kind, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.Time{Time: now.Add(-seconds(*age))}})
		}
	}
	return pod
}

func arguments(asked loadQuestion) (*config.LoadAwareSchedulingArgs, error) {
	v1.SetDefaults_LoadAwareSchedulingArgs(&asked.Args)
	args := &config.LoadAwareSchedulingArgs{}
	if err := v1.Convert_v1_LoadAwareSchedulingArgs_To_config_LoadAwareSchedulingArgs(&asked.Args, args, nil); err != nil {
		return nil, err
	}
	checked := args.DeepCopy() // the estimator itself takes factors above 100
	for name, factor := range checked.EstimatedScalingFactors {
		checked.EstimatedScalingFactors[name] = min(factor, 100)
	}
	return args, validation.ValidateLoadAwareSchedulingArgs(checked)
}

// plugin after it has heard of the node, the report and the pods.
func (asked loadQuestion) plugin() (*Plugin, error) {
	args, err := arguments(asked)
	if err != nil {
		return nil, err
	}
	estimate, err := estimator.NewEstimator(args, nil)
	if err != nil {
		return nil, err
	}
	info := framework.NewNodeInfo()
	info.SetNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: theNode, Annotations: asked.Node.Annotations},
		Status:     corev1.NodeStatus{Allocatable: asked.Node.Allocatable},
	})
	vectorizer := NewResourceVectorizerFromArgs(args)
	plugin := &Plugin{
		handle: oneNode{info: info}, args: args, vectorizer: vectorizer, estimator: estimate,
		filterProfile:  NewUsageThresholdsFilterProfile(args, vectorizer),
		podAssignCache: newPodAssignCache(estimate, vectorizer, args),
	}
	weights := vectorizer.ToFactorVec(args.ResourceWeights)
	if args.DominantResourceWeight != 0 || !weights.Empty() {
		plugin.scoreWeights = weights
	}
	now := time.Now()
	plugin.podAssignCache.clock = clocktesting.NewFakeClock(now)
	if asked.NodeMetric != nil {
		plugin.podAssignCache.AddOrUpdateNodeMetric(asked.NodeMetric.object(now))
	}
	for _, each := range asked.AssignedPods {
		plugin.podAssignCache.assign(theNode, each.object(now))
	}
	return plugin, nil
}

func filtered(asked loadQuestion) (any, error) {
	plugin, err := asked.plugin()
	if err != nil {
		return nil, err
	}
	state := framework.NewCycleState()
	plugin.PreFilter(context.TODO(), state, asked.Pod, nil)
	status := plugin.Filter(context.TODO(), state, asked.Pod, plugin.handle.(oneNode).info)
	return map[string]string{"code": status.Code().String(), "reason": status.Message()}, nil
}

func scored(asked loadQuestion) (any, error) {
	plugin, err := asked.plugin()
	if err != nil {
		return nil, err
	}
	state := framework.NewCycleState()
	plugin.PreFilter(context.TODO(), state, asked.Pod, nil)
	score, status := plugin.Score(context.TODO(), state, asked.Pod, plugin.handle.(oneNode).info)
	if !status.IsSuccess() {
		return nil, status.AsError()
	}
	return map[string]int64{"score": score}, nil
}

func cached(asked loadQuestion) (any, error) {
	plugin, err := asked.plugin()
	if err != nil {
		return nil, err
	}
	found, known := plugin.podAssignCache.getNodeInfo(theNode)
	if !known || found.nodeMetric == nil {
		return nil, errors.New("no report")
	}
	answer := map[string]any{}
	for name, amounts := range map[string]ResourceVector{
		"nodeUsage": found.nodeUsage, "prodUsage": found.prodUsage, "nodeDelta": found.nodeDelta,
		"prodDelta": found.prodDelta, "nodeEstimated": found.nodeEstimated,
	} {
		if amounts == nil {
			amounts = plugin.vectorizer.EmptyVec()
		}
		answer[name] = plugin.vectorizer.ToFactorList(amounts)
	}
	return answer, nil
}

func estimated(asked loadQuestion) (any, error) {
	args, err := arguments(asked)
	if err != nil {
		return nil, err
	}
	estimate, err := estimator.NewEstimator(args, nil)
	if err != nil {
		return nil, err
	}
	switch asked.Kind {
	case "pod":
		amounts, err := estimate.EstimatePod(asked.Pod)
		return map[string]any{"estimated": amounts}, err
	case "node":
		amounts, err := estimate.EstimateNode(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Annotations: asked.Node.Annotations},
			Status:     corev1.NodeStatus{Allocatable: asked.Node.Allocatable},
		})
		return map[string]any{"allocatable": amounts}, err
	}
	return nil, fmt.Errorf("no kind %q", asked.Kind)
}
