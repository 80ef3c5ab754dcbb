// in pkg/koordlet/resourceexecutor
package resourceexecutor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	sysutil "github.com/koordinator-sh/koordinator/pkg/koordlet/util/system"
	"github.com/koordinator-sh/koordinator/pkg/util/cache"
)

// Watched is the executor above files of groups on a disk; it keeps what is written to them, in order.
type Watched struct {
	*ResourceUpdateExecutorImpl
	root   string
	names  map[string]string
	texts  map[string]string
	Writes []string
}

// NewWatched makes empty trees of groups.
func NewWatched(version int) *Watched {
	root, err := os.MkdirTemp("", "answering")
	if err != nil {
		panic(err)
	}
	sysutil.Conf.CgroupRootDir = root
	sysutil.UseCgroupsV2.Store(version == 2)
	executor := &ResourceUpdateExecutorImpl{ResourceCache: cache.NewCacheDefault(), Config: NewDefaultConfig()}
	executor.Run(make(chan struct{}))
	return &Watched{executor, root, map[string]string{}, map[string]string{}, []string{}}
}

// Done takes the groups away.
func (w *Watched) Done() {
	os.RemoveAll(w.root)
	sysutil.UseCgroupsV2.Store(false)
}

// Put makes a file. Kubepods has the same one, by which it is told whether the kernel has it.
func (w *Watched) Put(group string, resource sysutil.ResourceType, content string) {
	of, err := sysutil.GetCgroupResource(resource)
	if err != nil {
		panic(err)
	}
	for path, text := range map[string]string{of.Path(sysutil.CgroupPathFormatter.ParentDir): "", of.Path(group): content} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			panic(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			panic(err)
		}
	}
	w.names[of.Path(group)] = group + "/" + string(resource)
	w.texts[of.Path(group)] = content
}

func (w *Watched) see(path string) {
	text, err := os.ReadFile(path)
	if err == nil && string(text) != w.texts[path] {
		w.texts[path] = string(text)
		w.Writes = append(w.Writes, w.names[path]+"="+string(text))
	}
}

func (w *Watched) UpdateBatch(cacheable bool, updaters ...ResourceUpdater) {
	for _, each := range updaters {
		w.ResourceUpdateExecutorImpl.UpdateBatch(cacheable, &seen{each.(*CgroupResourceUpdater), w})
	}
}

type seen struct {
	*CgroupResourceUpdater
	by *Watched
}

func (s *seen) update() error {
	defer s.by.see(s.Path())
	return s.CgroupResourceUpdater.update()
}

func (s *seen) MergeUpdate() (ResourceUpdater, error) {
	defer s.by.see(s.Path())
	merged, err := s.CgroupResourceUpdater.MergeUpdate()
	if of, ok := merged.(*CgroupResourceUpdater); ok && of != nil {
		return &seen{of, s.by}, err
	}
	return merged, err
}

// UpdateOrder is what is asked of the order of writes.
type UpdateOrder struct {
	Op, Old, New string
	Resource     sysutil.ResourceType
	Version      int
	Files        map[string]string
	Levels       [][]struct {
		Group    string
		Resource sysutil.ResourceType
		Value    string
	}
	Initial string
	Steps   []struct {
		At        float64
		Set       *string
		External  *string
		Cacheable *bool
	}
	Groups []string
}

// Answer it.
func (q UpdateOrder) Answer() (any, error) {
	w := NewWatched(q.Version)
	defer w.Done()
	switch q.Op {
	case "merge":
		w.Put("group", q.Resource, q.Old)
		if _, err := w.updater("group", q.Resource, q.New).MergeUpdate(); err != nil {
			return map[string]any{"error": true}, nil
		}
		if len(w.Writes) == 0 {
			return map[string]any{"error": false, "write": false, "value": nil}, nil
		}
		return map[string]any{"error": false, "write": true, "value": strings.TrimPrefix(w.Writes[0], "group/"+string(q.Resource)+"=")}, nil
	case "differs":
		w.Put("group", q.Resource, q.Old)
		if err := w.updater("group", q.Resource, q.New).update(); err != nil {
			return nil, err
		}
		return map[string]any{"write": len(w.Writes) > 0}, nil
	case "leveled":
		return q.leveled(w), nil
	case "cache":
		return q.cached(w)
	}
	return nil, fmt.Errorf("nothing answers %s", q.Op)
}

func (w *Watched) updater(group string, resource sysutil.ResourceType, value string) *seen {
	found, err := DefaultCgroupUpdaterFactory.New(resource, group, value, nil)
	if err != nil {
		panic(err)
	}
	return &seen{found.(*CgroupResourceUpdater), w}
}

func (q UpdateOrder) leveled(w *Watched) any {
	for name, content := range q.Files {
		at := strings.LastIndex(name, "/")
		w.Put(name[:at], sysutil.ResourceType(name[at+1:]), content)
	}
	levels := [][]ResourceUpdater{}
	for _, level := range q.Levels {
		updaters := []ResourceUpdater{}
		for _, each := range level {
			updaters = append(updaters, w.updater(each.Group, each.Resource, each.Value))
		}
		levels = append(levels, updaters)
	}
	w.LeveledUpdateBatch(levels)
	final := map[string]string{}
	for path, name := range w.names {
		final[name] = w.texts[path]
	}
	return map[string]any{"writes": w.Writes, "final": final}
}

func (q UpdateOrder) cached(w *Watched) (any, error) {
	w.Put("group", q.Resource, q.Initial)
	results, written := []string{}, 0.0
	path := w.updater("group", q.Resource, "").Path()
	for _, step := range q.Steps {
		if step.External != nil {
			w.Put("group", q.Resource, *step.External)
		}
		if step.Set == nil {
			continue
		}
		updater := w.updater("group", q.Resource, *step.Set)
		if known, found := w.ResourceCache.Get(updater.Key()); found {
			past := time.Duration((step.At-written)*float64(time.Second)) - 100*time.Millisecond // asking takes time, too
			known.(ResourceUpdater).UpdateLastUpdateTimestamp(time.Now().Add(-past))
		}
		count, isCacheable := len(w.Writes), step.Cacheable == nil || *step.Cacheable
		updated, err := w.Update(isCacheable, updater)
		if err != nil {
			return nil, err
		}
		if updated && isCacheable {
			written = step.At
		}
		result := "skipped"
		if len(w.Writes) > count {
			result = "written"
		} else if updated {
			result = "unchanged"
		}
		results = append(results, result)
	}
	return map[string]any{"results": results, "final": w.texts[path]}, nil
}
