// in pkg/util/sloconfig
package sloconfig

import (
	"github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/util/transformer"
)

func init() {
	transformer.Readers["reclaim-percent"] = func(q transformer.ReadQuestion) (any, error) {
		return getNodeReclaimPercent(q.Node(), extension.LabelCPUReclaimRatio), nil
	}
}
