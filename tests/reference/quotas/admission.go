// in pkg/scheduler/plugins/elasticquota
package elasticquota

import (
	"context"
	"regexp"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/elasticquota/core"
)

type admissionQuestion struct {
	Kind    string                  `json:"kind"`
	Args    config.ElasticQuotaArgs `json:"args"`
	Options core.AskedOptions       `json:"options"`
	Steps   []core.AskedStep        `json:"steps"`
	Quotas  []struct {
		core.AskedQuota
		Used               corev1.ResourceList `json:"used"`
		NonPreemptibleUsed corev1.ResourceList `json:"nonPreemptibleUsed"`
		Runtime            corev1.ResourceList `json:"runtime"`
	} `json:"quotas"`
	Pod struct {
		core.AskedPod
		Quota string `json:"quota"`
	} `json:"pod"`
}

func init() { answering.Area("quota-admission", answering.Of(admitted)) }

func admitted(asked admissionQuestion) (any, error) {
	manager, err := asked.Options.Manager()
	if err != nil {
		return nil, err
	}
	plugin := scene(asked.Args, manager, nil)
	if asked.Kind == "snapshot" {
		// Quotas that the manager has not worked on: there is nothing to refresh, their runtimes stay.
		for _, each := range asked.Quotas {
			manager.UpdateQuotaInfo(each.Object())
			about := &manager.GetQuotaInfoByName(each.Name).CalculateInfo
			about.Used, about.NonPreemptibleUsed, about.Runtime = each.Used, each.NonPreemptibleUsed, each.Runtime
		}
	} else if _, err := manager.Play(asked.Steps); err != nil {
		return nil, err
	}
	plugin.quotaToTreeMap[asked.Pod.Quota] = ""
	pod := asked.Pod.Object()
	pod.Labels[extension.LabelQuotaName] = asked.Pod.Quota
	_, status := plugin.PreFilter(context.Background(), framework.NewCycleState(), pod, nil)
	if status.IsSuccess() {
		return map[string]string{"status": "Success"}, nil
	}
	return refusalOf(status.Code().String(), status.Message()), nil
}

var (
	refusedQuota = regexp.MustCompile(`quotaName: ([^,]*),`)
	refusedPath  = regexp.MustCompile(`quotaNameTopo: \[([^ \]]*)`)
	exceeded     = regexp.MustCompile(`exceedDimensions: \[(.*)\]`)
)

// refusalOf reads what a refusal says.
func refusalOf(status, message string) any {
	found := map[string]any{"status": status, "reason": "quota"}
	if name := refusedQuota.FindStringSubmatch(message); name != nil {
		found["quota"] = name[1]
	}
	if name := refusedPath.FindStringSubmatch(message); name != nil {
		found["quota"], found["reason"] = name[1], "ancestor"
	}
	if found["quota"] == nil {
		return map[string]string{"status": status}
	}
	if strings.Contains(message, "non-preemptible") {
		found["reason"] = "non-preemptible"
	}
	names := []string{}
	if list := exceeded.FindStringSubmatch(message); list != nil {
		names = strings.Fields(list[1])
	} else {
		found["reason"] = "parent-missing"
	}
	sort.Strings(names)
	found["exceed"] = names
	return found
}
