// in pkg/scheduler/plugins/elasticquota
package elasticquota

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/cache"
	fwktype "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/koordinator-sh/koordinator/apis/extension"
	apiv1alpha1 "github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/apis/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/apis/thirdparty/scheduler-plugins/pkg/generated/listers/scheduling/v1alpha1"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/elasticquota/core"
)

// scene is the plugin around a manager, with the one node "n" and caches that no API server fills.
func scene(args config.ElasticQuotaArgs, manager *core.GroupQuotaManager, node *framework.NodeInfo) *Plugin {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{}, &apiv1alpha1.ElasticQuota{}, 0, cache.Indexers{
		cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
		"annotation.namespaces": func(object interface{}) ([]string, error) {
			return extension.GetAnnotationQuotaNamespaces(object.(*apiv1alpha1.ElasticQuota)), nil
		},
	})
	found := &Plugin{
		pluginArgs:                     &args,
		quotaInformer:                  informer,
		quotaLister:                    v1alpha1.NewElasticQuotaLister(informer.GetIndexer()),
		groupQuotaManager:              manager,
		groupQuotaManagersForQuotaTree: map[string]*core.GroupQuotaManager{},
		quotaToTreeMap:                 map[string]string{extension.DefaultQuotaName: "", extension.SystemQuotaName: ""},
		quotaSnapshot:                  map[string]*core.QuotaSnapshot{},
		quotaToTreeMapSnapshot:         map[string]string{},
	}
	found.handle = &oneNode{plugin: found, node: node}
	return found
}

func newScene(args config.ElasticQuotaArgs, gates []string, node *framework.NodeInfo) (*Plugin, error) {
	manager, err := core.AskedOptions{}.Manager()
	if err != nil {
		return nil, err
	}
	return scene(args, manager, node), core.Gates(gates...)
}

func (g *Plugin) learn(quotas []core.AskedQuota) error {
	for _, each := range quotas {
		object := each.Object()
		if err := g.quotaInformer.GetIndexer().Add(object); err != nil {
			return err
		}
		g.OnQuotaAdd(object)
	}
	return nil
}

// oneNode is what the plugin sees of a scheduler; its only filter is whether requests fit the node.
type oneNode struct {
	fwktype.Handle
	plugin *Plugin
	node   *framework.NodeInfo
}

func (h *oneNode) SnapshotSharedLister() fwktype.SharedLister { return oneNodeLister{node: h.node} }

func (h *oneNode) RunPreFilterExtensionAddPod(
	ctx context.Context, state fwktype.CycleState, pod *corev1.Pod, added fwktype.PodInfo, node fwktype.NodeInfo,
) *fwktype.Status {
	return h.plugin.AddPod(ctx, state, pod, added, node)
}

func (h *oneNode) RunPreFilterExtensionRemovePod(
	ctx context.Context, state fwktype.CycleState, pod *corev1.Pod, removed fwktype.PodInfo, node fwktype.NodeInfo,
) *fwktype.Status {
	return h.plugin.RemovePod(ctx, state, pod, removed, node)
}

func (h *oneNode) RunFilterPluginsWithNominatedPods(
	_ context.Context, _ fwktype.CycleState, pod *corev1.Pod, node fwktype.NodeInfo,
) *fwktype.Status {
	for name, asked := range core.PodRequests(pod) {
		if asked.IsZero() {
			continue
		}
		for _, each := range node.GetPods() {
			request := core.PodRequests(each.GetPod())
			asked.Add(*request.Name(name, resource.DecimalSI))
		}
		if asked.Cmp(*node.Node().Status.Allocatable.Name(name, resource.DecimalSI)) > 0 {
			return fwktype.NewStatus(fwktype.Unschedulable, "does not fit")
		}
	}
	return nil
}

type oneNodeLister struct {
	fwktype.SharedLister
	fwktype.NodeInfoLister
	node *framework.NodeInfo
}

func (l oneNodeLister) NodeInfos() fwktype.NodeInfoLister { return l }

func (l oneNodeLister) Get(name string) (fwktype.NodeInfo, error) {
	if l.node == nil || name != l.node.Node().Name {
		return nil, errors.New("no such node")
	}
	return l.node, nil
}
