// in pkg/koordlet/runtimehooks/hooks/tc
package tc

import "github.com/koordinator-sh/koordinator/pkg/util/transformer"

func init() {
	transformer.Readers["network-qos"] = func(q transformer.ReadQuestion) (any, error) {
		in, out, err := getIngressAndEgress(q.Annotations)
		return map[string]uint64{"ingressBytesPerSecond": in, "egressBytesPerSecond": out}, err
	}
}
