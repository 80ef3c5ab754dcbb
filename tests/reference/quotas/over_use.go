// in pkg/scheduler/plugins/elasticquota
package elasticquota

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/elasticquota/core"
)

type overUseQuestion struct {
	Kind         string              `json:"kind"`
	Used         corev1.ResourceList `json:"used"`
	Runtime      corev1.ResourceList `json:"runtime"`
	AssignedPods []preemptionPod     `json:"assignedPods"`
	DelaySeconds float64             `json:"delayEvictSeconds"`
	Checks       []struct {
		T       float64             `json:"t"`
		Used    corev1.ResourceList `json:"used"`
		Runtime corev1.ResourceList `json:"runtime"`
	} `json:"checks"`
}

func init() { answering.Area("quota-overuse-revoke", answering.Of(overUse)) }

func overUse(asked overUseQuestion) (any, error) {
	manager, err := core.AskedOptions{}.Manager()
	if err != nil {
		return nil, err
	}
	if err := manager.UpdateQuota(core.AskedQuota{Name: "q"}.Object()); err != nil {
		return nil, err
	}
	monitor := NewQuotaOverUsedGroupMonitor("q", manager, seconds(asked.DelaySeconds))
	about := &manager.GetQuotaInfoByName("q").CalculateInfo
	if asked.Kind == "monitor" {
		triggers, last := []bool{}, 0.0
		for _, each := range asked.Checks {
			about.Used, about.Runtime = each.Used, each.Runtime
			// The clock runs on meanwhile: half a second less, so that a limit is not passed when it is just reached.
			under := time.Now().Add(time.Second/2 - seconds(each.T-last))
			monitor.lastUnderUsedTime = under
			triggers = append(triggers, monitor.monitor())
			if monitor.lastUnderUsedTime != under {
				last = each.T
			}
		}
		return map[string]any{"trigger": triggers}, nil
	}
	for _, each := range asked.AssignedPods {
		each.Node = "n"
		manager.OnPodAdd("q", each.object())
	}
	about.Used, about.Runtime = asked.Used, asked.Runtime
	names := []string{}
	for _, each := range monitor.getToRevokePodList("q") {
		names = append(names, each.Name)
	}
	return map[string]any{"evict": names}, nil
}

func seconds(number float64) time.Duration { return time.Duration(number * float64(time.Second)) }
