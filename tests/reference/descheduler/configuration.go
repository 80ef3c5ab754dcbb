// in pkg/descheduler/framework/plugins
package plugins

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"github.com/koordinator-sh/koordinator/pkg/answering"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/apis/config/scheme"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/apis/config/v1alpha2"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/apis/config/validation"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/controllers/migration/evictor"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/framework/plugins/custompriority"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/test"
)

type argsQuestion struct {
	Plugin string          `json:"plugin"`
	Args   json.RawMessage `json:"args"`
}

func init() {
	answering.Area("descheduler-config-defaults", answering.Of(completed))
	answering.Area("descheduler-config-validation", answering.Of(validated))
	answering.Area("descheduler-plugin-merge", answering.Of(merged))
}

func known(plugin string) error {
	switch plugin {
	case "MigrationController", "LowNodeLoad", "CustomPriority":
		return nil
	}
	return fmt.Errorf("this release has no %s", plugin)
}

func completed(asked argsQuestion) (any, error) {
	if err := known(asked.Plugin); err != nil {
		return nil, err
	}
	args, err := scheme.Scheme.New(v1alpha2.SchemeGroupVersion.WithKind(asked.Plugin + "Args"))
	if err != nil {
		return nil, err
	}
	if strict, err := kjson.UnmarshalStrict(asked.Args, args); err != nil || len(strict) > 0 {
		return nil, fmt.Errorf("%w %v", err, strict)
	}
	scheme.Scheme.Default(args)
	answer := map[string]any{"args": members(args)}
	if load, ok := args.(*v1alpha2.LowNodeLoadArgs); ok {
		internal := &config.LowNodeLoadArgs{}
		if err := v1alpha2.Convert_v1alpha2_LowNodeLoadArgs_To_config_LowNodeLoadArgs(load, internal, nil); err != nil {
			return nil, err
		}
		pools := []any{}
		for index := range internal.NodePools {
			var pool v1alpha2.LowNodeLoadNodePool
			if err := v1alpha2.Convert_config_LowNodeLoadNodePool_To_v1alpha2_LowNodeLoadNodePool(&internal.NodePools[index], &pool, nil); err != nil {
				return nil, err
			}
			if condition := pool.AnomalyCondition; condition != nil && condition.Timeout != nil && condition.Timeout.Duration == 0 {
				condition.Timeout = nil // no time given, as the internal form has it
			}
			pools = append(pools, members(pool))
		}
		answer["effective_node_pools"] = pools
	}
	return answer, nil
}

func members(value any) (found map[string]any) {
	text, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	if err != nil {
		panic(err)
	}
	return found
}

func validated(asked argsQuestion) (any, error) {
	if err := known(asked.Plugin); err != nil {
		return nil, err
	}
	return map[string]bool{"valid": start(asked) == nil}, nil
}

// start does what checks arguments while the program starts.
func start(asked argsQuestion) error {
	read, err := test.Configuration(asked.Plugin, asked.Args)
	if err != nil {
		return err
	}
	read.HealthzBindAddress, read.MetricsBindAddress = "0.0.0.0:1", "0.0.0.0:2"
	if err := validation.ValidateDeschedulerConfiguration(read); err != nil {
		return err
	}
	var args runtime.Object
	for _, each := range read.Profiles[0].PluginConfig {
		if each.Name == asked.Plugin {
			args = each.Args
		}
	}
	scene := &test.Scene{Client: test.ClientSet()}
	switch given := args.(type) {
	case *config.LowNodeLoadArgs:
		return validation.ValidateLowLoadUtilizationArgs(nil, given)
	case *config.CustomPriorityArgs:
		_, err := custompriority.NewCustomPriority(context.Background(), given, scene)
		return err
	case *config.MigrationControllerArgs:
		_, err := evictor.NewInterpreter(scene, given.EvictionPolicy, float32(given.EvictQPS.FloatValue()), int(given.EvictBurst))
		return err
	}
	return fmt.Errorf("no arguments of %s", asked.Plugin)
}

func merged(asked struct {
	Plugins json.RawMessage `json:"plugins"`
}) (any, error) {
	text, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha2.SchemeGroupVersion.String(), "kind": "DeschedulerConfiguration",
		"profiles": []any{map[string]any{"name": "p", "plugins": asked.Plugins}},
	})
	if err != nil {
		return nil, err
	}
	read, _, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	plugins := read.(*config.DeschedulerConfiguration).Profiles[0].Plugins
	enabled := map[string][]string{}
	for name, set := range map[string]config.PluginSet{
		"deschedule": plugins.Deschedule, "balance": plugins.Balance, "evict": plugins.Evict, "filter": plugins.Filter,
	} {
		enabled[name] = []string{}
		for _, each := range set.Enabled {
			enabled[name] = append(enabled[name], each.Name)
		}
	}
	return map[string]any{"enabled": enabled}, nil
}
