// in pkg/scheduler/plugins/elasticquota
package elasticquota

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fwktype "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/elasticquota/core"
)

type preemptionPod struct {
	core.AskedPod
	Namespace        string                   `json:"namespace"`
	Labels           map[string]string        `json:"labels"`
	Quota            string                   `json:"quota"`
	QuotaLabel       string                   `json:"quotaLabel"`
	Priority         int32                    `json:"priority"`
	Start            int64                    `json:"start"`
	PreemptionPolicy *corev1.PreemptionPolicy `json:"preemptionPolicy"`
	Terminating      bool                     `json:"terminating"`
	NominatedNode    string                   `json:"nominatedNode"`
	Assigned         bool                     `json:"assigned"`
}

func (p preemptionPod) object() *corev1.Pod {
	pod := p.AskedPod.Object()
	pod.Namespace, pod.UID = "elsewhere", types.UID(p.Name)
	if p.Namespace != "" {
		pod.Namespace = p.Namespace
	}
	for key, value := range p.Labels {
		pod.Labels[key] = value
	}
	if quota := p.Quota + p.QuotaLabel; quota != "" {
		pod.Labels[extension.LabelQuotaName] = quota
	}
	pod.Spec.Priority, pod.Spec.PreemptionPolicy = &p.Priority, p.PreemptionPolicy
	pod.Status.StartTime = &metav1.Time{Time: time.Unix(p.Start, 0)}
	pod.Status.NominatedNodeName = p.NominatedNode
	if p.Terminating {
		pod.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	}
	return pod
}

type preemptionQuestion struct {
	Kind          string                  `json:"kind"`
	Args          config.ElasticQuotaArgs `json:"args"`
	Gates         []string                `json:"gates"`
	ElasticQuotas []core.AskedQuota       `json:"elasticQuotas"`
	KnownQuotas   []string                `json:"knownQuotas"`
	Pod           preemptionPod           `json:"pod"`
	Victim        preemptionPod           `json:"victim"`
	NodePods      []preemptionPod         `json:"nodePods"`
	NodeStatus    string                  `json:"nominatedNodeStatus"`
	Pods          []preemptionPod         `json:"pods"`
	PDBs          []struct {
		Namespace          string            `json:"namespace"`
		MatchLabels        map[string]string `json:"matchLabels"`
		DisruptionsAllowed int32             `json:"disruptionsAllowed"`
		DisruptedPods      []string          `json:"disruptedPods"`
	} `json:"pdbs"`
	Node struct {
		Allocatable corev1.ResourceList `json:"allocatable"`
		Pods        []preemptionPod     `json:"pods"`
	} `json:"node"`
	QuotaUsed    corev1.ResourceList `json:"quotaUsed"`
	QuotaLimit   corev1.ResourceList `json:"quotaLimit"`
	InQuotaCache []string            `json:"inQuotaCache"`
}

func init() { answering.Area("quota-preemption", answering.Of(preempted)) }

func preempted(asked preemptionQuestion) (any, error) {
	node := framework.NewNodeInfo()
	node.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Status: corev1.NodeStatus{Allocatable: asked.Node.Allocatable}})
	plugin, err := newScene(asked.Args, asked.Gates, node)
	if err != nil {
		return nil, err
	}
	if err := plugin.learn(asked.ElasticQuotas); err != nil {
		return nil, err
	}
	for _, name := range asked.KnownQuotas {
		plugin.quotaToTreeMap[name] = ""
	}
	switch asked.Kind {
	case "resolve":
		name, tree := plugin.getPodAssociateQuotaNameAndTreeID(asked.Pod.object())
		return map[string]string{"quota": name, "tree": tree}, nil
	case "canPreempt":
		return map[string]bool{"allowed": plugin.canPreempt(asked.Pod.object(), asked.Victim.object())}, nil
	case "eligible":
		for number, each := range asked.NodePods {
			each.Name = fmt.Sprint("other-", number)
			node.AddPod(each.object())
		}
		status := fwktype.NewStatus(codeOf(asked.NodeStatus))
		may, message := plugin.PodEligibleToPreemptOthers(context.Background(), asked.Pod.object(), status)
		return map[string]any{"eligible": may, "message": message}, nil
	case "pdbSplit":
		violating, others := filterPodsWithPDBViolation(podInfos(asked.Pods), asked.budgets())
		return map[string]any{"violating": namesOf(violating), "nonViolating": namesOf(others)}, nil
	case "victims":
		return asked.victims(plugin, node), nil
	}
	return nil, fmt.Errorf("unknown kind %q", asked.Kind)
}

func codeOf(word string) fwktype.Code {
	for code := fwktype.Success; code <= fwktype.Pending; code++ {
		if code.String() == word {
			return code
		}
	}
	return fwktype.Success
}

func (q preemptionQuestion) budgets() (found []*policy.PodDisruptionBudget) {
	for _, each := range q.PDBs {
		budget := &policy.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: each.Namespace}}
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: each.MatchLabels}
		budget.Status.DisruptionsAllowed = each.DisruptionsAllowed
		budget.Status.DisruptedPods = map[string]metav1.Time{}
		for _, name := range each.DisruptedPods {
			budget.Status.DisruptedPods[name] = metav1.Now()
		}
		found = append(found, budget)
	}
	return found
}

func podInfos(pods []preemptionPod) (found []fwktype.PodInfo) {
	for _, each := range pods {
		info, _ := framework.NewPodInfo(each.object())
		found = append(found, info)
	}
	return found
}

func namesOf(pods []fwktype.PodInfo) []string {
	names := []string{}
	for _, each := range pods {
		names = append(names, each.GetPod().Name)
	}
	return names
}

func (q preemptionQuestion) victims(plugin *Plugin, node *framework.NodeInfo) any {
	quota := core.NewQuotaInfo(false, true, "q", extension.RootQuotaName)
	quota.CalculateInfo.Max = q.QuotaLimit
	cached := map[string]bool{}
	for _, name := range q.InQuotaCache {
		cached[name] = true
	}
	for _, each := range append(q.Node.Pods, q.Pod) {
		if each.Quota == "" {
			each.Quota = "q"
		}
		plugin.quotaToTreeMap[each.Quota] = ""
		if cached[each.Name] {
			quota.PodCache["elsewhere/"+each.Name] = core.NewPodInfo(each.object())
		}
	}
	for _, each := range q.Node.Pods {
		if each.Quota == "" {
			each.Quota = "q"
		}
		node.AddPod(each.object())
	}
	pod := q.Pod
	pod.Name = "preemptor"
	if pod.Quota == "" {
		pod.Quota = "q"
	}
	state := framework.NewCycleState()
	state.Write(postFilterKey, &PostFilterState{quotaInfo: quota, used: q.QuotaUsed, usedLimit: q.QuotaLimit})
	found, _, status := plugin.SelectVictimsOnNode(context.Background(), state, pod.object(), node, nil)
	names := []string{}
	for _, each := range found {
		names = append(names, each.Name)
	}
	return map[string]any{"status": status.Code().String(), "victims": names}
}
