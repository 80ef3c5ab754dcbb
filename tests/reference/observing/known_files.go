// in pkg/koordlet/util/system
package system

import (
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"
)

// Files is a folder that stands for the roots of a machine while one question is answered.
type Files string

// NewFiles has the agent look there for all of its roots.
func NewFiles() Files {
	root, err := os.MkdirTemp("", "answering")
	if err != nil {
		panic(err)
	}
	at := func(name string) string { return filepath.Join(root, name) + "/" }
	SetConf(Config{
		CgroupRootDir: at("cgroup"), ProcRootDir: at("proc"), SysRootDir: at("sys"), SysFSRootDir: at("sys/fs"),
		VarRunRootDir: at("run"), RunRootDir: at("run"), VarLibKubeletRootDir: at("kubelet"),
		XPUDeviceInfosDir: at("devices"), DefaultRuntimeType: "containerd",
	})
	return Files(root)
}

// Gone takes the folder away.
func (f Files) Gone() { os.RemoveAll(string(f)) }

// At is a path below the folder.
func (f Files) At(path string) string { return filepath.Join(string(f), path) }

// Put writes a file, whose path is one of the agent's own or below the folder.
func (f Files) Put(path, content string) {
	if rest, err := filepath.Rel(string(f), path); err != nil || !filepath.IsLocal(rest) {
		path = f.At(path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		panic(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		panic(err)
	}
}

// IDsOf are the numbers in a list of the kernel.
func IDsOf(text string) (sets.Set[int32], error) { return parseIDs(strings.TrimSpace(text)) }
