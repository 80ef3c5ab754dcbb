// in pkg/descheduler/controllers/migration
package migration

import (
	"encoding/json"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/koordinator-sh/koordinator/apis/extension"
	sev1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/controllers/migration/controllerfinder"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/controllers/migration/reservation"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/controllers/migration/util"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/test"
	"github.com/koordinator-sh/koordinator/pkg/features"
	utilfeature "github.com/koordinator-sh/koordinator/pkg/util/feature"
)

func init() {
	answering.Area("descheduler-object-limiter", test.Stable(test.Often, answering.Of(blocked)))
	answering.Area("descheduler-max-unavailable", answering.Of(maxUnavailable))
	answering.Area("descheduler-reservation-template", test.Of(template))
}

type limiterQuestion struct {
	Limiters map[config.MigrationLimitObjectType]struct {
		Duration     float64             `json:"durationSeconds"`
		MaxMigrating *intstr.IntOrString `json:"maxMigrating"`
		Burst        int                 `json:"burst"`
	} `json:"object_limiters"`
	Replicas     int32               `json:"replicas"`
	MaxMigrating *intstr.IntOrString `json:"max_migrating_per_workload"`
	Events       []limiterEvent      `json:"events"`
}

type limiterEvent struct {
	At        float64 `json:"at"`
	Op        string  `json:"op"`
	Workload  string  `json:"workload"`
	Namespace string  `json:"namespace"`
}

func (e limiterEvent) pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: e.Namespace, OwnerReferences: []metav1.OwnerReference{{UID: types.UID(e.Workload), Controller: ptr.To(true)}},
	}}
}

type sameReplicas struct {
	controllerfinder.Interface
	replicas int32
}

func (s sameReplicas) GetExpectedScaleForPod(*corev1.Pod) (int32, error) { return s.replicas, nil }

// blocked has the evictions before a check once more for it, as long before now as they were before the check.
func blocked(asked limiterQuestion) (any, error) {
	args := &config.MigrationControllerArgs{MaxMigratingPerWorkload: asked.MaxMigrating, ObjectLimiters: config.ObjectLimiterMap{}}
	for kind, each := range asked.Limiters {
		duration := metav1.Duration{Duration: time.Duration(each.Duration * float64(time.Second))}
		args.ObjectLimiters[kind] = config.MigrationObjectLimiter{Duration: duration, MaxMigrating: each.MaxMigrating, Burst: each.Burst}
	}
	answers := []bool{}
	for index, check := range asked.Events {
		if check.Op != "check" {
			continue
		}
		now := time.Now()
		clock := clocktesting.NewFakeClock(now)
		reconciler := &Reconciler{args: args, controllerFinder: sameReplicas{replicas: asked.Replicas}, clock: clock}
		reconciler.initObjectLimiters()
		for _, each := range asked.Events[:index] {
			if each.Op == "evicted" {
				clock.SetTime(now.Add(-time.Duration(math.Round((check.At - each.At) * float64(time.Second)))))
				reconciler.trackEvictedPod(each.pod())
			}
		}
		answers = append(answers, reconciler.checkPodExceedObjectLimiter(check.pod()))
	}
	return map[string]any{"blocked": answers}, nil
}

func maxUnavailable(asked struct {
	Replicas int                 `json:"replicas"`
	Limit    *intstr.IntOrString `json:"limit"`
}) (any, error) {
	found, err := util.GetMaxUnavailable(asked.Replicas, asked.Limit)
	if err != nil {
		return map[string]bool{"error": true}, nil
	}
	return map[string]int{"max": found}, nil
}

func template(asked struct {
	Job        *sev1alpha1.PodMigrationJob `json:"job"`
	Pod        *corev1.Pod                 `json:"pod"`
	DisablePVC bool                        `json:"disable_pvc_reservation"`
}) (any, error) {
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{string(features.DisablePVCReservation): asked.DisablePVC}); err != nil {
		return nil, err
	}
	made := reservation.CreateOrUpdateReservationOptions(asked.Job, asked.Pod).Template
	delete(made.Labels, extension.LabelReservationOrder)
	text, err := json.Marshal(map[string]any{"metadata": made.ObjectMeta, "spec": made.Spec})
	if err != nil {
		return nil, err
	}
	var found map[string]any
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, err
	}
	return map[string]any{"reservation": trimmed(found)}, nil
}

// trimmed leaves out what Go writes for members that are not set.
func trimmed(given any) any {
	switch value := given.(type) {
	case []any:
		for index, member := range value {
			value[index] = trimmed(member)
		}
	case map[string]any:
		for name, member := range value {
			empty, ok := member.(map[string]any)
			if member == nil || name == "resources" && ok && len(empty) == 0 {
				delete(value, name)
			} else {
				value[name] = trimmed(member)
			}
		}
	}
	return given
}
