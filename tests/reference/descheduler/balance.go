// in pkg/descheduler/framework/plugins/loadaware
package loadaware

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"

	gocache "github.com/patrickmn/go-cache"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/evictions"
	podutil "github.com/koordinator-sh/koordinator/pkg/descheduler/pod"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/test"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/utils/anomaly"
)

func init() {
	answering.Area("descheduler-lownodeload-evict", test.Repeated(test.Often, test.Of(evicted), shared))
	answering.Area("descheduler-lownodeload-cycles", test.Stable(test.Often, test.Of(cycled)))
}

func pluginOf(args *config.LowNodeLoadArgs, scene *test.Scene) (*LowNodeLoad, error) {
	selected, err := filterPods(args.PodSelectors)
	if err != nil {
		return nil, err
	}
	options := podutil.NewOptions().WithFilter(podutil.WrapFilterFuncs(scene.Filter, selected))
	if args.EvictableNamespaces != nil {
		options.WithoutNamespaces(sets.NewString(args.EvictableNamespaces.Exclude...))
		options.WithNamespaces(sets.NewString(args.EvictableNamespaces.Include...))
	}
	filter, err := options.BuildFilterFunc()
	if err != nil {
		return nil, err
	}
	ttl := args.DetectorCacheTimeout.Duration
	return &LowNodeLoad{handle: scene, args: args, podFilter: filter,
		nodeAnomalyDetectors: gocache.New(ttl, 0), prodAnomalyDetectors: gocache.New(ttl, 0)}, nil
}

// balance works on a pool and says how far it came.
func (pl *LowNodeLoad) balance(pool *config.LowNodeLoadNodePool, nodes []*corev1.Node, processed sets.String) (string, classes, error) {
	scene := pl.handle.(*test.Scene)
	scene.Evicted, scene.Reasons, scene.Evictors = []string{}, []string{}, 0
	own, err := filterNodes(pool.NodeSelector, nodes, processed)
	if err != nil || len(own) == 0 {
		return "no-nodes", classes{}, err
	}
	found := classesOf(pool, own, scene.Pods, pl.nodeMetricLister, pl.args.NodeMetricExpirationSeconds)
	status := pl.processOneNodePool(context.Background(), pool, nodes, processed)
	if status != nil && status.Err != nil {
		return "", found, status.Err
	}
	condition := pool.AnomalyCondition
	switch {
	case len(found.high)+len(found.prodHigh) == 0:
		return "no-source", found, nil
	case scene.Evictors > 0:
		return "balanced", found, nil
	case condition != nil && condition.ConsecutiveAbnormalities != 1 &&
		!anyAnomalous(pl.nodeAnomalyDetectors, found.high) && !anyAnomalous(pl.prodAnomalyDetectors, found.prodHigh):
		return "not-abnormal-yet", found, nil
	case len(found.low)+len(found.prodLow)+len(found.bothLow) == 0:
		return "no-target", found, nil
	}
	return "too-few-targets", found, nil
}

func anyAnomalous(detectors *gocache.Cache, nodes []NodeInfo) bool {
	for _, each := range nodes {
		if known, ok := detectors.Get(each.node.Name); ok && known.(anomaly.Detector).State() == anomaly.StateAnomaly {
			return true
		}
	}
	return false
}

func evicted(asked struct {
	classifyQuestion
	Args    json.RawMessage `json:"args"`
	Rejects []string        `json:"filter_rejects"`
	Limits  struct {
		PerNode      *uint `json:"perNode"`
		PerNamespace *uint `json:"perNamespace"`
		Total        *uint `json:"total"`
	} `json:"cycle_limits"`
}) (any, error) {
	args, err := argsOf(asked.Args)
	if err != nil {
		return nil, err
	}
	var given struct{ NodeMetricExpirationSeconds *int64 }
	json.Unmarshal(asked.Args, &given)
	args.NodeMetricExpirationSeconds = given.NodeMetricExpirationSeconds
	limiter := evictions.NewEvictionLimiter(asked.Limits.PerNode, asked.Limits.PerNamespace, asked.Limits.Total)
	scene := &test.Scene{Pods: test.InTurn(asked.Pods), Rejects: asked.Rejects, Accepts: func(pod *corev1.Pod) bool {
		if !limiter.AllowEvict(pod) {
			return false
		}
		limiter.Done(pod)
		return true
	}}
	plugin, err := pluginOf(args, scene)
	if err != nil {
		return nil, err
	}
	plugin.nodeMetricLister = asked.Metrics.lister(asked.Now)
	outcome, found, err := plugin.balance(&asked.Pool, asked.Nodes, sets.NewString())
	if err != nil {
		return nil, err
	}
	answer := map[string]any{"outcome": outcome, "evicted_count": len(scene.Evicted), "classes": found.names()}
	for _, suffix := range []string{"", "_in_order"} {
		answer["evicted"+suffix], answer["reasons"+suffix] = scene.Evicted, scene.Reasons
	}
	answer["evicted_set"] = scene.Evicted
	return answer, nil
}

// shared is what an answer shares with one more: all of it, or the pods in whatever order, or how many they are.
func shared(one, more any) (any, error) {
	first, second := one.(map[string]any), more.(map[string]any)
	if !reflect.DeepEqual(first["evicted"], second["evicted"]) {
		delete(first, "evicted_in_order")
	}
	if !reflect.DeepEqual(first["reasons"], second["reasons"]) {
		delete(first, "reasons_in_order")
	}
	if !reflect.DeepEqual(sorted(first["evicted"]), sorted(second["evicted"])) {
		delete(first, "evicted_set")
	}
	for _, name := range []string{"outcome", "evicted_count", "classes"} {
		if !reflect.DeepEqual(first[name], second[name]) {
			return nil, errors.New("how many are evicted hangs on the order of a list or map")
		}
	}
	return first, nil
}

func sorted(names any) []string {
	found := slices.Clone(names.([]string))
	slices.Sort(found)
	return found
}

type cyclesQuestion struct {
	Args    json.RawMessage `json:"args"`
	TTL     float64         `json:"detector_cache_ttl_seconds"`
	Nodes   []*corev1.Node  `json:"nodes"`
	Pods    []*corev1.Pod   `json:"pods"`
	Rejects []string        `json:"filter_rejects"`
	Cycles  []struct {
		Now     float64        `json:"now"`
		Metrics metricsOfNodes `json:"node_metrics"`
	} `json:"cycles"`
}

func cycled(asked cyclesQuestion) (any, error) {
	var given map[string]json.RawMessage
	var pools []config.LowNodeLoadNodePool
	if err := json.Unmarshal(asked.Args, &given); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(given["nodePools"], &pools); err != nil {
		return nil, err
	}
	delete(given, "nodePools")
	text, _ := json.Marshal(given)
	args, err := argsOf(text)
	if err != nil {
		return nil, err
	}
	args.DetectorCacheTimeout.Duration = anomaly.Seconds(asked.TTL)
	scene := &test.Scene{Pods: test.InTurn(asked.Pods), Rejects: asked.Rejects}
	plugin, err := pluginOf(args, scene)
	if err != nil {
		return nil, err
	}
	clocks := []*detectors{newDetectors(plugin.nodeAnomalyDetectors, asked.TTL), newDetectors(plugin.prodAnomalyDetectors, asked.TTL)}
	answers := []any{}
	for _, cycle := range asked.Cycles {
		plugin.nodeMetricLister = cycle.Metrics.lister(cycle.Now)
		processed, shown := sets.NewString(), []any{}
		for index, pool := range append(args.NodePools, pools...) {
			for _, each := range clocks {
				each.before(cycle.Now)
			}
			outcome, _, err := plugin.balance(&pool, asked.Nodes, processed)
			if err != nil {
				return nil, err
			}
			for _, each := range clocks {
				each.after(cycle.Now)
			}
			if index >= len(args.NodePools) {
				shown = append(shown, map[string]any{"pool": pool.Name, "outcome": outcome, "evicted": scene.Evicted})
			}
		}
		answers = append(answers, map[string]any{"now": cycle.Now, "pools": shown})
	}
	return map[string]any{"cycles": answers}, nil
}

// detectors are those of a plugin, moved to the times of cycles.
type detectors struct {
	cache *gocache.Cache
	clock *anomaly.Clock
	ttl   float64
	until map[string]float64
	moved map[string]int64
}

func newDetectors(cache *gocache.Cache, ttl float64) *detectors {
	return &detectors{cache, anomaly.NewClock(), ttl, map[string]float64{}, map[string]int64{}}
}

func (d *detectors) before(at float64) {
	for name, item := range d.cache.Items() {
		if left := d.until[name] - at; item.Expiration != 0 && left < 0 {
			d.cache.Delete(name)
		} else if item.Expiration != 0 {
			d.cache.Set(name, item.Object, anomaly.Seconds(left)+anomaly.Moment)
		}
		d.clock.Before(item.Object.(*anomaly.BasicDetector), at)
	}
	for name, item := range d.cache.Items() {
		d.moved[name] = item.Expiration
	}
}

func (d *detectors) after(at float64) {
	for name, item := range d.cache.Items() {
		if item.Expiration != d.moved[name] {
			d.until[name] = at + d.ttl
		}
		d.clock.After(item.Object.(*anomaly.BasicDetector), at)
	}
}
