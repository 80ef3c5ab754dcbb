// in pkg/descheduler/test
package test

import (
	"encoding/json"
	"fmt"

	"github.com/koordinator-sh/koordinator/pkg/descheduler/apis/config"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/apis/config/scheme"
	"github.com/koordinator-sh/koordinator/pkg/descheduler/apis/config/v1alpha2"
)

// ArgsOf reads the arguments of a plugin as a configuration file has them.
func ArgsOf[T any](plugin string, given json.RawMessage) (*T, error) {
	read, err := Configuration(plugin, given)
	if err != nil {
		return nil, err
	}
	for _, each := range read.Profiles[0].PluginConfig {
		if args, ok := each.Args.(any).(*T); ok && each.Name == plugin {
			return args, nil
		}
	}
	return nil, fmt.Errorf("no arguments of %s", plugin)
}

// Configuration reads a configuration file with the arguments of one plugin.
func Configuration(plugin string, given json.RawMessage) (*config.DeschedulerConfiguration, error) {
	text, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha2.SchemeGroupVersion.String(), "kind": "DeschedulerConfiguration",
		"profiles": []any{map[string]any{"name": "p", "pluginConfig": []any{map[string]any{"name": plugin, "args": given}}}},
	})
	if err != nil {
		return nil, err
	}
	read, _, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	return read.(*config.DeschedulerConfiguration), nil
}
