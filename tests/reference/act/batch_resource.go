// in pkg/koordlet/runtimehooks/hooks/batchresource
package batchresource

import (
	"encoding/json"
	"fmt"

	apiext "github.com/koordinator-sh/koordinator/apis/extension"
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/runtimehooks/protocol"
)

type batchQuestion struct {
	Op        string
	QOS       string
	Extended  json.RawMessage
	QuotaUsed *bool
	Ratio     *float64
	Threshold *slov1alpha1.ResourceThresholdStrategy
}

func init() { answering.Area("batchresource", answering.Of(batchAnswer)) }

func batchAnswer(asked batchQuestion) (any, error) {
	p := newPlugin()
	if asked.QuotaUsed != nil {
		p.rule.UpdateCFSQuotaEnabled(*asked.QuotaUsed)
	}
	if asked.Ratio != nil {
		p.rule.UpdateCPUNormalizationRatio(*asked.Ratio)
	}
	labels := map[string]string{}
	if asked.QOS != "" {
		labels[apiext.LabelPodQoS] = asked.QOS
	}
	isKnown := len(asked.Extended) > 0 && string(asked.Extended) != "null"
	switch asked.Op {
	case "rule":
		if _, err := p.parseRuleForNodeSLO(&slov1alpha1.NodeSLOSpec{ResourceUsedThresholdWithBE: asked.Threshold}); err != nil {
			return nil, err
		}
		used, _ := p.rule.GetCFSQuotaScaleRatio()
		return map[string]any{"quotaUsed": used}, nil
	case "pod":
		context := &protocol.PodContext{}
		context.Request.Labels = labels
		if isKnown {
			context.Request.ExtendedResources = &apiext.ExtendedResourceSpec{}
			if err := json.Unmarshal(asked.Extended, &context.Request.ExtendedResources.Containers); err != nil {
				return nil, err
			}
		}
		return limitsOf(&context.Response.Resources, p.SetPodResources(context))
	case "container":
		context := &protocol.ContainerContext{}
		context.Request.PodLabels = labels
		if isKnown {
			context.Request.ExtendedResources = &apiext.ExtendedResourceContainerSpec{}
			if err := json.Unmarshal(asked.Extended, context.Request.ExtendedResources); err != nil {
				return nil, err
			}
		}
		return limitsOf(&context.Response.Resources, p.SetContainerResources(context))
	}
	return nil, fmt.Errorf("nothing answers %s", asked.Op)
}

func limitsOf(found *protocol.Resources, err error) (any, error) {
	return map[string]any{"cpuShares": found.CPUShares, "cfsQuota": found.CFSQuota, "memoryLimit": found.MemoryLimit}, err
}
