// in pkg/koordlet/runtimehooks/hooks/cpuset
package cpuset

import (
	"fmt"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/features"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/runtimehooks/protocol"
)

type cpusetQuestion struct {
	Op                  string
	Labels, Annotations map[string]string
	CgroupParent        string
	Topology            *struct {
		SharePools, BESharePools []extension.CPUSharedPool
		KubeletPolicy            string
		SystemQOSCPUSet          string
	}
	BECPUManager bool
	KeepQuota    bool
	QOS          extension.QoSClass
	SharePools   []extension.CPUSharedPool
}

func init() { answering.Area("cpuset-hook", answering.Of(cpusetAnswer)) }

func cpusetAnswer(asked cpusetQuestion) (any, error) {
	p := &cpusetPlugin{disableUnsetCPUQuota: asked.KeepQuota}
	if of := asked.Topology; of != nil {
		p.rule = &cpusetRule{sharePools: of.SharePools, beSharePools: of.BESharePools, systemQOSCPUSet: of.SystemQOSCPUSet}
		p.rule.kubeletPolicy.Policy = of.KubeletPolicy
	}
	gates := map[string]bool{string(features.BECPUManager): asked.BECPUManager}
	if err := features.DefaultMutableKoordletFeatureGate.SetFromMap(gates); err != nil {
		return nil, err
	}
	switch asked.Op {
	case "container":
		context := &protocol.ContainerContext{}
		context.Request.PodLabels, context.Request.PodAnnotations = asked.Labels, asked.Annotations
		context.Request.CgroupParent = asked.CgroupParent
		if err := p.SetContainerCPUSetAndUnsetCFS(context); err != nil {
			return map[string]any{"error": true}, nil
		}
		found := context.Response.Resources
		return map[string]any{"error": false, "cpuset": found.CPUSet, "quota": found.CFSQuota}, nil
	case "pod_quota":
		context := &protocol.PodContext{}
		context.Request.Labels, context.Request.Annotations = asked.Labels, asked.Annotations
		if err := p.UnsetPodCPUQuota(context); err != nil {
			return map[string]any{"error": true}, nil
		}
		return map[string]any{"error": false, "quota": context.Response.Resources.CFSQuota}, nil
	case "hostapp":
		p.rule = &cpusetRule{sharePools: asked.SharePools}
		context := &protocol.HostAppContext{}
		context.Request.QOSClass = asked.QOS
		if err := p.SetHostAppCPUSet(context); err != nil {
			return map[string]any{"error": true}, nil
		}
		return map[string]any{"error": false, "cpuset": context.Response.Resources.CPUSet}, nil
	}
	return nil, fmt.Errorf("nothing answers %s", asked.Op)
}
