// in pkg/koordlet/metriccache
package metriccache

import (
	"github.com/prometheus/prometheus/model/labels"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"

	"github.com/koordinator-sh/koordinator/pkg/answering"
)

type seriesQuestion struct {
	Series []struct {
		Kind       string            `json:"kind"`
		Properties map[string]string `json:"properties"`
		Points     [][2]float64      `json:"points"`
	} `json:"series"`
	Query struct {
		Kind       string            `json:"kind"`
		Properties map[string]string `json:"properties"`
		StartMs    int64             `json:"startMs"`
		EndMs      int64             `json:"endMs"`
	} `json:"query"`
	Aggregations []string `json:"aggregations"`
}

type point struct {
	at    int64
	value float64
}

func (p point) T() int64   { return p.at }
func (p point) V() float64 { return p.value }

var _ tsdbutil.Sample = point{}

func init() { answering.Area("series-aggregate", answering.Of(aggregated)) }

// The store is left out: each series is given to the result as a querier of the store does.
func aggregated(asked seriesQuestion) (any, error) {
	query := asked.Query
	result := newAggregateResult(&metricMeta{kind: MetricKind(query.Kind)})
	for _, each := range asked.Series {
		if each.Kind != query.Kind || !hasAll(each.Properties, query.Properties) {
			continue
		}
		found := []tsdbutil.Sample{}
		for _, pair := range each.Points {
			if at := int64(pair[0]); at >= query.StartMs && at <= query.EndMs {
				found = append(found, point{at, pair[1]})
			}
		}
		if len(found) == 0 {
			continue
		}
		if err := result.AddSeries(promstorage.NewListSeries(labels.FromMap(each.Properties), found)); err != nil {
			return nil, err
		}
	}
	values := map[string]any{}
	for _, name := range asked.Aggregations {
		values[name] = "error"
		if value, err := result.Value(AggregationType(name)); err == nil {
			values[name] = value
		}
	}
	span := result.TimeRangeDuration().Milliseconds()
	return map[string]any{"count": result.Count(), "spanMs": span, "values": values}, nil
}

func hasAll(properties, wanted map[string]string) bool {
	for name, value := range wanted {
		if properties[name] != value {
			return false
		}
	}
	return true
}
