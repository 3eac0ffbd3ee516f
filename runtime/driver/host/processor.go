package host

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
)

const align = driver.Align

// maxWork bounds the temporary memory of one graph, so that a hostile artifact cannot ask for more
// than a machine has.
const maxWork = 8 << 30

// began is the origin of the clock of all host processors of this process.
var began = time.Now()

// processor runs graphs on one or more cores. Temporary values and scratch of all its graphs share one
// arena, because it runs one at a time.
type processor struct {
	cores []int
	set   *kernel.Set
	caps  *driver.Capabilities
	team  team
	rope  ropeTables

	ropeBatch ropeTables

	graphs map[string]op.Graph // parsed and valid, by their code; nobody writes to them

	mu       sync.Mutex // Close may come from another goroutine while a call runs
	attached bool
	closed   bool
	arena    *mem.Region
	arenas   int // counts arenas, so that executables notice a new one
}

func newProcessor(cores []int, set *kernel.Set) *processor {
	return &processor{cores: cores, set: set, caps: capabilities(cores), arena: &mem.Region{}, graphs: map[string]op.Graph{}}
}

func (p *processor) Capabilities() *driver.Capabilities { return p.caps }

// Bounds are those of the processor's kernel set.
func (p *processor) Bounds() driver.Bounds {
	return driver.Bounds{Kernels: p.set.Name, PeakI8: p.set.PeakI8, PeakF32: p.set.PeakF32, Stream: p.set.Stream, Issue: p.set.Issue}
}

// Attach pins the calling thread to the first core and starts a pinned helper on each other one.
// The caller has locked its thread and never unlocks it: the pinned thread must end with its goroutine.
func (p *processor) Attach() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.open("attach"); err != nil {
		return err
	}
	if p.attached {
		return diag.New(diag.ClassRun, "attach to %s: already attached", p)
	}
	if err := affinity.Pin(p.cores[0]); err != nil {
		return fmt.Errorf("attach to %s: %w", p, err)
	}
	if err := p.team.start(p.cores); err != nil {
		p.team.close()
		return fmt.Errorf("attach to %s: %w", p, err)
	}
	p.attached = true
	return nil
}

func (p *processor) open(what string) error {
	if p.closed {
		return diag.New(diag.ClassRun, "%s: %s is closed", what, p)
	}
	return nil
}

// String names the processor in errors.
func (p *processor) String() string {
	if cores := len(p.cores); cores > 1 {
		return fmt.Sprintf("host:%d-%d", p.cores[0], p.cores[cores-1])
	}
	return fmt.Sprintf("host:%d", p.cores[0])
}

func (p *processor) Alloc(bytes int64) (driver.Buffer, error) {
	return driver.AllocHost(p.String(), bytes)
}

func (p *processor) Import(b []byte) (driver.Buffer, error) { return driver.ImportHost(p.String(), b) }

func (p *processor) Load(ctx context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	exe, err := p.load(a, w)
	if err != nil {
		return nil, diag.New(diag.ClassOr(err, diag.ClassInput), "load artifact on %s: %w", p, err)
	}
	return exe, nil
}

// reserve makes the arena at least bytes large.
func (p *processor) reserve(bytes int64) error {
	if bytes > maxWork {
		return diag.New(diag.ClassInput, "graph needs %d bytes of temporary memory, want at most %d", bytes, int64(maxWork))
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
	p.arenas++
	return nil
}

func (p *processor) Now() driver.Tick { return driver.Tick(time.Since(began)) }

func (p *processor) WaitUntil(driver.Tick) {}

// Run allocates nothing unless it fails.
func (p *processor) Run(exe driver.Executable, b *driver.Bindings) (driver.Span, error) {
	start := p.Now()
	err := p.run(exe, b)
	if err != nil {
		err = diag.New(diag.ClassOr(err, diag.ClassRun), "run on %s: %w", p, err)
	}
	return driver.Span{Start: start, End: p.Now()}, err
}

func (p *processor) run(exe driver.Executable, bindings *driver.Bindings) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	loaded, ok := exe.(*executable)
	switch {
	case p.closed:
		return fmt.Errorf("the processor is closed")
	case !p.attached:
		return fmt.Errorf("no thread is attached")
	case !ok || loaded.p != p:
		return fmt.Errorf("the executable was not loaded on this processor")
	case loaded.closed:
		return fmt.Errorf("the executable is closed")
	}
	if err := loaded.bind(bindings); err != nil {
		return err
	}
	p.team.begin()
	defer p.team.end()
	return loaded.run()
}

// Close waits for a running call, ends the helpers and frees the arena. Buffers stay valid until they are closed.
func (p *processor) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	p.team.close()
	return p.arena.Close()
}
