// in pkg/scheduler/frameworkext/topologymanager
package topologymanager

import (
	"errors"
	"maps"
	"reflect"
	"sort"

	apiext "github.com/koordinator-sh/koordinator/apis/extension"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/util/bitmask"
)

type hintsQuestion struct {
	Policy    apiext.NUMATopologyPolicy    `json:"policy"`
	NUMANodes []int                        `json:"numaNodes"`
	Exclusive apiext.NumaTopologyExclusive `json:"exclusivePolicy"`
	Statuses  []apiext.NumaNodeStatus      `json:"numaStatus"`
	Providers []map[string][]struct {
		Affinity    []int `json:"affinity"`
		Preferred   bool  `json:"preferred"`
		Score       int64 `json:"score"`
		Unsatisfied bool  `json:"unsatisfied"`
	} `json:"providers"`
}

func init() { answering.Area("numa-hints-merge", answering.Of(merged)) }

func merged(asked hintsQuestion) (any, error) {
	providers := []map[string][]NUMATopologyHint{}
	for _, provider := range asked.Providers {
		hints := map[string][]NUMATopologyHint{}
		for name, found := range provider {
			if found == nil {
				hints[name] = nil
				continue
			}
			hints[name] = []NUMATopologyHint{}
			for _, each := range found {
				hint := NUMATopologyHint{Preferred: each.Preferred, Score: each.Score, Unsatisfied: each.Unsatisfied}
				if each.Affinity != nil {
					mask, err := bitmask.NewBitMask(each.Affinity...)
					if err != nil {
						return nil, err
					}
					hint.NUMANodeAffinity = mask
				}
				hints[name] = append(hints[name], hint)
			}
		}
		providers = append(providers, hints)
	}
	var answers, sorted []map[string]any
	InAllOrders(providers, func(ordered []map[string][]NUMATopologyHint) {
		best, admit, reasons := createNUMATopologyPolicy(asked.Policy, asked.NUMANodes).Merge(
			ordered, asked.Exclusive, asked.Statuses)
		var affinity any
		if best.NUMANodeAffinity != nil {
			affinity = best.NUMANodeAffinity.GetBits()
		}
		answer := map[string]any{
			"affinity": affinity, "preferred": best.Preferred, "unsatisfied": best.Unsatisfied, "score": best.Score,
			"admit": admit, "reasons": append([]string{}, reasons...)}
		answers = append(answers, answer)
		answer = maps.Clone(answer)
		sort.Strings(reasons)
		answer["reasons"] = reasons
		sorted = append(sorted, answer)
	})
	for _, each := range sorted {
		if !reflect.DeepEqual(each, sorted[0]) {
			return nil, errors.New("what is best depends on the order of a map")
		}
	}
	return answers[0], nil
}

// InAllOrders asks with each order in which the resources of a provider can be looked at, by name first: as many
// providers of one.
func InAllOrders(providers []map[string][]NUMATopologyHint, ask func([]map[string][]NUMATopologyHint)) {
	var next func(done []map[string][]NUMATopologyHint, number int, left []string)
	next = func(done []map[string][]NUMATopologyHint, number int, left []string) {
		if len(left) == 0 {
			if number++; number >= len(providers) {
				ask(done)
				return
			}
			if len(providers[number]) == 0 {
				next(append(done[:len(done):len(done)], nil), number, nil)
				return
			}
			for name := range providers[number] {
				left = append(left, name)
			}
			sort.Strings(left)
		}
		for index, name := range left {
			one := map[string][]NUMATopologyHint{name: providers[number][name]}
			rest := append(append([]string{}, left[:index]...), left[index+1:]...)
			next(append(done[:len(done):len(done)], one), number, rest)
		}
	}
	next(nil, -1, nil)
}
