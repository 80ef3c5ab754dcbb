// in pkg/scheduler/plugins/coscheduling/core
package core

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
)

type gangArgs struct {
	Timeout     *float64 `json:"defaultTimeoutSeconds"`
	MatchPolicy string   `json:"defaultMatchPolicy"`
}

type configQuestion struct {
	Args   gangArgs `json:"args"`
	Events []struct {
		Event  string          `json:"event"`
		Object json.RawMessage `json:"object"`
	} `json:"events"`
	Gang string `json:"gang"`
}

func init() { answering.Area("gang-config-parse", answering.Of(configured)) }

func argsOf(given gangArgs) *config.CoschedulingArgs {
	timeout, preempts := 600.0, false
	if given.Timeout != nil {
		timeout = *given.Timeout
	}
	if given.MatchPolicy == "" {
		given.MatchPolicy = extension.GangMatchPolicyOnceSatisfied
	}
	return &config.CoschedulingArgs{DefaultTimeout: metav1.Duration{Duration: time.Duration(timeout * float64(time.Second))},
		DefaultMatchPolicy: given.MatchPolicy, EnablePreemption: &preempts}
}

// feed is an event of a Pod or a PodGroup; the pod, where it is one.
func feed(gangs *GangCache, event string, text json.RawMessage) (*corev1.Pod, error) {
	var kind metav1.TypeMeta
	if err := json.Unmarshal(text, &kind); err != nil {
		return nil, err
	}
	pod, group := &corev1.Pod{}, &v1alpha1.PodGroup{}
	handlers := map[string]func(){
		"Pod add":         func() { gangs.onPodAdd(pod) },
		"Pod update":      func() { gangs.onPodUpdate(nil, pod) },
		"Pod delete":      func() { gangs.onPodDelete(pod) },
		"PodGroup add":    func() { gangs.onPodGroupAdd(group) },
		"PodGroup update": func() { gangs.onPodGroupUpdate(nil, group) },
		"PodGroup delete": func() { gangs.onPodGroupDelete(group) },
	}
	var into any = pod
	if kind.Kind == "PodGroup" {
		into = group
	}
	if err := json.Unmarshal(text, into); err != nil {
		return nil, err
	}
	handle := handlers[kind.Kind+" "+event]
	if handle == nil {
		return nil, fmt.Errorf("no event %s of %s", event, kind.Kind)
	}
	handle()
	if kind.Kind == "PodGroup" {
		return nil, nil
	}
	return pod, nil
}

func configured(asked configQuestion) (any, error) {
	gangs := NewGangCache(argsOf(asked.Args), nil, nil, nil, newRack(nil, nil))
	for _, each := range asked.Events {
		if _, err := feed(gangs, each.Event, each.Object); err != nil {
			return nil, err
		}
	}
	gang := gangs.getGangFromCacheByGangId(asked.Gang, false)
	if gang == nil {
		return map[string]any{"gang": nil}, nil
	}
	answer := map[string]any{"initialised": gang.HasGangInit, "minRequired": gang.MinRequiredNumber, "mode": gang.Mode,
		"matchPolicy": gang.GangMatchPolicy, "waitTimeSeconds": gang.WaitTime.Seconds(), "group": gang.getGangGroup(),
		"groupId": gang.GangGroupId}
	if gang.HasGangInit {
		answer["total"] = gang.TotalChildrenNum
		answer["source"] = map[string]string{GangFromPodAnnotation: "pod", GangFromPodGroupCrd: "podGroup"}[gang.GangFrom]
		answer["networkTopologySpec"] = gang.NetworkTopologySpec
	}
	return map[string]any{"gang": answer}, nil
}
