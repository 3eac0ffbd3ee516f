package solving

import (
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/solver"
)

// baseBytes is what the program itself and its inputs take beside what a solve keeps.
const baseBytes = 128 << 20

// Working is how much solving may keep, and whether it tells how far it is.
type Working struct {
	// most is a size as text, such as 1GiB; tell also shows progress where standard error is no terminal.
	most string
	tell bool

	began time.Time
	used  time.Duration // processor time of the process when it began
	line  *cli.Line
	last  atomic.Pointer[solver.Progress] // nil: nothing was told yet
}

// Start begins to count the time: solving includes reading its inputs.
func (w *Working) Start() { w.began, w.used = time.Now(), cli.ProcessorTime() }

// took is the wall time and the processor time since Start.
func (w *Working) took() (wall, processor time.Duration) {
	return time.Since(w.began), cli.ProcessorTime() - w.used
}

// Flags adds the flags to a command.
func (w *Working) Flags(c *cobra.Command) {
	c.Flags().StringVar(&w.most, "working-memory", unit.Bytes(solver.DefaultWorkingMemory).String(),
		"most memory that solving itself keeps: a search that needs more ends early and says so")
	c.Flags().BoolVar(&w.tell, "progress", false,
		"tell every few seconds how far it is, also where standard error is no terminal")
}

// Begin sets what an input may keep and has it tell where it stands. end is called when nothing is solved any more.
func (w *Working) Begin(ui *cli.Streams, in *solver.Input) (end func(), err error) {
	bytes, err := unit.ParseBytes(w.most)
	if err != nil || bytes <= 0 {
		return nil, diag.New(diag.ClassUsage, "--working-memory %q is no number of bytes above 0", w.most).
			WithHint("write it with a unit: 1GiB, 500MiB")
	}
	in.WorkingMemory = int64(bytes)
	// The collector comes more often near that; what is decided depends on what is counted alone.
	before := debug.SetMemoryLimit(int64(bytes) + baseBytes)
	if w.began.IsZero() {
		w.Start()
	}
	w.line = ui.Line(w.tell)
	in.Progress = func(p solver.Progress) {
		w.last.Store(&p)
		if w.line != nil {
			w.line.Show("%s", progressText(p, time.Since(w.began)))
		}
	}
	return func() {
		w.line.End()
		debug.SetMemoryLimit(before)
	}, nil
}

// interrupted says where a solve stood that a signal ended, and that it leaves no plan.
//
// RATIONALE: Why does an interrupted solve write no plan?
func (w *Working) interrupted(err error) error {
	last := w.last.Load()
	if last == nil {
		return err
	}
	return diag.New(diag.ClassInterrupted, "no plan is written; the search stood at %q: %w",
		progressText(*last, time.Since(w.began)), err)
}

// progressText is where a solve stands, what matters most first: the line is cut at the width of the terminal.
func progressText(progress solver.Progress, passed time.Duration) string {
	text := progress.Phase
	switch {
	case progress.All > 0:
		text += fmt.Sprintf(" %d/%d", progress.Done, progress.All)
	case progress.Done > 0:
		text += fmt.Sprintf(": %d tried", progress.Done)
	}
	text += fmt.Sprintf(", %v", passed.Round(time.Second))
	if progress.Best > 0 {
		text += fmt.Sprintf(", best %.4g %s", progress.Best, progress.Unit)
	}
	if progress.Bound > 0 {
		text += fmt.Sprintf(", bound %.4g %s", progress.Bound, progress.Unit)
	}
	if progress.What != "" {
		text += ", " + progress.What
	}
	return text
}

// spent is the wall time of solving, and its processor time where that is more.
func spent(wall, processor time.Duration) string {
	text := seconds(wall)
	if processor > wall {
		text += fmt.Sprintf(" (%s of processor time)", seconds(processor))
	}
	return text
}

// seconds writes a time with a tenth of a second.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

// Show tells what solving took, and returns it for --json.
func (w *Working) Show(s *cli.Streams, r *solver.Result) map[string]any {
	wall, processor := w.took()
	s.Printf("solving took %s in all; working memory: at most %v, as counted, of %s\n", spent(wall, processor),
		unit.Bytes(r.WorkingBytes), w.most)
	return map[string]any{
		"ms": wall.Milliseconds(), "processor_ms": processor.Milliseconds(), "working_bytes": r.WorkingBytes,
	}
}
