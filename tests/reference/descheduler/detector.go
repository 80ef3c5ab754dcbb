// in pkg/descheduler/utils/anomaly
package anomaly

import (
	"time"

	"github.com/koordinator-sh/koordinator/pkg/answering"
)

// Moment is longer than what is done at one time takes, also on a busy machine.
const Moment = 300 * time.Millisecond

// Clock moves detectors to times of its own.
type Clock struct {
	until map[*BasicDetector]float64
	moved map[*BasicDetector]time.Time
}

func NewClock() *Clock {
	return &Clock{until: map[*BasicDetector]float64{}, moved: map[*BasicDetector]time.Time{}}
}

// Before moves a detector to a time, just before it is asked.
func (c *Clock) Before(detector *BasicDetector, at float64) {
	if !detector.expiration.IsZero() {
		detector.expiration = time.Now().Add(Seconds(c.until[detector]-at) + Moment)
	}
	c.moved[detector] = detector.expiration
}

// After sees what the detector became.
func (c *Clock) After(detector *BasicDetector, at float64) {
	if !detector.expiration.Equal(c.moved[detector]) {
		c.until[detector] = at + detector.timeout.Seconds()
	}
}

func Seconds(amount float64) time.Duration { return time.Duration(amount * float64(time.Second)) }

type detectorQuestion struct {
	Timeout       float64 `json:"timeout_seconds"`
	Abnormalities uint32  `json:"consecutive_abnormalities"`
	Normalities   uint32  `json:"consecutive_normalities"`
	Operations    []struct {
		At float64 `json:"at"`
		Op string  `json:"op"`
	} `json:"operations"`
}

func init() { answering.Area("descheduler-anomaly-detector", answering.Of(detected)) }

func detected(asked detectorQuestion) (any, error) {
	detector := NewBasicDetector("", Options{
		Timeout:            Seconds(asked.Timeout),
		NormalConditionFn:  func(c Counter) bool { return c.ConsecutiveNormalities > asked.Normalities },
		AnomalyConditionFn: func(c Counter) bool { return c.ConsecutiveAbnormalities > asked.Abnormalities },
	})
	clock := NewClock()
	states := []string{}
	for _, each := range asked.Operations {
		clock.Before(detector, each.At)
		switch each.Op {
		case "abnormal":
			detector.Mark(false)
		case "normal":
			detector.Mark(true)
		case "reset":
			detector.Reset()
		}
		states = append(states, detector.State().String())
		clock.After(detector, each.At)
	}
	return map[string]any{"state_after_each": states}, nil
}
