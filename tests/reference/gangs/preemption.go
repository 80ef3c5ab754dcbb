// in pkg/scheduler/plugins/coscheduling/core
package core

import (
	"context"
	"fmt"
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	clienttesting "k8s.io/client-go/testing"
	fwktype "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/koordinator-sh/koordinator/apis/extension"
	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext"
)

type jobPod struct {
	rackPod
	Priority       *int32                   `json:"priority"`
	Job            string                   `json:"job"`
	Kept           bool                     `json:"disablePreemptible"`
	KeptByQuota    bool                     `json:"quotaNonPreemptible"`
	Terminating    string                   `json:"terminating"`
	WaitsInPermit  bool                     `json:"waitingInPermit"`
	NominatedNode  string                   `json:"nominatedNode"`
	PreemptionRule *corev1.PreemptionPolicy `json:"preemptionPolicy"`
}

type jobQuestion struct {
	Nodes    []rackNode `json:"nodes"`
	Existing []jobPod   `json:"existing"`
	Gang     *struct {
		ID        string                                   `json:"id"`
		Message   string                                   `json:"preemptionMessage"`
		Attempted int                                      `json:"attempted"`
		Rules     []extension.NetworkTopologyGatherRule    `json:"gatherStrategy"`
		Layers    []schedulingv1alpha1.NetworkTopologySpec `json:"networkTopologySpec"`
	} `json:"gang"`
	Pending    []jobPod          `json:"pending"`
	Waiting    []jobPod          `json:"waiting"`
	Trigger    jobPod            `json:"trigger"`
	NodeStatus map[string]string `json:"nodeStatus"`
}

func init() { answering.Area("gang-preemption", answering.Of(preempted)) }

// preempted refuses where the answer depends on the order of a map.
func preempted(asked jobQuestion) (any, error) {
	first, err := preemptedOnce(asked)
	for i := 0; i < 5 && err == nil; i++ {
		again, failed := preemptedOnce(asked)
		if failed != nil || !reflect.DeepEqual(again, first) {
			return nil, fmt.Errorf("depends on the order of members")
		}
	}
	return first, err
}

func (given jobPod) pod() *corev1.Pod {
	pod := podOf(given.rackPod, "")
	pod.Labels = map[string]string{}
	if given.Job != "" {
		pod.Labels[extension.LabelQuestionedObjectKey] = given.Job
	}
	if given.Kept {
		pod.Labels[extension.LabelDisablePreemptible] = "true"
	}
	if given.KeptByQuota {
		pod.Labels[extension.LabelPreemptible] = "false"
	}
	if given.Terminating != "" {
		pod.DeletionTimestamp = &metav1.Time{}
	}
	if given.Terminating == "byPreemption" {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
			Reason: corev1.PodReasonPreemptionByScheduler}}
	}
	pod.Spec.Priority, pod.Spec.PreemptionPolicy = given.Priority, given.PreemptionRule
	pod.Status.NominatedNodeName = given.NominatedNode
	return pod
}

func preemptedOnce(asked jobQuestion) (map[string]any, error) {
	var existing []*corev1.Pod
	for i := range asked.Waiting { // members are equally important where nobody says otherwise
		if asked.Waiting[i].Priority == nil {
			asked.Waiting[i].Priority = asked.Trigger.Priority
		}
	}
	for _, each := range append(append([]jobPod{}, asked.Existing...), asked.Waiting...) {
		existing = append(existing, each.pod())
	}
	handle := newRack(nodesOf(asked.Nodes), existing)
	for i, each := range existing {
		if i >= len(asked.Existing) || asked.Existing[i].WaitsInPermit {
			handle.waiting[each.UID] = &waiter{pod: each}
		}
	}
	trigger, wanted := asked.Trigger.pod(), 1
	gangs, holder := NewGangCache(nil, nil, nil, nil, handle), &GangSchedulingContextHolder{}
	var round *GangSchedulingContext
	if asked.Gang != nil {
		ids := strings.Split(asked.Gang.ID, ",")
		gang := gangs.getGangFromCacheByGangId(ids[0], true)
		wanted = len(asked.Pending)
		for _, each := range asked.Pending {
			gang.setChild(each.pod())
		}
		for _, each := range existing[len(asked.Existing):] {
			gang.addAssumedPod(each)
		}
		round = &GangSchedulingContext{firstPod: trigger, gangGroup: sets.New(ids...), gangGroupID: asked.Gang.ID,
			preemptionMessage: asked.Gang.Message, alreadyAttemptedPods: sets.New("default/" + trigger.Name)}
		for i := 1; i < asked.Gang.Attempted; i++ {
			round.alreadyAttemptedPods.Insert(fmt.Sprint(i))
		}
		if asked.Gang.Rules != nil {
			network, err := networkOf(asked.Gang.Layers, asked.Nodes)
			if err != nil {
				return nil, err
			}
			round.networkTopologySpec = &extension.NetworkTopologySpec{GatherStrategy: asked.Gang.Rules}
			round.networkTopologySnapshot = network.snapshot
		}
		holder.setGangSchedulingContext(round, "")
	}
	if round == nil || round.networkTopologySpec == nil {
		wanted = 1
	}
	state := framework.NewCycleState()
	frameworkext.InitDiagnosis(state, trigger)
	evaluator := NewPreemptionEvaluator(handle, gangs, holder, NewNetworkTopologySolver(handle))
	result, status := evaluator.Preempt(context.Background(), state, trigger, handle.statuses(asked.NodeStatus, trigger, int64(wanted)))
	if status.Code() == fwktype.Error {
		return nil, status.AsError()
	}
	answer := map[string]any{"outcome": "success", "nominatedNode": "unchanged"}
	if !status.IsSuccess() {
		answer["outcome"], answer["message"] = "unschedulable", status.Message()
	}
	if round != nil {
		answer["groupMessage"] = round.preemptionMessage
	}
	if result != nil {
		answer["nominatedNode"] = result.NominatedNodeName
		answer["nominations"] = handle.nominations
		handle.describeVictims(asked, frameworkext.GetDiagnosis(state), answer)
	}
	return answer, nil
}

// statuses of nodes, of which the ones that a trigger fits on have none; others that are not named cannot be helped.
func (r *rack) statuses(given map[string]string, trigger *corev1.Pod, wanted int64) fwktype.NodeToStatusReader {
	found := map[string]*fwktype.Status{}
	nodes, _ := r.snapshot.NodeInfos().List()
	for _, node := range nodes {
		free := node.GetAllocatable().GetMilliCPU() - node.GetRequested().GetMilliCPU()
		if found[node.Node().Name] = nil; cpuOf(trigger) > 0 && cpuOf(trigger)*wanted > free {
			found[node.Node().Name] = fwktype.NewStatus(fwktype.Unschedulable)
		}
	}
	if given != nil {
		found = map[string]*fwktype.Status{}
	}
	for name, code := range given {
		for each := fwktype.Success; each <= fwktype.Pending; each++ {
			if each.String() == code {
				found[name] = fwktype.NewStatus(each)
			}
		}
	}
	return framework.NewNodeToStatus(found, fwktype.NewStatus(fwktype.UnschedulableAndUnresolvable))
}

func (r *rack) describeVictims(asked jobQuestion, diagnosis *frameworkext.Diagnosis, answer map[string]any) {
	actions := map[string]string{}
	for _, pods := range diagnosis.PreemptionDiagnosis.OtherDiagnosis.(*JobPreemptionState).victims {
		for _, pod := range pods {
			actions[pod.Name] = "none"
		}
	}
	for _, each := range r.client.Actions() {
		if gone, ok := each.(clienttesting.DeleteAction); ok {
			actions[gone.GetName()] = "delete"
		}
	}
	for _, each := range asked.Existing {
		if waiting := r.waiting[podOf(each.rackPod, "").UID]; waiting != nil && waiting.rejected != "" {
			actions[each.Name] = "reject"
		}
	}
	for _, each := range asked.Waiting {
		answer["waitingRejectedBy"] = r.waiting[podOf(each.rackPod, "").UID].rejected
	}
	answer["victims"] = sortedKeys(actions)
	if len(actions) > 0 {
		answer["victimActions"] = actions
	}
}
