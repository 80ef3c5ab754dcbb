// in pkg/scheduler/plugins/reservation
package reservation

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	k8sfeature "k8s.io/apiserver/pkg/util/feature"
	fwktype "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	apiext "github.com/koordinator-sh/koordinator/apis/extension"
	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/features"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext/eventhandlers"
	reservationutil "github.com/koordinator-sh/koordinator/pkg/util/reservation"
)

const nodeName = "n"

type matchQuestion struct {
	Op             string                                `json:"op"`
	Pod            *corev1.Pod                           `json:"pod"`
	Owners         []schedulingv1alpha1.ReservationOwner `json:"owners"`
	Reservation    *schedulingv1alpha1.Reservation       `json:"reservation"`
	Requests       corev1.ResourceList                   `json:"podRequests"`
	Allocatable    corev1.ResourceList                   `json:"allocatable"`
	ResourceNames  []corev1.ResourceName                 `json:"resourceNames"`
	NodeLabels     map[string]string                     `json:"nodeLabels"`
	OmitNodeLabels bool                                  `json:"omitNodeLabels"`
	Assigned       int                                   `json:"assignedPods"`
	Annotation     *string                               `json:"annotation"`
	HasAffinity    bool                                  `json:"hasAffinity"`
	Nodes          map[string]struct {
		OwnerMatched      int            `json:"ownerMatched"`
		NameMatched       int            `json:"nameMatched"`
		NameUnmatched     int            `json:"nameUnmatched"`
		Unschedulable     int            `json:"unschedulable"`
		AffinityUnmatched int            `json:"affinityUnmatched"`
		NotExactMatched   int            `json:"notExactMatched"`
		Ignored           int            `json:"ignored"`
		Taints            map[string]int `json:"taints"`
		FilterReasons     []string       `json:"filterReasons"`
	} `json:"nodes"`
	Message      string       `json:"message"`
	Existing     *string      `json:"existing"`
	Reservations []roomOfPods `json:"reservations"`
}

func init() { answering.Area("reservation-match", answering.Of(matched)) }

func matched(asked matchQuestion) (any, error) {
	switch asked.Op {
	case "owners":
		matchers, err := reservationutil.ParseReservationOwnerMatchers(asked.Owners)
		return map[string]any{"matched": err == nil && reservationutil.MatchReservationOwners(asked.Pod, matchers), "invalid": err != nil}, nil
	case "exactMatch":
		spec := &apiext.ExactMatchReservationSpec{}
		text, _ := json.Marshal(map[string]any{"resourceNames": asked.ResourceNames})
		if err := json.Unmarshal(text, spec); err != nil {
			return nil, err
		}
		return map[string]any{"matched": apiext.ExactMatchReservation(asked.Requests, asked.Allocatable, spec)}, nil
	case "outcome":
		return outcome(asked)
	case "matchable":
		info := frameworkext.NewReservationInfoFromPod
		if asked.Reservation != nil {
			asked.Pod, info = nil, nil
		}
		var found *frameworkext.ReservationInfo
		if info != nil {
			found = info(asked.Pod)
		} else {
			found = frameworkext.NewReservationInfo(asked.Reservation)
		}
		hold(found, asked.Assigned)
		return map[string]any{"available": found.IsAvailable(), "unschedulable": found.IsUnschedulable(),
			"terminating": found.IsTerminating(), "matchable": found.IsMatchable()}, nil
	case "affinity":
		pod := &corev1.Pod{}
		if asked.Annotation != nil {
			pod.Annotations = map[string]string{apiext.AnnotationReservationAffinity: *asked.Annotation}
		}
		affinity, err := reservationutil.GetRequiredReservationAffinity(pod)
		return map[string]any{"present": affinity != nil, "tolerateUnschedulable": affinity.TolerateUnschedulable()}, err
	case "diagnose":
		return diagnosed(asked)
	case "event":
		return eventhandlers.AnswerEvent(asked.Message)
	case "nominate":
		return nominated(asked)
	}
	return nil, fmt.Errorf("no question %s", asked.Op)
}

func hold(info *frameworkext.ReservationInfo, count int) {
	for i := 0; i < count; i++ {
		uid := types.UID(fmt.Sprint(i))
		info.AssignedPods[uid] = &frameworkext.PodRequirement{UID: uid}
	}
}

func outcome(asked matchQuestion) (any, error) {
	setting := map[string]bool{string(features.OmitNodeLabelsForReservation): asked.OmitNodeLabels}
	if err := k8sfeature.DefaultMutableFeatureGate.SetFromMap(setting); err != nil {
		return nil, err
	}
	asked.Reservation.Status.Phase, asked.Reservation.Status.NodeName = schedulingv1alpha1.ReservationAvailable, nodeName
	affinity, err := reservationutil.GetRequiredReservationAffinity(asked.Pod)
	if err != nil {
		return nil, err
	}
	exact, err := apiext.GetExactMatchReservationSpec(asked.Pod.Annotations)
	if err != nil {
		return nil, err
	}
	info, seen := frameworkext.NewReservationInfo(asked.Reservation), &nodeDiagnosisState{taintsUnmatchedReasons: map[string]int{}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: asked.NodeLabels}}
	ok := checkReservationMatchedOrIgnored(asked.Pod, info, seen, node, asked.Requests, affinity, exact, affinity.GetName(),
		apiext.IsReservationIgnored(asked.Pod))
	answer := "ownerUnmatched"
	for _, each := range []struct {
		is   bool
		name string
	}{{seen.ignored > 0, "ignored"}, {ok && seen.ignored == 0, "matched"}, {seen.nameUnmatched > 0, "nameUnmatched"},
		{seen.isUnschedulableUnmatched > 0, "unschedulable"}, {seen.taintsUnmatched > 0, "taintUntolerated"},
		{seen.affinityUnmatched > 0, "affinityUnmatched"}, {seen.notExactMatched > 0, "notExactMatched"}} {
		if each.is {
			answer = each.name
		}
	}
	return map[string]any{"outcome": answer}, nil
}

func diagnosed(asked matchQuestion) (any, error) {
	state, statuses := &stateData{}, map[string]*fwktype.Status{}
	state.hasAffinity, state.nodeReservationDiagnosis = asked.HasAffinity, map[string]*nodeDiagnosisState{}
	for name, each := range asked.Nodes {
		seen := &nodeDiagnosisState{nodeName: name, ignored: each.Ignored, ownerMatched: each.OwnerMatched, nameMatched: each.NameMatched,
			nameUnmatched: each.NameUnmatched, isUnschedulableUnmatched: each.Unschedulable, affinityUnmatched: each.AffinityUnmatched,
			notExactMatched: each.NotExactMatched, taintsUnmatchedReasons: map[string]int{}}
		for text, count := range each.Taints {
			seen.taintsUnmatched += count
			seen.taintsUnmatchedReasons[text] += count
		}
		state.nodeReservationDiagnosis[name] = seen
		statuses[name] = fwktype.NewStatus(fwktype.Unschedulable, each.FilterReasons...)
	}
	reasons := (&Plugin{}).makePostFilterReasons(state, framework.NewNodeToStatus(statuses, nil))
	if reasons == nil {
		reasons = []string{}
	}
	return map[string]any{"reasons": reasons}, nil
}

func nominated(asked matchQuestion) (any, error) {
	plugin, counter := newCounter(corev1.ResourceList{}, 0)
	state := counter.state(asked.Requests)
	state.hasAffinity = asked.HasAffinity
	seen := &nodeReservationState{nodeName: nodeName}
	for _, each := range asked.Reservations {
		info := each.info()
		seen.matchedOrIgnored = append(seen.matchedOrIgnored, info)
		plugin.reservationCache.reservationInfos[info.UID()] = info
	}
	state.nodeReservationStates[nodeName] = seen
	pod := podOf(asked.Requests)
	if asked.Existing != nil {
		for _, info := range seen.matchedOrIgnored {
			if info.GetName() == *asked.Existing {
				plugin.nominator.AddNominatedReservation(pod, nodeName, info)
			}
		}
	}
	cycle := framework.NewCycleState()
	cycle.Write(stateKey, state)
	found, status := plugin.NominateReservation(context.Background(), cycle, pod, nodeName)
	if !status.IsSuccess() {
		return nil, status.AsError()
	}
	if found == nil {
		return map[string]any{"nominated": nil}, nil
	}
	return map[string]any{"nominated": found.GetName()}, nil
}
