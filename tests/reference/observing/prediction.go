// in pkg/koordlet/prediction
package prediction

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/util"
)

type knownPeak struct {
	P95 struct {
		CPUMilli int64 `json:"cpuMilli"`
	} `json:"p95"`
	P98 struct {
		MemoryBytes int64 `json:"memoryBytes"`
	} `json:"p98"`
}

type agedPod struct {
	corev1.Pod
	AgeSeconds int64 `json:"ageSeconds"`
}

type reclaimableQuestion struct {
	Node        corev1.Node `json:"node"`
	Pods        []agedPod   `json:"pods"`
	Predictions struct {
		System  knownPeak            `json:"system"`
		Classes map[string]knownPeak `json:"classes"`
		Pods    map[string]knownPeak `json:"pods"`
	} `json:"predictions"`
	SafetyMarginPercent int   `json:"safetyMarginPercent"`
	ColdStartSeconds    int64 `json:"coldStartSeconds"`
}

func init() { answering.Area("prod-reclaimable", answering.Of(reclaimable)) }

func reclaimable(asked reclaimableQuestion) (any, error) {
	coldStart := time.Duration(asked.ColdStartSeconds) * time.Second
	factory := NewPredictorFactory(knownServer{peaks: asked.peaks()}, coldStart, asked.SafetyMarginPercent)
	both := factory.New(ProdReclaimablePredictor, PredictorContext{Node: &asked.Node}).(*minPredictor)
	byPods := both.predictors[0].(*podReclaimablePredictor)
	byClass := both.predictors[1].(*priorityReclaimablePredictor)
	unpredicted := util.NewZeroResourceList()
	for i := range asked.Pods {
		pod := &asked.Pods[i].Pod
		// A little older: time passes until the predictor looks.
		pod.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Second/2 - time.Duration(asked.Pods[i].AgeSeconds)*time.Second))
		err := both.AddPod(pod)
		// This release does not report peaks; later ones count what nobody knows as requested.
		if isPodReclaimableForProd(pod) && (err != nil || asked.Pods[i].AgeSeconds <= asked.ColdStartSeconds) {
			unpredicted = quotav1.Add(unpredicted, util.GetPodRequest(pod, corev1.ResourceCPU, corev1.ResourceMemory))
		}
	}
	answer := map[string]any{}
	for name, of := range map[string]Predictor{"byPods": byPods, "byClass": byClass, "reclaimable": both} {
		amounts, err := of.GetResult()
		if err != nil {
			return nil, err
		}
		answer[name] = amountOf(amounts)
	}
	peakByPods := quotav1.Add(byPods.unReclaimable, unpredicted)
	peakByClass := byClass.peak()
	answer["peakByPods"], answer["peakByClass"] = amountOf(peakByPods), amountOf(peakByClass)
	answer["peak"] = amountOf(quotav1.Max(peakByPods, peakByClass))
	return answer, nil
}

// The peak is what is missing where the node and its pods have endlessly much.
func (p *priorityReclaimablePredictor) peak() corev1.ResourceList {
	endless := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(1<<40, resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(1<<60, resource.BinarySI),
	}
	other := *p
	other.node = &corev1.Node{Status: corev1.NodeStatus{Allocatable: endless}}
	other.reclaimRequest = endless
	left, err := other.GetResult()
	if err != nil {
		panic(err)
	}
	return quotav1.Subtract(endless, left)
}

func amountOf(amounts corev1.ResourceList) map[string]int64 {
	return map[string]int64{"cpuMilli": amounts.Cpu().MilliValue(), "memoryBytes": amounts.Memory().Value()}
}

func (asked reclaimableQuestion) peaks() map[UIDType]knownPeak {
	known := asked.Predictions
	peaks := map[UIDType]knownPeak{getNodeItemUID(SystemItemID): known.System}
	for _, name := range []string{"koord-prod", "koord-mid", "koord-batch", "koord-free"} {
		peaks[getNodeItemUID(name)] = known.Classes[name]
	}
	peaks[getNodeItemUID("")] = known.Classes["none"]
	for uid, peak := range known.Pods {
		peaks[UIDType(uid)] = peak
	}
	return peaks
}

type knownServer struct {
	PredictServer
	peaks map[UIDType]knownPeak
}

func (k knownServer) GetPrediction(of MetricDesc) (Result, error) {
	peak, found := k.peaks[of.UID]
	if !found {
		return Result{}, fmt.Errorf("no model of %s", of.UID)
	}
	cpu := *resource.NewMilliQuantity(peak.P95.CPUMilli, resource.DecimalSI)
	memory := *resource.NewQuantity(peak.P98.MemoryBytes, resource.BinarySI)
	amounts := corev1.ResourceList{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory}
	return Result{Data: map[string]corev1.ResourceList{"p95": amounts, "p98": amounts}}, nil
}
