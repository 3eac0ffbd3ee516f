package ort

import (
	"context"
	"errors"
	"strconv"

	"github.com/hetc/hetc/internal/affinity"
	"github.com/hetc/hetc/runtime/driver"
)

// processor runs graphs. Each graph with its weights is one session of the library.
type processor struct {
	driver.Local
	cores []int
	caps  *driver.Capabilities
	env   *env
	// of execution; "" for the library's CPU kernels
	provider        string
	providerOptions [][2]string
	// of sessions, as keys and values
	config [][2]string
	// in which the library gets 8-bit weights
	storage storage

	models map[string]*model // parsed and checked, by their code

	// closed with the processor
	loaded map[*executable]bool
}

// Capabilities returns those of the library's CPU kernels, also for other providers.
func (p *processor) Capabilities() *driver.Capabilities { return p.caps }

// name returns the processor's name in errors.
func name(cores []int, provider string) string {
	text := Name + ":" + strconv.Itoa(cores[0])
	if len(cores) > 1 {
		text += "-" + strconv.Itoa(cores[len(cores)-1])
	}
	if provider != "" {
		text += " (" + provider + ")"
	}
	return text
}

// Attach pins the calling thread to the first core. Further threads are the library's.
func (p *processor) Attach() error {
	return p.AttachBy(func() error { return affinity.Pin(p.cores[0]) })
}

// Load verifies the artifact and makes a session of it with its weights, which the library copies.
func (p *processor) Load(ctx context.Context, a driver.Artifact, w driver.Weights) (driver.Executable, error) {
	return p.LoadBy(ctx, func() (driver.Executable, error) { return p.load(a, w) })
}

// Run allocates nothing when the views are those of the executable's call before.
func (p *processor) Run(exe driver.Executable, b *driver.Bindings) (driver.Span, error) {
	return p.RunBy(p, exe, b)
}

// Owns is for RunBy.
func (p *processor) Owns(exe driver.Executable) (here, open bool) {
	loaded, ok := exe.(*executable)
	here = ok && loaded.p == p
	return here, here && loaded.session != nil
}

// Execute is for RunBy.
func (p *processor) Execute(exe driver.Executable, b *driver.Bindings) error {
	return exe.(*executable).run(b)
}

// Close waits for a running call and closes what is still loaded. Buffers stay valid until they are closed.
func (p *processor) Close() error {
	return p.CloseBy(func() (err error) {
		for exe := range p.loaded {
			err = errors.Join(err, exe.release())
		}
		return errors.Join(err, p.env.release())
	})
}
