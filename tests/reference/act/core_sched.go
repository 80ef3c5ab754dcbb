// in pkg/koordlet/runtimehooks/hooks/coresched
package coresched

import (
	corev1 "k8s.io/api/core/v1"

	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
)

// GroupOf a pod: whether it has a cookie, and who has the same.
func GroupOf(strategy *slov1alpha1.ResourceQOSStrategy, labels map[string]string, kube corev1.PodQOSClass, uid string) (any, error) {
	p := newPlugin()
	if _, err := p.parseRuleForNodeSLO(&slov1alpha1.NodeSLOSpec{ResourceQOSStrategy: strategy}); err != nil {
		return nil, err
	}
	enabled, group := p.getPodEnabledAndGroup(nil, labels, kube, uid)
	return map[string]any{"enabled": enabled, "group": group}, nil
}

// IdleOf the groups of classes.
func IdleOf(strategy *slov1alpha1.ResourceQOSStrategy) (any, error) {
	p := newPlugin()
	if _, err := p.parseRuleForNodeSLO(&slov1alpha1.NodeSLOSpec{ResourceQOSStrategy: strategy}); err != nil {
		return nil, err
	}
	found := map[corev1.PodQOSClass]int{}
	for _, class := range []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort} {
		found[class] = 0
		if p.rule.IsKubeQOSCPUIdle(class) {
			found[class] = 1
		}
	}
	return map[string]any{"idle": found}, nil
}
