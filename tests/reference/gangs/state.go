// in pkg/scheduler/plugins/coscheduling/core
package core

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics/testutil"
	fwktype "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext/networktopology"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/metrics"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/coscheduling/util"
)

// manyTimes is enough for anything that depends on the order of a map to show.
const manyTimes = 200

func init() { answering.Area("gang-state", answering.Of(played)) }

type gangStep struct {
	ID     string          `json:"id"`
	Op     string          `json:"op"`
	Object json.RawMessage `json:"object"`
	Pod    string          `json:"pod"`
	Gang   string          `json:"gang"`
	Bind   string          `json:"bind"`
	Took   string          `json:"took"`
	Tree   *bool           `json:"networkTopologyAvailable"`
}

type answerOf = map[string]any

// play is a scheduler that does step by step what it is told.
type play struct {
	*rack
	gangs  *PodGroupManager
	pods   map[string]*corev1.Pod
	bound  map[string]string
	states map[string]fwktype.CycleState
}

func played(asked struct {
	Args  gangArgs   `json:"args"`
	Steps []gangStep `json:"steps"`
}) (any, error) {
	handle := newRack([]*corev1.Node{nodeNamed("a"), nodeNamed("b"), nodeNamed("c")}, nil)
	args := argsOf(asked.Args)
	p := &play{rack: handle, pods: map[string]*corev1.Pod{}, bound: map[string]string{}, states: map[string]fwktype.CycleState{}}
	p.gangs = &PodGroupManager{handle: handle, args: args, cache: NewGangCache(args, nil, nil, nil, handle)}
	metrics.WaitingGangGroupNumber.WithLabelValues().Set(0)
	answers := answerOf{}
	for _, step := range asked.Steps {
		answer, err := p.take(step)
		if err != nil {
			return nil, err
		}
		if step.ID != "" {
			answers[step.ID] = answer
		}
	}
	answers["bindings"] = p.bound
	return answers, nil
}

func nodeNamed(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func (p *play) take(step gangStep) (answerOf, error) {
	switch step.Op {
	case "podAdd", "podUpdate", "podDelete":
		return p.event("Pod", map[string]string{"podAdd": "add", "podUpdate": "update", "podDelete": "delete"}[step.Op], step.Object)
	case "podGroupAdd", "podGroupUpdate", "podGroupDelete":
		return p.event("PodGroup", map[string]string{"podGroupAdd": "add", "podGroupUpdate": "update", "podGroupDelete": "delete"}[step.Op], step.Object)
	case "read":
		return answerOf{"gang": p.read(step.Gang)}, nil
	case "readWaitingGauge":
		value, err := testutil.GetGaugeMetricValue(metrics.WaitingGangGroupNumber.WithLabelValues())
		return answerOf{"value": value}, err
	case "nextPod":
		return p.next(step)
	}
	name := step.Pod
	if taken, known := p.bound[name]; known {
		name = taken
	}
	pod := p.pods[name]
	if pod == nil {
		return nil, errors.New("no pod " + name)
	}
	return p.cycle(step, pod, name)
}

func (p *play) event(kind, event string, object json.RawMessage) (answerOf, error) {
	var given map[string]any
	if err := json.Unmarshal(object, &given); err != nil {
		return nil, err
	}
	meta := given["metadata"].(map[string]any)
	key := fmt.Sprintf("%v/%v", meta["namespace"], meta["name"])
	given["kind"] = kind
	if meta["uid"] == nil {
		meta["uid"] = key
	}
	text, err := json.Marshal(given)
	if err != nil {
		return nil, err
	}
	p.activated = nil
	pod, err := feed(p.gangs.cache, event, text)
	if err != nil {
		return nil, err
	}
	if pod != nil {
		p.pods[key] = pod
		return answerOf{"activate": append([]string{}, p.activated...), "activateOneOf": []string{}}, nil
	}
	some := map[string]bool{}
	if len(p.activated) > 0 {
		for range manyTimes {
			child := p.gangs.cache.getGangFromCacheByGangId(key, false).pickSomeChildren()
			some[util.GetId(child.Namespace, child.Name)] = true
		}
	}
	return answerOf{"activate": []string{}, "activateOneOf": sortedKeys(some)}, nil
}

func (p *play) read(id string) any {
	gang := p.gangs.cache.getGangFromCacheByGangId(id, false)
	if gang == nil {
		return nil
	}
	group := gang.GangGroupInfo
	waitingGangs := group.WaitingGangIDs.UnsortedList()
	sort.Strings(waitingGangs)
	return answerOf{"children": sortedKeys(gang.Children), "pending": sortedKeys(gang.PendingChildren),
		"waiting": sortedKeys(gang.WaitingForBindChildren), "bound": sortedKeys(gang.BoundChildren),
		"onceSatisfied": group.OnceResourceSatisfied, "waitingGangs": waitingGangs, "representative": group.RepresentativePodKey}
}

// next takes the pod that is asked for, where that may come next.
func (p *play) next(step gangStep) (answerOf, error) {
	if step.Bind == "" {
		step.Bind = "$"
	}
	p.bound[step.Bind] = ""
	round := p.gangs.holder.getCurrentGangSchedulingContext()
	found := map[string]bool{}
	for range manyTimes {
		pod := p.gangs.NextPod()
		if pod == nil {
			return p.ended(round, answerOf{"pod": nil}, true), nil
		}
		key := util.GetId(pod.Namespace, pod.Name)
		found[key], p.bound[step.Bind] = true, key
		if step.Took == "" || key == step.Took {
			break
		}
		round.alreadyAttemptedPods.Delete(key)
	}
	key := p.bound[step.Bind]
	round.alreadyAttemptedPods.Insert(key)
	return answerOf{"pod": key}, nil
}

// ended says how a round ended, where it did.
func (p *play) ended(round *GangSchedulingContext, answer answerOf, withRejected bool) answerOf {
	if round == nil || p.gangs.holder.getCurrentGangSchedulingContext() != nil {
		return answer
	}
	answer["cycleEnds"] = ReasonAllPendingPodsIsAlreadyAttempted
	if p.gangs.GetGangByPod(round.firstPod) == nil {
		answer["cycleEnds"] = ReasonGangIsNil
	}
	if withRejected {
		answer["rejected"], _ = p.sentBack()
	} else {
		answer["cycleEnds"] = ReasonGangIsSucceed
	}
	return answer
}

// sentBack has those that wait no longer because they were rejected, and why.
func (p *play) sentBack() ([]string, string) {
	keys, message := []string{}, ""
	for uid, each := range p.waiting {
		if each.rejected != "" {
			delete(p.waiting, uid)
			message = each.message
			if uid != witness {
				keys = append(keys, util.GetId(each.pod.Namespace, each.pod.Name))
			}
		}
	}
	delete(p.waiting, witness)
	return keys, message
}

const witness = types.UID("witness")

// watch lets one more member wait, who hears why others are rejected.
func (p *play) watch(pod *corev1.Pod) {
	other := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Labels: map[string]string{
		v1alpha1.PodGroupLabel: util.GetGangNameByPod(pod)}}}
	p.waiting[witness] = &waiter{pod: other}
}

func (p *play) cycle(step gangStep, pod *corev1.Pod, key string) (answerOf, error) {
	ctx, round := context.Background(), p.gangs.holder.getCurrentGangSchedulingContext()
	switch step.Op {
	case "preEnqueue":
		return gate("allow", p.gangs.PreEnqueue(ctx, pod)), nil
	case "beginCycle":
		if p.trees = (tree{snapshot: &networktopology.TreeSnapshot{}}); step.Tree != nil && !*step.Tree {
			p.trees = tree{}
		}
		p.states[key] = framework.NewCycleState()
		frameworkext.InitDiagnosis(p.states[key], pod)
		answer := gate("ok", p.gangs.BeforePreFilter(ctx, p.states[key], pod))
		if answer["ok"].(bool) {
			answer["contextStarted"] = round == nil && p.gangs.holder.getCurrentGangSchedulingContext() != nil
		}
		return answer, nil
	case "filterFailed":
		return p.failed(pod, key), nil
	case "permit":
		return p.permit(pod, round), nil
	case "unreserve":
		delete(p.waiting, pod.UID)
		p.watch(pod)
		p.gangs.Unreserve(ctx, nil, pod, "", p, Name)
		rejected, message := p.sentBack()
		return answerOf{"rejected": rejected, "message": message}, nil
	case "preBind":
		info := p.gangs.GetGangBindingInfo(pod)
		if info == nil {
			return answerOf{"group": nil}, nil
		}
		return answerOf{"group": info.GangGroupId, "memberCount": strconv.Itoa(info.MemberCount)}, nil
	case "postBind":
		p.gangs.PostBind(ctx, pod, "")
		return nil, nil
	}
	return nil, errors.New("no step " + step.Op)
}

func gate(name string, err error) answerOf {
	if err != nil {
		return answerOf{name: false, "message": err.Error()}
	}
	return answerOf{name: true, "message": ""}
}

func (p *play) failed(pod *corev1.Pod, key string) answerOf {
	state := p.states[key]
	if state == nil {
		state = framework.NewCycleState()
		frameworkext.InitDiagnosis(state, pod)
	}
	statuses := map[string]*fwktype.Status{}
	for _, node := range []string{"a", "b", "c"} {
		statuses[node] = fwktype.NewStatus(fwktype.Unschedulable, "Insufficient cpu")
	}
	p.watch(pod)
	_, status := p.gangs.AfterPostFilter(context.Background(), state, pod, p, Name,
		framework.NewNodeToStatus(statuses, fwktype.NewStatus(fwktype.UnschedulableAndUnresolvable)))
	rejected, message := p.sentBack()
	if round := p.gangs.holder.getCurrentGangSchedulingContext(); message == "" && round != nil {
		message = round.failedMessage
	}
	return answerOf{"groupMessage": message, "message": status.Message(), "rejected": rejected, "patched": []string{}}
}

func (p *play) permit(pod *corev1.Pod, round *GangSchedulingContext) answerOf {
	wait, decision := p.gangs.Permit(context.Background(), pod)
	switch decision {
	case PodGroupNotFound:
		return answerOf{"decision": "unschedulable", "message": "Gang not found"}
	case Wait:
		p.waiting[pod.UID] = &waiter{pod: pod}
		return answerOf{"decision": "wait", "timeoutSeconds": wait.Seconds()}
	}
	p.gangs.AllowGangGroup(pod, p, Name)
	p.gangs.SucceedGangScheduling()
	allowed := []string{}
	for uid, each := range p.waiting {
		if each.allowed {
			allowed = append(allowed, util.GetId(each.pod.Namespace, each.pod.Name))
			delete(p.waiting, uid)
		}
	}
	return p.ended(round, answerOf{"decision": "success", "allowed": allowed}, false)
}
