package ort

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
)

// began is the origin of the clock of all processors of this process.
var began = time.Now()

// processor runs graphs, one session of the library for each graph and its weights.
type processor struct {
	cores           []int
	caps            *driver.Capabilities
	env             *env
	provider        string
	providerOptions [][2]string
	config          [][2]string

	models map[string]*model // parsed and checked, by their code

	mu       sync.Mutex // Close may come from another goroutine while a call runs
	attached bool
	closed   bool
	loaded   map[*executable]bool
}

func (p *processor) Capabilities() *driver.Capabilities { return p.caps }

// String names the processor in errors.
func (p *processor) String() string {
	text := "ort:" + strconv.Itoa(p.cores[0])
	if cores := len(p.cores); cores > 1 {
		text += "-" + strconv.Itoa(p.cores[cores-1])
	}
	if p.provider != "" {
		text += " (" + p.provider + ")"
	}
	return text
}

// Attach pins the calling thread to the first core. Further threads are the library's.
func (p *processor) Attach() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return diag.New(diag.ClassRun, "attach to %s: the processor is closed", p)
	}
	if p.attached {
		return diag.New(diag.ClassRun, "attach to %s: already attached", p)
	}
	if err := affinity.Pin(p.cores[0]); err != nil {
		return fmt.Errorf("attach to %s: %w", p, err)
	}
	p.attached = true
	return nil
}

func (p *processor) Alloc(bytes int64) (driver.Buffer, error) {
	return driver.AllocHost(p.String(), bytes)
}

func (p *processor) Import(b []byte) (driver.Buffer, error) { return driver.ImportHost(p.String(), b) }

func (p *processor) Load(ctx context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, diag.New(diag.ClassInput, "load artifact on %s: the processor is closed", p)
	}
	exe, err := p.load(a, w)
	if err != nil {
		return nil, diag.New(diag.ClassOr(err, diag.ClassInput), "load artifact on %s: %w", p, err)
	}
	return exe, nil
}

func (p *processor) Now() driver.Tick { return driver.Tick(time.Since(began)) }

func (p *processor) WaitUntil(driver.Tick) {}

// Run allocates nothing when the views are those of the executable's call before.
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
		return errors.New("the processor is closed")
	case !p.attached:
		return errors.New("no thread is attached")
	case !ok || loaded.p != p:
		return errors.New("the executable was not loaded on this processor")
	case loaded.session == nil:
		return errors.New("the executable is closed")
	}
	return loaded.run(bindings)
}

// Close waits for a running call and closes what is still loaded. Buffers stay valid until they are closed.
func (p *processor) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	var err error
	for exe := range p.loaded {
		err = errors.Join(err, exe.release())
	}
	return errors.Join(err, p.env.release())
}
