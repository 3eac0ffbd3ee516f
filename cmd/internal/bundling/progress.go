package bundling

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/planir"
)

// stages shows the progress of compiling on a terminal, and adds up the time of each stage.
type stages struct {
	ui    *cli.Streams
	mu    sync.Mutex           // watch is called by several compilers at once
	begun map[int]time.Time    // by the number of the group
	sums  map[string]*groupSum // by the graphs' name
	order []string             // of these names
	since time.Time            // when the stage under way began
	// times of the stages: before anything is compiled; packing, compiling and trying; writing the bundle
	check, compile, write time.Duration
}

// groupSum adds up the groups of graphs of one name: how many groups and graphs, how many groups
// came from the cache, and for how many weights were packed.
type groupSum struct {
	groups, graphs, cached, packed int
	took                           time.Duration
}

// newStages begins the first stage.
func newStages(ui *cli.Streams) *stages {
	return &stages{ui: ui, begun: map[int]time.Time{}, sums: map[string]*groupSum{}, since: time.Now()}
}

// end ends the stage under way and adds its time to a sum.
func (s *stages) end(sum *time.Duration) {
	now := time.Now()
	*sum += now.Sub(s.since)
	s.since = now
}

// written ends the stage of writing the bundle.
func (s *stages) written() { s.end(&s.write) }

// watch handles an event of emit: a stage ended, or a group of graphs began or was compiled.
func (s *stages) watch(event emit.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case event.Groups == 0 && event.Done:
		s.end(&s.compile)
		return
	case event.Groups == 0:
		s.end(&s.check)
		return
	case !event.Done:
		s.begun[event.Group] = time.Now()
		return
	}
	took := time.Since(s.begun[event.Group])
	// A label is the graphs' name, then the layer and the like.
	name, _, _ := strings.Cut(event.Label, ", ")
	sum := s.sums[name]
	if sum == nil {
		sum = &groupSum{}
		s.sums[name], s.order = sum, append(s.order, name)
	}
	sum.groups++
	sum.graphs += len(event.Graphs)
	sum.took += took
	if event.Packed {
		sum.packed++
	}
	from := ""
	if event.Cached {
		sum.cached++
		from = ", from the cache"
	}
	if event.Err != nil {
		from = ", refused"
	}
	if s.ui.Terminal() {
		s.ui.Notef("%d of %d: %s, %d graphs in %.1f s%s", event.Group+1, event.Groups, event.Label, len(event.Graphs),
			took.Seconds(), from)
	}
}

// show prints how long compiling took and returns it for --json. The times are of this run and
// stand in no file.
func (s *stages) show() map[string]any {
	var rows [][]string
	groups, cached, packed := 0, 0, 0
	slices.Sort(s.order)
	for _, name := range s.order {
		sum := s.sums[name]
		groups, cached, packed = groups+sum.groups, cached+sum.cached, packed+sum.packed
		// Long names of joined operators are shown by their first and last one.
		if parts := strings.Split(name, planir.NodeSeparator); len(parts) > 2 {
			name = parts[0] + planir.NodeSeparator + ".." + planir.NodeSeparator + parts[len(parts)-1]
		}
		rows = append(rows, []string{name, strconv.Itoa(sum.groups), strconv.Itoa(sum.graphs), strconv.Itoa(sum.cached),
			strconv.Itoa(sum.packed), fmt.Sprintf("%.1f", sum.took.Seconds())})
	}
	if groups == 0 {
		return nil
	}
	s.ui.Table([]string{"compiled with its weights", ">groups", ">graphs", ">from the cache", ">packed", ">seconds"},
		rows)
	s.ui.Printf("compiled %d groups in %.2f s, %d from the cache, weights packed for %d; graphs of the same weights "+
		"at several numbers of rows are one group\n", groups, s.compile.Seconds(), cached, packed)
	s.ui.Printf("stages: plan and model checked in %.2f s, compiled in %.2f s, bundle written in %.2f s\n\n",
		s.check.Seconds(), s.compile.Seconds(), s.write.Seconds())
	return map[string]any{
		"groups": groups, "cached": cached, "packed": packed, "seconds": s.compile.Seconds(),
		"check_seconds": s.check.Seconds(), "write_seconds": s.write.Seconds(),
	}
}
