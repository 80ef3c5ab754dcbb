// in pkg/scheduler/plugins/deviceshare
package deviceshare

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwktype "k8s.io/kube-scheduler/framework"

	schedulingv1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
)

type scoreQuestion struct {
	deviceQuestion
	Request       corev1.ResourceList `json:"request"`
	Total         corev1.ResourceList `json:"total"`
	Free          corev1.ResourceList `json:"free"`
	Devices       []orderedDevice     `json:"devices"`
	Preferred     []int               `json:"preferred"`
	PreferredPCIe []string            `json:"preferredPCIes"`
	Scores        map[string]int64    `json:"scores"`
}

type orderedDevice struct {
	Minor int     `json:"minor"`
	Score int64   `json:"score"`
	PCIe  *string `json:"pcie"`
}

func init() {
	answering.Area("device-score", func(input json.RawMessage) (any, error) {
		asked := scoreQuestion{}
		if err := json.Unmarshal(input, &asked); err != nil {
			return nil, err
		}
		return sameEachTime(asked.score)
	})
}

func (asked scoreQuestion) score() (any, error) {
	switch asked.Op {
	case "device":
		return map[string]any{"score": asked.scorer().scoreDevice(asked.Request, asked.Total, asked.Free)}, nil
	case "order":
		return map[string]any{"order": asked.order()}, nil
	case "normalise":
		list, index := fwktype.NodeScoreList{}, []string{}
		for name, score := range asked.Scores {
			list, index = append(list, fwktype.NodeScore{Name: name, Score: score}), append(index, name)
		}
		status := (&Plugin{}).NormalizeScore(context.TODO(), nil, nil, list)
		scores := map[string]int64{}
		for number, name := range index {
			scores[name] = list[number].Score
		}
		return map[string]any{"scores": scores}, status.AsError()
	case "node", "reservation":
		return asked.ofNode()
	}
	return nil, fmt.Errorf("no op %q", asked.Op)
}

func (asked scoreQuestion) order() []int {
	pairs := []deviceResourceMinorPair{}
	infos := map[int]*schedulingv1alpha1.DeviceInfo{}
	for _, each := range asked.Devices {
		pairs = append(pairs, deviceResourceMinorPair{minor: each.Minor, score: each.Score})
		infos[each.Minor] = &schedulingv1alpha1.DeviceInfo{}
		if each.PCIe != nil {
			infos[each.Minor].Topology = &schedulingv1alpha1.DeviceTopology{PCIEID: *each.PCIe}
		}
	}
	if len(asked.Preferred) > 0 {
		pairs = sortDeviceResourcesByMinor(pairs, sets.NewInt(asked.Preferred...))
	} else {
		pairs = sortDeviceResourcesByPreferredPCIe(pairs, sets.NewString(asked.PreferredPCIe...), infos)
	}
	minors := []int{}
	for _, pair := range pairs {
		minors = append(minors, pair.minor)
	}
	return minors
}

func (asked scoreQuestion) ofNode() (any, error) {
	s, err := asked.situation()
	if err != nil {
		return nil, err
	}
	if status := asked.prepare(s); !status.IsSuccess() {
		return nil, fmt.Errorf("%s: %s", status.Code(), status.Message())
	}
	allocator := &AutopilotAllocator{
		state: s.state, nodeDevice: s.plugin.nodeDeviceCache.getNodeDevice(theNode, false), node: s.info.Node(), pod: s.pod,
		scorer: asked.scorer(),
	}
	preemptible := appendAllocated(nil, s.restored.mergedUnmatchedUsed, s.state.preemptibleDevices[theNode])
	var score int64
	var status *fwktype.Status
	if len(s.restored.matched) > 0 {
		score, status = s.plugin.scoreWithReservation(
			allocator, s.state, s.restored, &s.restored.matched[0], theNode, preemptible)
	} else {
		score, status = allocator.score(nil, preemptible)
	}
	if !status.IsSuccess() {
		return nil, fmt.Errorf("%s: %s", status.Code(), status.Message())
	}
	return map[string]any{"ok": true, "score": score}, nil
}
