// in pkg/util/fieldindex
package fieldindex

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	k8sfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/testing"
	"k8s.io/component-base/featuregate"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	configv1alpha1 "github.com/koordinator-sh/koordinator/apis/config/v1alpha1"
	quotav1alpha1 "github.com/koordinator-sh/koordinator/apis/quota/v1alpha1"
	apiv1alpha1 "github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/features"
	utilfeature "github.com/koordinator-sh/koordinator/pkg/util/feature"
)

var (
	everything = runtime.NewScheme()
	decoder    = serializer.NewCodecFactory(everything).UniversalDecoder()
)

func init() {
	features.SetDefaultFeatureGates()
	for _, add := range []func(*runtime.Scheme) error{
		scheme.AddToScheme, apiv1alpha1.AddToScheme, quotav1alpha1.AddToScheme, configv1alpha1.AddToScheme,
	} {
		if err := add(everything); err != nil {
			panic(err)
		}
	}
}

// Cluster is a client of a cluster with these objects, with the indexes that the manager has.
func Cluster(objects ...client.Object) client.WithWatch {
	// A plain tracker: one that knows fields' managers takes milliseconds to make.
	tracker := testing.NewObjectTracker(everything, decoder)
	builder := fake.NewClientBuilder().WithScheme(everything).WithObjectTracker(tracker).WithObjects(objects...)
	for _, each := range indexDescriptors {
		builder = builder.WithIndex(each.obj, each.field, each.indexerFunc)
	}
	return builder.Build()
}

// Gates switches exactly these alpha gates on, for the manager and the scheduler.
func Gates(on ...string) error {
	known := map[string]bool{}
	for _, gates := range []featuregate.MutableFeatureGate{
		utilfeature.DefaultMutableFeatureGate, k8sfeature.DefaultMutableFeatureGate,
	} {
		wanted := map[string]bool{}
		for name, spec := range gates.GetAll() {
			if spec.PreRelease == featuregate.Alpha && name != "AllAlpha" {
				known[string(name)], wanted[string(name)] = true, spec.Default
			}
		}
		for _, name := range on {
			if _, found := wanted[name]; found {
				wanted[name] = true
			}
		}
		if err := gates.SetFromMap(wanted); err != nil {
			return err
		}
	}
	for _, name := range on {
		if !known[name] {
			return fmt.Errorf("no gate %s", name)
		}
	}
	return nil
}
