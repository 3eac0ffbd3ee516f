package engines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/internal/child"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/patience"
	"github.com/hetc/hetc/internal/unit"
)

// Limits are what a process gets.
type Limits struct {
	Cores []int         // it runs on these alone; none: on all
	Time  time.Duration // after which it is ended
}

// Done is what a process did.
type Done struct {
	Out, Complaints []byte
	Wall            time.Duration
	PeakBytes       int64 // largest resident size, 0 where the system does not say
	// cores that other processes, and the host of a virtual machine, used meanwhile; negative where unknown
	OthersCores float64
}

// errTooLong is in the error of a process that was ended for its time.
var errTooLong = errors.New("did not end")

const (
	mostOutput     = 8 << 20  // bytes that a program may print before it is ended
	keptComplaints = 64 << 10 // bytes of the beginning and of the end of what it prints beside its result
)

// Run executes a program to its end in a process group of its own, which ends with the context, with the
// time limit and with this process. An error says what the program was complaining about last.
func Run(ctx context.Context, limits Limits, program string, args ...string) (Done, error) {
	limited, cancel := patience.WithTimeout(ctx, limits.Time)
	defer cancel()
	process := exec.CommandContext(limited, program, args...)
	process.Env = child.Env()
	out := &bounded{most: mostOutput, full: cancel}
	complaints := &ends{keep: keptComplaints}
	process.Stdout, process.Stderr = out, complaints
	process.WaitDelay = 5 * time.Second // for those that do not end when asked
	group(process)
	before, known := usage()
	began := time.Now()
	var small func() int64
	done := make(chan error, 1)
	go func() {
		// The thread that starts a process lends it its cores, and takes it along when it ends.
		runtime.LockOSThread()
		undo, err := restrict(limits.Cores)
		if err != nil {
			done <- err
			return
		}
		if err = process.Start(); err == nil {
			small = watchSmall(process.Process.Pid)
		}
		if undo() {
			defer runtime.UnlockOSThread()
		}
		if err == nil {
			err = process.Wait()
			endGroup(process)
		}
		done <- err
	}()
	err := <-done
	// what others used is all of the machine less this process's share
	ended := Done{Out: out.buf.Bytes(), Complaints: complaints.bytes(), Wall: time.Since(began), OthersCores: -1}
	if small != nil {
		ended.PeakBytes = peakBytes(process.ProcessState, small())
	}
	if after, ok := usage(); ok && known {
		ended.OthersCores = max(0, float64(after-before-cpuTime(process.ProcessState))/float64(max(ended.Wall, 1)))
	}
	name := filepath.Base(program)
	switch {
	case ctx.Err() != nil:
		return ended, fmt.Errorf("%s: %w", name, ctx.Err())
	case out.overflown():
		return ended, diag.New(diag.ClassRun, "%s printed more than %d bytes and was ended", name, mostOutput).
			WithHint("is this the right program? it is %q", program)
	case limited.Err() != nil:
		return ended, diag.New(diag.ClassRun, "%s %w within %v and was ended%s", name, errTooLong, limits.Time,
			tail(ended.Complaints)).WithHint("give it more time with --timeout")
	case err != nil:
		return ended, failure(err, &ended, program, args)
	}
	return ended, nil
}

// failure says how a program ended that did not succeed, or why it could not be started.
func failure(err error, ended *Done, program string, args []string) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return diag.New(diag.ClassUnavailable, "start %q: %w", program, err)
	}
	last := tail(ended.Complaints)
	if exit.ProcessState.String() == "signal: killed" { // before it could say why
		last = ", perhaps for lack of memory"
		if ended.PeakBytes > 0 {
			last += fmt.Sprintf(": it held %v", unit.Bytes(ended.PeakBytes))
		}
	}
	return diag.New(diag.ClassRun, "%s failed: %w%s", filepath.Base(program), exit, last).
		WithHint("run it by hand: %s", cli.Quote(append([]string{program}, args...)...))
}

// Reason returns an error of an engine in one line, for a table that names the engine already: what happened, and the
// end of what the program complained about. What was not found comes with what to do about it.
func Reason(engine string, err error) string {
	text, words, _ := strings.Cut(strings.TrimPrefix(err.Error(), engine+": "), "\n")
	text = strings.TrimSuffix(text, lastWords)
	if words = strings.TrimSpace(words); words != "" {
		text += ": " + label(words[strings.LastIndexAny(words, "\r\n")+1:])
	}
	var finding *diag.Diagnostic
	if errors.As(err, &finding) && finding.Class == diag.ClassUnavailable && finding.Hint != "" {
		text += " (" + finding.Hint + ")"
	}
	return text
}

// usage is the processor time since the machine started that was not used by this process.
func usage() (time.Duration, bool) {
	used, ok := machine.Used()
	own, known := ownTime()
	return used - own, ok && known
}

// watchSmall follows the largest resident size of a process until it exceeds this process's own, below which the
// system tells nothing about a process that has ended. It returns the last that was seen, 0 when the process ended
// before that could have been its largest.
func watchSmall(pid int) func() int64 {
	const every, least = 5 * time.Millisecond, 4 // looks
	stop, last := make(chan struct{}), make(chan int64)
	go func() {
		var peak int64
		looks := 0
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		// above the floor the system's own number is exact
		for limit := floor(); peak <= limit; {
			peak = max(peak, residentPeak(pid))
			looks++
			select {
			case <-ticker.C:
			case <-stop:
				limit = -1
			}
		}
		<-stop
		if looks <= least && peak <= floor() {
			peak = 0
		}
		last <- peak
	}()
	return func() int64 {
		close(stop)
		return <-last
	}
}

// lastWords are before the complaints that a message ends with.
const lastWords = "; its last words:"

// tail is the last of what a program complained about, to end a message with.
func tail(text []byte) string {
	const last = 1500 // bytes
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return ", without a word"
	}
	if len(text) > last {
		text = text[len(text)-last:]
		if _, rest, ok := bytes.Cut(text, []byte("\n")); ok {
			text = rest
		}
	}
	return lastWords + "\n" + strings.ToValidUTF8(string(text), "?")
}

// bounded keeps everything up to a size; what exceeds it ends the program.
type bounded struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	most int
	// more than most was written
	over bool
	// ends the program
	full func()
}

// Write keeps what fits, and ends the program at the first that does not.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over || b.buf.Len()+len(p) > b.most {
		b.over = true
		b.full()
		return len(p), nil // until it has ended
	}
	return b.buf.Write(p)
}

// overflown reports whether something did not fit.
func (b *bounded) overflown() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.over
}

// ends keeps the beginning and the end of a text.
type ends struct {
	keep        int
	first, last []byte
	cut         bool
}

// Write takes everything, and keeps the first and the last bytes of it.
func (e *ends) Write(p []byte) (int, error) {
	length := len(p)
	if room := e.keep - len(e.first); room > 0 {
		k := min(room, len(p))
		e.first = append(e.first, p[:k]...)
		p = p[k:]
	}
	e.last = append(e.last, p...)
	if over := len(e.last) - e.keep; over > 0 {
		e.last, e.cut = append(e.last[:0], e.last[over:]...), true
	}
	return length, nil
}

// bytes is the text, with dots for what was left out.
func (e *ends) bytes() []byte {
	if !e.cut {
		return append(bytes.Clone(e.first), e.last...)
	}
	return append(append(bytes.Clone(e.first), "\n...\n"...), e.last...)
}
