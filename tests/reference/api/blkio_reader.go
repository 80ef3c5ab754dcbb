// in pkg/koordlet/qosmanager/plugins/blkio
package blkio

import (
	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/koordlet/qosmanager/plugins/util"
	"github.com/koordinator-sh/koordinator/pkg/util/transformer"
)

func init() {
	transformer.Readers["blkio-qos"] = func(q transformer.ReadQuestion) (any, error) {
		text := q.Annotations[slov1alpha1.AnnotationPodBlkioQoS]
		if text == "" {
			return nil, nil
		}
		return parseBlkIOResult(text)
	}
	transformer.Readers["eviction-policy-allows"] = func(q transformer.ReadQuestion) (any, error) {
		return util.IsEvictionPolicyAllowed(q.Name, q.Pod()), nil
	}
}
