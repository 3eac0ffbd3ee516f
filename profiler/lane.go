package profiler

import (
	"context"
	"fmt"
	"runtime"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// lane is one open processor and the thread that drives it.
type lane struct {
	soc    *socs.Processor
	name   string
	proc   driver.Processor
	caps   *driver.Capabilities
	jobs   chan func()
	closed chan struct{}
	dead   bool // a job was left behind: the thread may hang in the driver
	ops    *operands

	sentinel *sentinel
}

// openLane opens a processor and attaches a locked thread to it.
func openLane(ctx context.Context, s *socs.Processor, d driver.Driver, options map[string]string) (*lane, error) {
	c := driver.Config{Select: s.Select, Options: map[string]string{}}
	for k, v := range s.Options {
		c.Options[k] = v
	}
	for k, v := range options {
		c.Options[k] = v
	}
	p, err := d.Open(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("open processor %q: %w", s.Name, err)
	}
	l := &lane{soc: s, name: s.Name, proc: p, caps: p.Capabilities(), jobs: make(chan func()), closed: make(chan struct{})}
	attached := make(chan error, 1)
	go func() {
		defer close(l.closed)
		runtime.LockOSThread() // never unlocked: a pinned thread ends with the goroutine
		err := p.Attach()
		attached <- err
		if err != nil {
			return
		}
		for job := range l.jobs {
			job()
		}
	}()
	select {
	case err = <-attached:
	case <-ctx.Done():
		l.dead = true
		return nil, ctx.Err()
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("attach to processor %q: %w", s.Name, err)
	}
	return l, nil
}

// start runs f on the lane's thread; wait returns its error, or that of the context, without waiting for
// a thread that hangs in a driver.
func (l *lane) start(ctx context.Context, f func() error) (wait func() error) {
	done := make(chan error, 1)
	if l.dead {
		done <- diag.New(diag.ClassRun, "processor %q does not answer any more", l.name)
		return func() error { return <-done }
	}
	job := func() {
		defer func() {
			if r := recover(); r != nil {
				done <- diag.New(diag.ClassRun, "processor %q: driver panicked: %v", l.name, r)
			}
		}()
		done <- f()
	}
	select {
	case l.jobs <- job:
	case <-ctx.Done():
		l.dead = true
		done <- ctx.Err()
	}
	return func() error {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
		}
		// Most jobs end soon; one that does not must not keep the command.
		select {
		case <-done:
		case <-l.closed:
		case <-patience():
			l.dead = true
		}
		return ctx.Err()
	}
}

func (l *lane) do(ctx context.Context, f func() error) error { return l.start(ctx, f)() }

// close ends the thread and the processor, unless the thread hangs.
func (l *lane) close() error {
	if l.dead {
		return nil
	}
	close(l.jobs)
	<-l.closed
	err := l.proc.Close()
	if l.ops != nil {
		l.ops.close()
	}
	return err
}
