// in pkg/scheduler/plugins/elasticquota
package elasticquota

import (
	"k8s.io/klog/v2"
	fwktype "k8s.io/kube-scheduler/framework"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/elasticquota/core"
)

type hintQuestion struct {
	Kind            string            `json:"kind"`
	Gates           []string          `json:"gates"`
	ChecksParents   bool              `json:"enableCheckParentQuota"`
	SnapshotPresent *bool             `json:"snapshotPresent"`
	SnapshotQuotas  []core.AskedQuota `json:"snapshotQuotas"`
	Pod             preemptionPod     `json:"pod"`
	Old             *core.AskedQuota  `json:"old"`
	New             *core.AskedQuota  `json:"new"`
	DeletedPod      *preemptionPod    `json:"deletedPod"`
}

func init() { answering.Area("quota-requeue-hint", answering.Of(hinted)) }

func hinted(asked hintQuestion) (any, error) {
	args := config.ElasticQuotaArgs{EnableCheckParentQuota: asked.ChecksParents}
	plugin, err := newScene(args, asked.Gates, nil)
	if err != nil {
		return nil, err
	}
	if err := plugin.learn(asked.SnapshotQuotas); err != nil {
		return nil, err
	}
	asked.Pod.Name = "waiting"
	var before, after interface{}
	if asked.DeletedPod != nil {
		gone := *asked.DeletedPod
		gone.Name = "gone"
		if gone.Assigned {
			gone.Node = "n"
		}
		plugin.OnPodAdd(gone.object())
		before = gone.object()
	}
	plugin.updateQuotaSnapshot()
	if asked.SnapshotPresent != nil && !*asked.SnapshotPresent {
		plugin.quotaSnapshot = map[string]*core.QuotaSnapshot{}
	}
	hint := plugin.isSchedulableAfterPodDeletion
	if asked.Kind == "quotaUpdate" {
		hint, before = plugin.isSchedulableAfterQuotaChanged, nil
		if asked.Old != nil {
			before = asked.Old.Object()
		}
		if asked.New != nil {
			after = asked.New.Object()
		}
	}
	found, err := hint(klog.Background(), asked.Pod.object(), before, after)
	if err != nil {
		return nil, err
	}
	return map[string]string{"hint": map[fwktype.QueueingHint]string{fwktype.Queue: "Queue", fwktype.QueueSkip: "Skip"}[found]}, nil
}
