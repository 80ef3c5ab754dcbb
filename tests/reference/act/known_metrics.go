// in pkg/koordlet/metriccache
package metriccache

import (
	"fmt"
	"sort"
	"strings"
	"time"

	promstorage "github.com/prometheus/prometheus/storage"
)

// Sample is what is known of one metric: how many points, their average and the latest.
type Sample struct {
	Count     int
	Avg, Last *float64
}

// Known is a metric cache that knows what a question says.
type Known struct {
	MetricCache
	samples map[string]Sample
	values  map[any]any
}

func NewKnown() *Known {
	DefaultAggregateResultFactory = knownResults{}
	return &Known{samples: map[string]Sample{}, values: map[any]any{}}
}

// Put says what is known of a metric with these properties.
func (k *Known) Put(metric MetricResource, of map[MetricProperty]string, sample Sample) {
	meta, err := metric.BuildQueryMeta(of)
	if err != nil {
		panic(err)
	}
	k.samples[keyOf(meta)] = sample
}

// PutOne puts one value that is latest and average.
func (k *Known) PutOne(metric MetricResource, of map[MetricProperty]string, value float64) {
	k.Put(metric, of, Sample{1, &value, &value})
}

func (k *Known) Get(key interface{}) (interface{}, bool) {
	value, found := k.values[key]
	return value, found
}

func (k *Known) Set(key, value interface{}) { k.values[key] = value }

func (k *Known) Querier(_, _ time.Time) (Querier, error) { return knownQuerier{k}, nil }

type knownQuerier struct{ of *Known }

func (q knownQuerier) Close() {}

func (q knownQuerier) QueryAndClose(meta MetricMeta, hints *QueryHints, result MetricResult) error {
	return q.Query(meta, hints, result)
}

func (q knownQuerier) Query(meta MetricMeta, _ *QueryHints, result MetricResult) error {
	result.(*knownResult).sample = q.of.samples[keyOf(meta)]
	return nil
}

func keyOf(meta MetricMeta) string {
	parts := []string{}
	for name, value := range meta.GetProperties() {
		parts = append(parts, name+"="+value)
	}
	sort.Strings(parts)
	return meta.GetKind() + "|" + strings.Join(parts, "|")
}

type knownResults struct{}

func (knownResults) New(meta MetricMeta) AggregateResult { return &knownResult{MetricMeta: meta} }

type knownResult struct {
	MetricMeta
	sample Sample
}

func (r *knownResult) AddSeries(promstorage.Series) error { return nil }

func (r *knownResult) Count() int { return r.sample.Count }

func (r *knownResult) TimeRangeDuration() time.Duration { return 0 }

func (r *knownResult) Value(of AggregationType) (float64, error) {
	value := r.sample.Avg
	if of == AggregationTypeLast {
		value = r.sample.Last
	}
	if value == nil || (of == AggregationTypeAVG && r.sample.Count == 0) {
		return 0, fmt.Errorf("not known")
	}
	return *value, nil
}
