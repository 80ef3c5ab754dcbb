// in pkg/util/cpuset
package cpuset

import (
	"encoding/json"
	"math"
	"math/big"

	"gopkg.in/inf.v0"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/koordinator-sh/koordinator/pkg/answering"
)

type textQuestion struct {
	Op   string `json:"op"`
	Text string `json:"text"`
	CPUs []int  `json:"cpus"`
}

type cpusQuestion struct {
	textQuestion
	A []int `json:"a"`
	B []int `json:"b"`
}

type pairQuestion struct {
	textQuestion
	A string `json:"a"`
	B string `json:"b"`
}

var refused = map[string]bool{"error": true}

func init() {
	answering.Area("api-cpuset-string", answering.Of(cpuText))
	answering.Area("api-quantity", answering.Of(quantities))
	equal := answering.Of(func(asked pairQuestion) (any, error) {
		return map[string]bool{"result": IsEqualStrCpus(asked.A, asked.B)}, nil
	})
	sets := answering.Of(cpuSets)
	answering.Area("cpuset", func(input json.RawMessage) (any, error) {
		if answer, err := equal(input); err == nil {
			if asked, _ := answering.Of(opOf)(input); asked == "equalText" {
				return answer, nil
			}
		}
		return sets(input)
	})
}

func opOf(asked struct {
	Op string `json:"op"`
}) (any, error) {
	return asked.Op, nil
}

func listed(cpus CPUSet) any { return map[string][]int{"cpus": append([]int{}, cpus.ToSlice()...)} }

func cpuText(asked textQuestion) (any, error) {
	if asked.Op == "format" {
		cpus := NewCPUSet(asked.CPUs...)
		return map[string]string{"text": cpus.String()}, nil
	}
	cpus, err := Parse(asked.Text)
	if err != nil {
		return refused, nil
	}
	if asked.Op == "roundtrip" {
		return map[string]string{"text": cpus.String()}, nil
	}
	return listed(cpus), nil
}

func cpuSets(asked cpusQuestion) (any, error) {
	a, b := NewCPUSet(asked.A...), NewCPUSet(asked.B...)
	switch asked.Op {
	case "union":
		return listed(a.Union(b)), nil
	case "intersection":
		return listed(a.Intersection(b)), nil
	case "difference":
		return listed(a.Difference(b)), nil
	case "isSubsetOf":
		return map[string]bool{"result": a.IsSubsetOf(b)}, nil
	}
	return cpuText(asked.textQuestion)
}

func quantities(asked pairQuestion) (any, error) {
	if asked.Op == "parse" {
		return parsed(asked.Text)
	}
	a, err := resource.ParseQuantity(asked.A)
	if err != nil {
		return refused, nil
	}
	b, err := resource.ParseQuantity(asked.B)
	if err != nil {
		return refused, nil
	}
	switch asked.Op {
	case "cmp":
		return map[string]int{"order": a.Cmp(b)}, nil
	case "add":
		a.Add(b)
	case "sub":
		a.Sub(b)
	}
	return map[string]string{"canonical": canonical(a)}, nil
}

func parsed(text string) (any, error) {
	amount, err := resource.ParseQuantity(text)
	if err != nil {
		return refused, nil
	}
	answer := map[string]any{"canonical": canonical(amount)}
	copied := amount.DeepCopy()
	exact := copied.AsDec()
	for name, view := range map[string]struct {
		number int64
		scale  int64
	}{"value": {amount.Value(), 1}, "milli": {amount.MilliValue(), 1000}} {
		scaled := new(inf.Dec).Mul(exact, inf.NewDec(view.scale, 0))
		whole := new(inf.Dec).Round(scaled, 0, inf.RoundUp).UnscaledBig()
		if whole.Cmp(big.NewInt(math.MaxInt64)) <= 0 && whole.Cmp(big.NewInt(math.MinInt64)) >= 0 {
			answer[name] = view.number
		}
	}
	return answer, nil
}

// The original keeps some texts that are not the canonical ones ("7.585P", "+1"): those are not asked for.
func canonical(amount resource.Quantity) string {
	number, suffix := amount.CanonicalizeBytes(nil)
	return string(number) + string(suffix)
}
