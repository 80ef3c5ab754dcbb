// in pkg/descheduler/controllers/migration/arbitrator
package arbitrator

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	sev1alpha1 "github.com/koordinator-sh/koordinator/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/controllers/migration/controllerfinder"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/fieldindex"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/framework"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/test"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/utils/sorter"
)

type migrationJobs = []*sev1alpha1.PodMigrationJob

func init() {
	answering.Area("descheduler-arbitrate-filter", test.Of(admitted))
	answering.Area("descheduler-arbitrate-sort", test.Stable(2, test.Of(ordered)))
	answering.Area("descheduler-arbitrate-round", answering.Of(judged))
}

// fieldIndexes are those of the program.
type fieldIndexes struct {
	cache.Cache
}

func (i fieldIndexes) IndexField(_ context.Context, object client.Object, field string, values client.IndexerFunc) error {
	indexed = append(indexed, func(b *fake.ClientBuilder) { b.WithIndex(object, field, values) })
	return nil
}

var indexed []func(*fake.ClientBuilder)

func clientOf(jobs migrationJobs, pods []*corev1.Pod) client.Client {
	scheme := runtime.NewScheme()
	sev1alpha1.AddToScheme(scheme)
	clientgoscheme.AddToScheme(scheme)
	builder := fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&sev1alpha1.PodMigrationJob{})
	fieldindex.RegisterFieldIndexes(fieldIndexes{})
	for _, each := range indexed {
		each(builder)
	}
	for _, job := range jobs {
		builder.WithObjects(job.DeepCopy())
	}
	for _, pod := range pods {
		builder.WithObjects(pod.DeepCopy())
	}
	return builder.Build()
}

type workload struct {
	Replicas int32 `json:"replicas"`
	Error    bool  `json:"error"`
}

type finder struct {
	controllerfinder.Interface
	workloads map[string]workload
	pods      []*corev1.Pod
}

func (f *finder) GetPodsForRef(owner *metav1.OwnerReference, _ string, _ *metav1.LabelSelector, _ bool) ([]*corev1.Pod, int32, error) {
	known, ok := f.workloads[string(owner.UID)]
	if known.Error {
		return nil, -1, errors.New("no workload")
	}
	if !ok {
		return nil, 0, nil
	}
	var found []*corev1.Pod
	for _, pod := range f.pods {
		if own := metav1.GetControllerOf(pod); own != nil && own.UID == owner.UID {
			found = append(found, pod)
		}
	}
	return found, known.Replicas, nil
}

type handle struct {
	test.Scene
	factory informers.SharedInformerFactory
}

func (h *handle) SharedInformerFactory() informers.SharedInformerFactory { return h.factory }

func handleOf(pods []*corev1.Pod) framework.Handle {
	fakeClient := test.ClientSet()
	return &handle{Scene: test.Scene{Pods: pods, Client: fakeClient}, factory: informers.NewSharedInformerFactory(fakeClient, 0)}
}

func admitted(asked struct {
	Pod         *corev1.Pod         `json:"pod"`
	Args        json.RawMessage     `json:"args"`
	Jobs        migrationJobs       `json:"jobs"`
	Pods        []*corev1.Pod       `json:"pods"`
	Workloads   map[string]workload `json:"workloads"`
	Arbitrating bool                `json:"arbitrating"`
	Arbitrated  []string            `json:"arbitrated_jobs"`
}) (any, error) {
	args, err := test.ArgsOf[config.MigrationControllerArgs]("MigrationController", asked.Args)
	if err != nil {
		return nil, err
	}
	f := &filter{
		client: clientOf(asked.Jobs, asked.Pods), args: args, controllerFinder: &finder{workloads: asked.Workloads, pods: asked.Pods},
		skipEvictionGates: newEvictionGateSet(args.SkipEvictionGates), arbitratedPodMigrationJobs: map[types.UID]bool{},
	}
	if err := f.initFilters(args, handleOf(asked.Pods)); err != nil {
		return nil, err
	}
	for _, job := range asked.Jobs {
		if slices.Contains(asked.Arbitrated, job.Name) {
			f.markJobPassedArbitration(job.UID)
		}
	}
	pod := asked.Pod
	if asked.Arbitrating {
		markPodArbitrating(pod)
	}
	nonRetryable, retryable, arbitration := f.nonRetryablePodFilter(pod), f.retryablePodFilter(pod), "passed"
	if !nonRetryable {
		arbitration = "failed"
	} else if !retryable {
		arbitration = "wait"
	}
	return map[string]any{
		"no_existing_job": f.filterExistingPodMigrationJob(pod), "scheduler_ok": f.reservationFilter(pod),
		"non_retryable": nonRetryable, "retryable": retryable, "arbitration": arbitration,
		"per_gate": map[string]bool{
			"global": f.filterMaxMigratingGlobally(pod), "node": f.filterMaxMigratingPerNode(pod),
			"namespace": f.filterMaxMigratingPerNamespace(pod), "workload": f.filterMaxMigratingOrUnavailablePerWorkload(pod),
			"expected_replicas": f.filterExpectedReplicas(pod),
		},
		"filter": (&arbitratorImpl{filter: f}).Filter(pod),
	}, nil
}

func ordered(asked struct {
	Waiting migrationJobs `json:"waiting_jobs"`
	Others  migrationJobs `json:"other_jobs"`
	Pods    []*corev1.Pod `json:"pods"`
}) (any, error) {
	api := clientOf(append(slices.Clone(asked.Waiting), asked.Others...), asked.Pods)
	arbitrator := &arbitratorImpl{sorts: []SortFn{
		SortJobsByCreationTime(), SortJobsByPod(sorter.PodSorter().Sort), SortJobsByController(), SortJobsByMigratingNum(api),
	}}
	order, waiting := []string{}, test.InTurn(asked.Waiting)
	for _, job := range arbitrator.sort(waiting, getPodForJob(api, waiting)) {
		order = append(order, job.Name)
	}
	return map[string]any{"order": order}, nil
}

func judged(asked struct {
	Jobs         []string `json:"jobs_in_sorted_order"`
	Missing      []string `json:"pod_missing"`
	NonRetryable []string `json:"non_retryable_rejects"`
	Retryable    []string `json:"retryable_rejects"`
}) (any, error) {
	var jobs migrationJobs
	var pods []*corev1.Pod
	waiting := map[types.UID]*sev1alpha1.PodMigrationJob{}
	for _, name := range asked.Jobs {
		about := metav1.ObjectMeta{Name: name, UID: types.UID(name)}
		job := &sev1alpha1.PodMigrationJob{ObjectMeta: about}
		job.Spec.PodRef = &corev1.ObjectReference{Namespace: "default", Name: name}
		jobs = append(jobs, job)
		if about.Namespace = "default"; !slices.Contains(asked.Missing, name) {
			pods = append(pods, &corev1.Pod{ObjectMeta: about})
		}
	}
	api := clientOf(jobs, pods)
	for _, job := range jobs {
		waiting[job.UID] = &sev1alpha1.PodMigrationJob{}
		if err := api.Get(context.Background(), client.ObjectKeyFromObject(job), waiting[job.UID]); err != nil {
			return nil, err
		}
	}
	rejects := func(names []string) framework.FilterFunc {
		return func(pod *corev1.Pod) bool { return !slices.Contains(names, pod.Name) }
	}
	arbitrator := &arbitratorImpl{
		waitingCollection: waiting, client: api, eventRecorder: events.NewFakeRecorder(1000),
		filter: &filter{
			nonRetryablePodFilter: rejects(asked.NonRetryable), retryablePodFilter: rejects(asked.Retryable),
			arbitratedPodMigrationJobs: map[types.UID]bool{},
		},
	}
	arbitrator.doOnceArbitrate()
	found := map[string][]string{"passed": {}, "failed": {}, "still_waiting": {}}
	for _, job := range jobs {
		if err := api.Get(context.Background(), client.ObjectKeyFromObject(job), job); err != nil {
			return nil, err
		}
		result := "still_waiting"
		if job.Status.Phase == sev1alpha1.PodMigrationJobFailed {
			result = "failed"
		} else if arbitrator.filter.checkJobPassedArbitration(job.UID) {
			result = "passed"
		}
		found[result] = append(found[result], job.Name)
	}
	return found, nil
}
