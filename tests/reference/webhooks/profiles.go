// in pkg/controller/colocationprofile
package colocationprofile

import (
	"context"
	"time"

	gocache "github.com/patrickmn/go-cache"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	configv1alpha1 "github.com/koordinator-sh/koordinator/apis/config/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/util/fieldindex"
)

// Reconciled is a pod after one round over a profile.
func Reconciled(profile *configv1alpha1.ClusterColocationProfile, pod *corev1.Pod, random int) (*corev1.Pod, error) {
	randIntnFn = func(int) int { return random }
	ReconcileByDefault = true
	cluster := fieldindex.Cluster(profile.DeepCopy(), pod.DeepCopy())
	reconciler := &Reconciler{
		Client: cluster, Scheme: cluster.Scheme(),
		rateLimiter: rate.NewLimiter(1, 1), podUpdateCache: *gocache.New(time.Minute, 0),
	}
	asked := ctrl.Request{NamespacedName: types.NamespacedName{Name: profile.Name}}
	if _, err := reconciler.Reconcile(context.TODO(), asked); err != nil {
		return nil, err
	}
	found := &corev1.Pod{}
	err := cluster.Get(context.TODO(), types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, found)
	found.ResourceVersion = pod.ResourceVersion
	return found, err
}
