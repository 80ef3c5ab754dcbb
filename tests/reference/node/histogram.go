// in pkg/util/histogram
package histogram

import (
	"encoding/json"
	"time"

	"github.com/koordinator-sh/koordinator/pkg/answering"
)

type histogramQuestion struct {
	Op        string `json:"op"`
	Histogram struct {
		Scheme          string  `json:"scheme"`
		Max             float64 `json:"max"`
		Size            float64 `json:"size"`
		First           float64 `json:"first"`
		Ratio           float64 `json:"ratio"`
		Epsilon         float64 `json:"epsilon"`
		HalfLifeSeconds *int64  `json:"halfLifeSeconds"`
	} `json:"histogram"`
	Starts      []int         `json:"starts"`
	Find        []json.Number `json:"find"`
	Steps       []histogramStep
	Percentiles []json.Number `json:"percentiles"`
	Save        bool          `json:"save"`
}

type histogramStep struct {
	Do         string          `json:"do"`
	Value      float64         `json:"value"`
	Weight     float64         `json:"weight"`
	At         int64           `json:"at"`
	Other      []histogramStep `json:"other"`
	Checkpoint *struct {
		TotalWeight      float64        `json:"totalWeight"`
		BucketWeights    map[int]uint32 `json:"bucketWeights"`
		ReferenceSeconds int64          `json:"referenceSeconds"`
	} `json:"checkpoint"`
}

var refused = map[string]bool{"error": true}

func init() { answering.Area("histogram-percentile", answering.Of(percentiles)) }

func percentiles(asked histogramQuestion) (any, error) {
	given := asked.Histogram
	options, err := NewLinearHistogramOptions(given.Max, given.Size, given.Epsilon)
	if given.Scheme == "exponential" {
		options, err = NewExponentialHistogramOptions(given.Max, given.First, given.Ratio, given.Epsilon)
	}
	if err != nil {
		return refused, nil
	}
	if asked.Op == "scheme" {
		return buckets(asked, options), nil
	}
	empty := func() Histogram {
		if given.HalfLifeSeconds == nil {
			return NewHistogram(options)
		}
		return NewDecayingHistogram(options, time.Duration(*given.HalfLifeSeconds)*time.Second)
	}
	played := empty()
	if err := play(played, asked.Steps, empty); err != nil {
		return refused, nil
	}
	values := map[string]float64{}
	for _, share := range asked.Percentiles {
		number, _ := share.Float64()
		values[share.String()] = played.Percentile(number)
	}
	answer := map[string]any{"empty": played.IsEmpty(), "percentiles": values}
	if asked.Save {
		saved, err := played.SaveToCheckpoint()
		if err != nil {
			return refused, nil
		}
		answer["checkpoint"] = map[string]any{"totalWeight": saved.TotalWeight, "bucketWeights": saved.BucketWeights}
	}
	return answer, nil
}

func buckets(asked histogramQuestion, options HistogramOptions) any {
	starts, found := map[int]float64{}, map[string]int{}
	for _, index := range asked.Starts {
		starts[index] = options.GetBucketStart(index)
	}
	for _, value := range asked.Find {
		number, _ := value.Float64()
		found[value.String()] = options.FindBucket(number)
	}
	return map[string]any{"buckets": options.NumBuckets(), "starts": starts, "find": found}
}

func play(target Histogram, steps []histogramStep, empty func() Histogram) error {
	for _, step := range steps {
		at := time.Unix(step.At, 0)
		switch step.Do {
		case "add":
			target.AddSample(step.Value, step.Weight, at)
		case "subtract":
			target.SubtractSample(step.Value, step.Weight, at)
		case "merge":
			other := empty()
			if err := play(other, step.Other, empty); err != nil {
				return err
			}
			target.Merge(other)
		case "load":
			var checkpoint *HistogramCheckpoint
			if given := step.Checkpoint; given != nil {
				checkpoint = &HistogramCheckpoint{ReferenceTimestamp: time.Unix(given.ReferenceSeconds, 0),
					BucketWeights: given.BucketWeights, TotalWeight: given.TotalWeight}
			}
			if err := target.LoadFromCheckpoint(checkpoint); err != nil {
				return err
			}
		}
	}
	return nil
}
