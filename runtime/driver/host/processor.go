package host

import (
	"context"
	"fmt"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

const align = driver.Align

// maxWork bounds the temporary memory of one graph in bytes, so that a hostile artifact cannot ask
// for more than a machine has.
const maxWork = 8 << 30

// processor runs graphs on one or more cores. Temporary values and scratch of all its graphs share one
// arena, because it runs one at a time.
type processor struct {
	driver.Local
	cores []int
	set   *kernel.Set
	caps  *driver.Capabilities
	team  team

	rope      ropeTables // angles of calls on one sequence
	ropeBatch ropeTables // and on batches
	exceeding exceeding  // what a call has found beyond its static scale

	// the latest Next of a call, with its rows, and the function that has what a worker reads of it first
	next struct {
		exe  *executable
		rows int
	}
	ahead func(worker int) []byte

	graphs map[string]op.Graph // parsed and valid, by their code; they are not written to

	arena       *mem.Region
	arenaNumber int // counts arenas, so that executables notice a new one
}

// newProcessor returns a processor of these cores with a kernel set, not attached yet.
func newProcessor(cores []int, set *kernel.Set) *processor {
	name := fmt.Sprintf("%s:%d", Name, cores[0])
	if len(cores) > 1 {
		name += fmt.Sprintf("-%d", cores[len(cores)-1])
	}
	made := &processor{
		Local: driver.Local{Name: name},
		cores: cores, set: set, caps: capabilities(cores), arena: &mem.Region{}, graphs: map[string]op.Graph{},
		team: team{fetch: set.Fetch},
	}
	made.ahead = func(worker int) []byte { return made.next.exe.begins(worker, made.next.rows) }
	return made
}

// Capabilities returns those of the kernels, whichever set is chosen.
func (p *processor) Capabilities() *driver.Capabilities { return p.caps }

// Bounds returns those of the processor's kernel set.
func (p *processor) Bounds() driver.Bounds {
	return driver.Bounds{Kernels: p.set.Name, PeakI8: p.set.PeakI8, PeakF32: p.set.PeakF32, Stream: p.set.Stream,
		Issue: p.set.Issue}
}

// Attach pins the calling thread to the first core and starts a pinned helper on each other core.
// The caller has locked its thread and never unlocks it: the pinned thread must end with its
// goroutine.
func (p *processor) Attach() error {
	return p.AttachBy(func() error {
		if err := affinity.Pin(p.cores[0]); err != nil {
			return err
		}
		err := p.team.start(p.cores)
		if err != nil {
			p.team.close()
		}
		return err
	})
}

// Load makes steps of the artifact's graph, which read the given weights in place.
func (p *processor) Load(ctx context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	return p.LoadBy(ctx, func() (driver.Executable, error) { return p.load(a, w) })
}

// reserve makes the arena at least bytes large.
func (p *processor) reserve(bytes int64) error {
	if bytes > maxWork {
		return diag.New(diag.ClassInput, "graph needs %d bytes of temporary memory, want at most %d", bytes,
			int64(maxWork))
	}
	if bytes <= int64(len(p.arena.Bytes())) {
		return nil
	}
	region, err := mem.Alloc(int(bytes), align)
	if err != nil {
		return err
	}
	if err := p.arena.Close(); err != nil {
		return err
	}
	p.arena = region
	p.arenaNumber++
	return nil
}

// Run allocates nothing unless it fails.
func (p *processor) Run(exe driver.Executable, b *driver.Bindings) (driver.Span, error) {
	return p.RunBy(p, exe, b)
}

// Owns implements an interface for RunBy.
func (p *processor) Owns(exe driver.Executable) (here, open bool) {
	loaded, ok := exe.(*executable)
	here = ok && loaded.proc == p
	return here, here && !loaded.closed
}

// Execute is for RunBy.
func (p *processor) Execute(exe driver.Executable, b *driver.Bindings) error {
	loaded := exe.(*executable)
	if err := loaded.bind(b); err != nil {
		return err
	}
	p.foresee(b)
	p.team.begin()
	defer p.team.end()
	return loaded.run()
}

// foresee has helpers that wait ask for the weight of the next product.
func (p *processor) foresee(b *driver.Bindings) {
	next, _ := b.Next.(*executable)
	if next == p.next.exe && b.Scalars.Rows == p.next.rows || len(p.cores) == 1 {
		return
	}
	p.next.exe, p.next.rows = next, b.Scalars.Rows
	p.team.ahead = nil
	if next != nil && next.begins != nil && p.team.fetch != nil {
		p.team.ahead = p.ahead
	}
}

// ReadsTables implements driver.TableReader.
func (p *processor) ReadsTables() bool { return true }

// Rouse wakes the helpers on the other cores.
func (p *processor) Rouse() {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.team.rouse()
}

// Close waits for a running call, ends the helpers and frees the arena. Buffers stay valid until they are closed.
func (p *processor) Close() error {
	return p.CloseBy(func() error {
		p.team.close()
		return p.arena.Close()
	})
}
