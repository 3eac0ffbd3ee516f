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
	s     *cli.Streams
	mu    sync.Mutex
	begun map[int]time.Time
	order []string
	sums  map[string]*groupSum // by the graphs' name
	since time.Time            // that the stage that is under way began
	check time.Duration        // before anything is compiled
	took  time.Duration        // packing, compiling and trying
	write time.Duration        // the bundle
}

// groupSum adds up the groups of graphs of one name: how many groups and graphs, how many groups
// came from the cache, and for how many weights were packed.
type groupSum struct {
	groups, graphs, cached, packed int
	took                           time.Duration
}

// newStages begins the first stage.
func newStages(s *cli.Streams) *stages {
	return &stages{s: s, begun: map[int]time.Time{}, sums: map[string]*groupSum{}, since: time.Now()}
}

// stage ends the stage under way and adds its time to d.
func (b *stages) stage(d *time.Duration) {
	now := time.Now()
	*d += now.Sub(b.since)
	b.since = now
}

// written ends the stage of writing the bundle.
func (b *stages) written() { b.stage(&b.write) }

// watch handles an event of emit: a stage ended, or a group of graphs began or was compiled.
func (b *stages) watch(event emit.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case event.Groups == 0 && event.Done:
		b.stage(&b.took)
		return
	case event.Groups == 0:
		b.stage(&b.check)
		return
	case !event.Done:
		b.begun[event.Group] = time.Now()
		return
	}
	took := time.Since(b.begun[event.Group])
	// A label is the graphs' name, then the layer and the like.
	name, _, _ := strings.Cut(event.Label, ", ")
	sum := b.sums[name]
	if sum == nil {
		sum = &groupSum{}
		b.sums[name], b.order = sum, append(b.order, name)
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
	if b.s.Terminal() {
		b.s.Notef("%d of %d: %s, %d graphs in %.1f s%s", event.Group+1, event.Groups, event.Label, len(event.Graphs),
			took.Seconds(), from)
	}
}

// show prints how long compiling took and returns it for --json. The times are of this run and
// stand in no file.
func (b *stages) show() map[string]any {
	var rows [][]string
	groups, cached, packed := 0, 0, 0
	slices.Sort(b.order)
	for _, name := range b.order {
		sum := b.sums[name]
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
	b.s.Table([]string{"compiled with its weights", ">groups", ">graphs", ">from the cache", ">packed", ">seconds"},
		rows)
	b.s.Printf("compiled %d groups in %.2f s, %d from the cache, weights packed for %d; graphs of the same weights "+
		"at several numbers of rows are one group\n", groups, b.took.Seconds(), cached, packed)
	b.s.Printf("stages: plan and model checked in %.2f s, compiled in %.2f s, bundle written in %.2f s\n\n",
		b.check.Seconds(), b.took.Seconds(), b.write.Seconds())
	return map[string]any{
		"groups": groups, "cached": cached, "packed": packed, "seconds": b.took.Seconds(),
		"check_seconds": b.check.Seconds(), "write_seconds": b.write.Seconds(),
	}
}
