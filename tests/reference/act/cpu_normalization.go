// in pkg/koordlet/runtimehooks/hooks/cpunormalization
package cpunormalization

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/runtimehooks/protocol"
)

type normalizationQuestion struct {
	Op                  string
	Labels, Annotations map[string]string
	Ratio, Old, New     float64
	Quota               *int64
	Annotation          *string
}

func init() { answering.Area("cpunorm-quota", answering.Of(normalizationAnswer)) }

func normalizationAnswer(asked normalizationQuestion) (any, error) {
	p := newPlugin()
	switch asked.Op {
	case "quota":
		p.rule.UpdateRule(asked.Ratio)
		context := &protocol.PodContext{}
		context.Request.Labels, context.Request.Annotations = asked.Labels, asked.Annotations
		context.Request.Resources = &protocol.Resources{CFSQuota: asked.Quota}
		if err := p.AdjustPodCFSQuota(context); err != nil {
			return nil, err
		}
		return map[string]any{"quota": context.Response.Resources.CFSQuota}, nil
	case "share":
		return map[string]any{"scaled": isPodCPUShare(asked.Labels, asked.Annotations)}, nil
	case "ratio":
		node := &corev1.Node{}
		if asked.Annotation != nil {
			node.Annotations = map[string]string{extension.AnnotationCPUNormalizationRatio: *asked.Annotation}
		}
		ratio, err := extension.GetCPUNormalizationRatio(node)
		if err != nil {
			return map[string]any{"error": true, "ratio": nil}, nil
		}
		return map[string]any{"error": false, "ratio": ratio}, nil
	case "update":
		p.rule.UpdateRule(asked.Old)
		changed := p.rule.UpdateRule(asked.New)
		return map[string]any{"changed": changed, "ratio": p.rule.GetCPUNormalizationRatio()}, nil
	}
	return nil, fmt.Errorf("nothing answers %s", asked.Op)
}
