// in pkg/runtimeproxy/dispatcher
package dispatcher

import (
	"github.com/koordinator-sh/koordinator/pkg/runtimeproxy/client"
	"github.com/koordinator-sh/koordinator/pkg/runtimeproxy/config"
)

// Of a client and the registered servers.
func Of(cm client.HookServerClientManagerInterface, hooks config.ManagerInterface) *RuntimeHookDispatcher {
	return &RuntimeHookDispatcher{cm: cm, hookManager: hooks}
}
