package profiler

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"time"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/socs"
)

// lane is one open processor with the thread that drives it. All calls of the driver run on that
// thread, which the driver has pinned.
type lane struct {
	soc    *socs.Processor
	name   string
	proc   driver.Processor
	caps   *driver.Capabilities
	jobs   chan func()
	closed chan struct{}
	dead   bool // a job did not return: the thread may hang in the driver
	ops    *operands

	sentinel *sentinel
}

// openLane opens a processor and attaches a locked thread to it.
func openLane(ctx context.Context, proc *socs.Processor, from driver.Driver, options map[string]string) (*lane, error) {
	config := driver.Config{Select: proc.Select, Options: map[string]string{}}
	maps.Copy(config.Options, proc.Options)
	maps.Copy(config.Options, options)
	opened, err := from.Open(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open processor %q: %w", proc.Name, err)
	}
	out := &lane{soc: proc, name: proc.Name, proc: opened, caps: opened.Capabilities(), jobs: make(chan func()),
		closed: make(chan struct{})}
	attached := make(chan error, 1)
	go func() {
		defer close(out.closed)
		runtime.LockOSThread() // never unlocked: a pinned thread ends with the goroutine
		err := opened.Attach()
		attached <- err
		if err != nil {
			return
		}
		for job := range out.jobs {
			job()
		}
	}()
	select {
	case err = <-attached:
	case <-ctx.Done():
		out.dead = true
		return nil, ctx.Err()
	}
	if err != nil {
		opened.Close()
		return nil, fmt.Errorf("attach to processor %q: %w", proc.Name, err)
	}
	return out, nil
}

// patience is how long a cancelled lane waits for the job that its driver executes.
const patience = 2 * time.Second

// start runs work on the lane's thread. wait returns its error, or that of the context without
// waiting for a thread that hangs in a driver.
func (l *lane) start(ctx context.Context, work func() error) (wait func() error) {
	done := make(chan error, 1)
	if l.dead {
		done <- diag.New(diag.ClassRun, "processor %q does not answer any more", l.name)
		return func() error { return <-done }
	}
	job := func() {
		defer func() {
			if panicked := recover(); panicked != nil {
				done <- diag.New(diag.ClassRun, "processor %q: driver panicked: %v", l.name, panicked)
			}
		}()
		done <- work()
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
		// Most jobs end soon after a cancellation. One that does not must not block the command.
		select {
		case <-done:
		case <-l.closed:
		case <-time.After(patience):
			l.dead = true
		}
		return ctx.Err()
	}
}

// do runs work on the lane's thread and waits for it.
func (l *lane) do(ctx context.Context, work func() error) error { return l.start(ctx, work)() }

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

// unknown returns the error for a request on a processor that the SoC lacks.
func (r *runner) unknown(name string) error {
	return diag.New(diag.ClassInput, "measure on %q: SoC %q has no such processor, it has %s", name, r.soc.Name,
		strings.Join(processorNames(r.soc), ", "))
}

// virtual reports whether a processor is simulated: its clock is virtual, and measuring it is
// exact.
func (r *runner) virtual(name string) bool {
	proc := r.soc.Processor(name)
	return proc != nil && proc.Driver == socs.SimDriver
}

// unopened is the error of a processor that does not open as the SoC describes it. It concerns every request for it.
type unopened struct{ error }

func (u unopened) Unwrap() error { return u.error }

// lane returns the open processor of a name, opened with more options where given. Emulators are
// refused, because their times say nothing about the device.
func (r *runner) lane(ctx context.Context, name string, options map[string]string) (*lane, error) {
	proc := r.soc.Processor(name)
	if proc == nil {
		return nil, r.unknown(name)
	}
	// A processor with other options is another lane, opened beside the first.
	key := name
	for _, option := range sortedNames(options) {
		key += " " + option + "=" + options[option]
	}
	if opened := r.lanes[key]; opened != nil {
		return opened, nil
	}
	from := r.options.Drivers[proc.Driver]
	if from == nil {
		return nil, &driver.Unavailable{Driver: proc.Driver, Found: "no such driver in this build"}
	}
	asDescribed := len(options) == 0
	// On a virtual clock the time does not depend on what is computed, so nothing is.
	if r.virtual(name) {
		all := map[string]string{"compute": "false"}
		maps.Copy(all, options)
		options = all
	}
	opened, err := openLane(ctx, proc, from, options)
	if err != nil && asDescribed {
		err = unopened{err}
	}
	if err != nil {
		return nil, err
	}
	if opened.caps.Emulated {
		opened.close()
		return nil, diag.New(diag.ClassUnavailable,
			"processor %q of driver %q is an emulator (%q): its times are none of the device's, and are not measured",
			name, proc.Driver, proc.Select).
			WithHint("profile on the device; what the compiler says of its graphs is recorded without one by hetc " +
				"profile --compiler-only")
	}
	// A record is of one clock: times of both must not meet in one fit.
	if opened.caps.Virtual != r.virtual(name) {
		opened.close()
		return nil, unopened{diag.New(diag.ClassInput,
			"processor %q of driver %q: its clock is virtual = %v, the SoC says %v", name, proc.Driver,
			opened.caps.Virtual, r.virtual(name))}
	}
	opened.ops = &operands{proc: opened.proc, seed: r.options.Seed, bufs: map[string]driver.Buffer{},
		vocabulary: r.vocabulary}
	r.lanes[key] = opened
	return opened, nil
}
