package solving

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/solver"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/highs"
	"github.com/hetc/hetc/solver/milp"
	"github.com/hetc/hetc/solver/problem"
)

// EngineFlags say what solves the problems that solve poses, and where these are written.
type EngineFlags struct{ engine, models, of string }

// Flags adds the flags to a command.
func (f *EngineFlags) Flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.engine, "engine", "auto",
		"what solves: auto (exact, and highs for what that leaves open), exact, highs, highs-native")
	cmd.Flags().StringVar(&f.models, "write-models", "",
		"directory for problems as linear programs that other solvers read (.lp)")
	cmd.Flags().StringVar(&f.of, "write-models-of", ofPlan,
		"which problems --write-models writes: plan (those whose solutions are in the plan), all, or a pattern of "+
			"names such as 'prefill@*'")
}

// Open returns the engine, which takes at most that many bytes in this process, with a log of its solves. Errors
// are of class ClassUsage for an unknown name and ClassUnavailable for an engine that is not there.
func (f *EngineFlags) Open(ui *cli.Streams, bytes int64) (problem.Engine, *Log, error) {
	log := NewLog(ui)
	watch := &problem.Watch{Started: log.Started, Done: log.Done}
	if ui.Terminal() {
		watch.Progress = log.progress
	}
	var engine problem.Engine
	switch f.engine {
	case "auto":
		engine = bindings.AutoEngine(watch, bytes)
	case "exact":
		engine = watch.Engine(exact.Engine{})
	case "highs":
		wasm, err := highs.Open()
		if err != nil {
			return nil, nil, err
		}
		wasm.Limit(bytes)
		engine = bindings.GeneralEngine(wasm, watch)
	case "highs-native":
		native, err := highs.OpenNative()
		if err != nil {
			return nil, nil, err
		}
		engine = bindings.GeneralEngine(native, watch)
	default:
		return nil, nil, diag.New(diag.ClassUsage, "--engine %q: want auto, exact, highs or highs-native", f.engine)
	}
	if f.models == "" && f.of != ofPlan {
		return nil, nil, diag.New(diag.ClassUsage, "--write-models-of %q needs --write-models", f.of).
			WithHint("add --write-models DIR, or leave it out")
	}
	if f.models != "" {
		if _, err := path.Match(f.of, ""); err != nil || f.of == "" {
			return nil, nil, diag.New(diag.ClassUsage, "--write-models-of %q is no pattern", f.of).
				WithHint("want plan, all, or names with * and ?, such as 'prefill@*'")
		}
		log.models, log.of, log.made = f.models, f.of, missing(f.models)
		if err := os.MkdirAll(f.models, 0o777); err != nil {
			return nil, nil, errors.Join(diag.New(diag.ClassIO, "make directory %q: %w", f.models, err), log.discard())
		}
		// A watch around the whole engine: linear programs are written whichever engine solves them.
		engine = (&problem.Watch{Posed: log.write, Done: log.answered}).Engine(engine)
	}
	return engine, log, nil
}

// missing lists the directories that making one at path makes, the deepest first.
func missing(path string) (dirs []string) {
	for at := filepath.Clean(path); ; at = filepath.Dir(at) {
		if _, err := os.Lstat(at); err == nil || at == filepath.Dir(at) {
			return dirs
		}
		dirs = append(dirs, at)
	}
}

// Log is what engines did.
type Log struct {
	// Engines call from several goroutines; mu guards what they change.
	s  *cli.Streams
	mu sync.Mutex
	// By problem and engine: one problem may be given to two engines.
	begun  map[string]time.Time
	shown  time.Time // progress
	Solves []Solved
	err    error // of writing models, the first

	models  string   // directory of the linear programs, "" for none
	made    []string // directories that were made for it, the deepest first
	of      string   // which of them
	files   []string // that were written
	bytes   int64    // of those that are there
	skipped int      // for lack of room
	index   []Indexed
}

// The words that --write-models-of takes besides patterns.
const (
	ofPlan = "plan"
	ofAll  = "all"
	// mostModelBytes is what all linear programs of a solve take together; those beyond are not written.
	mostModelBytes = 1 << 30
)

// Indexed is a line of the index of the linear programs: which answer a file had, for comparing another solver's.
type Indexed struct {
	File    string `json:"file"`
	Problem string `json:"problem"`
	Status  string `json:"status"` // as in the list of solves; "failed" where there is none
	// in whole ns, nJ or bytes; the file tells what its own objective is multiplied with
	Objective int64 `json:"objective"`
	Bound     int64 `json:"bound"`
	// files that pose the problem together, each for one length of chunk: the objective is the least of theirs
	Of int `json:"of"`
}

// IndexName is the file beside the linear programs.
const IndexName = "index.jsonl"

// Solved is one problem given to one engine.
type Solved struct {
	Problem   string   `json:"problem"`
	Engine    string   `json:"engine"`
	Status    string   `json:"status,omitempty"`
	Objective int64    `json:"objective"`
	Bound     int64    `json:"bound"`
	Gap       *float64 `json:"gap"`              // relative to the objective; null where there is no solution
	Choices   int      `json:"choices"`          // of the problem
	Vars      int      `json:"variables"`        // of the linear program, 0 where none was needed
	Rows      int      `json:"constraints"`      // likewise
	Nodes     int64    `json:"nodes"`            // of the search tree
	MS        float64  `json:"ms"`               // wall time
	Failed    string   `json:"failed,omitempty"` // why there is no answer
}

// NewLog is a log of no solves, which tells progress on ui.
func NewLog(s *cli.Streams) *Log { return &Log{s: s, begun: map[string]time.Time{}} }

// Started notes when an engine begins a problem.
func (l *Log) Started(what, engine string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun[what+"\x00"+engine] = time.Now()
	l.shown = time.Now()
}

// Done notes an engine's answer.
func (l *Log) Done(report problem.Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	solved := Solved{Problem: report.Problem, Engine: report.Engine, Status: string(report.Status),
		Objective: report.Objective, Bound: report.Bound, Choices: report.Choices,
		Vars: report.Vars, Rows: report.Rows, Nodes: report.Nodes,
		MS: float64(time.Since(l.begun[report.Problem+"\x00"+report.Engine]).Microseconds()) / 1e3}
	if gap := report.Gap(); !math.IsInf(gap, 1) {
		solved.Gap = &gap
	}
	switch {
	case diag.ClassOf(report.Err) == diag.ClassInfeasible:
		solved.Status, solved.Bound = "infeasible", 0
	case report.Err != nil:
		solved.Status, solved.Failed = "failed", report.Err.Error()
	}
	l.Solves = append(l.Solves, solved)
}

// progress tells every other second how far a linear program is.
func (l *Log) progress(what, engine string, objective, bound float64, nodes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.shown) < 2*time.Second {
		return
	}
	// Notes of all problems share one clock, so that many at once do not flood the terminal.
	l.shown = time.Now()
	gap := "no solution yet"
	if !math.IsInf(objective, 0) && !math.IsInf(bound, 0) {
		gap = fmt.Sprintf("gap %.2g %%", 100*(objective-bound)/max(1e-9, math.Abs(objective)))
	}
	l.s.Notef("%s: %s: %s after %d nodes and %.0f s", what, engine, gap, nodes,
		time.Since(l.begun[what+"\x00"+engine]).Seconds())
}

// answered notes the answer that the linear programs of a problem have.
func (l *Log) answered(report problem.Report) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := Indexed{
		Problem: report.Problem, Status: string(report.Status), Objective: report.Objective, Bound: report.Bound,
		Of: len(report.Models),
	}
	switch {
	case diag.ClassOf(report.Err) == diag.ClassInfeasible:
		line.Status, line.Objective, line.Bound = "infeasible", 0, 0
	case report.Err != nil:
		line.Status = "failed"
	}
	for _, line.File = range report.Models {
		if line.File != "" {
			l.index = append(l.index, line)
		}
	}
}

// write writes one model and returns the file's name. The first error is kept: engines do not wait for files.
func (l *Log) write(problem *milp.Model) (file string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return ""
	}
	// With "plan" everything is written first: which problems the plan answers is known only at the end (Choose).
	if chosen, _ := path.Match(l.of, problem.Name); !chosen && l.of != ofPlan && l.of != ofAll {
		return ""
	}
	var text bytes.Buffer
	if l.err = problem.WriteLP(&text); l.err != nil {
		return ""
	}
	// Names of problems contain blanks and slashes; the number keeps files apart that become alike.
	name := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '@' || r == '.' {
			return r
		}
		return '-'
	}, problem.Name)
	if l.bytes+int64(text.Len()) > mostModelBytes {
		l.skipped++
		return ""
	}
	l.bytes += int64(text.Len())
	file = fmt.Sprintf("%03d-%s.lp", len(l.files)+1, name[:min(len(name), 100)])
	l.files = append(l.files, file)
	l.err = wholefile.Write(filepath.Join(l.models, file), text.Bytes())
	return file
}

// Choose leaves the linear programs whose solutions a plan is made of, where no others are asked for. Programs are
// solved in any number of combinations of schemes: theirs is the one with the plan's objective, or, where a single
// processor is taken instead, its bound.
func (l *Log) Choose(result *solver.Result) {
	if l.models == "" || l.of != ofPlan || l.err != nil {
		return
	}
	kept := map[string]string{} // file by problem and answer: some are posed again, and one file will do
	l.index = slices.DeleteFunc(l.index, func(x Indexed) bool {
		answer := fmt.Sprint(x.Problem, x.Objective)
		// A problem of several files is kept whole, although its files have one answer.
		if first, ok := kept[answer]; inPlan(&x, result) && (!ok || first == x.File || x.Of > 1) {
			kept[answer] = x.File
			return false
		}
		at := filepath.Join(l.models, x.File)
		if info, err := os.Stat(at); err == nil {
			l.bytes -= info.Size()
		}
		if err := os.Remove(at); err != nil && l.err == nil {
			l.err = err
		}
		return true
	})
}

// inPlan reports whether a linear program poses what a plan's decisions answer.
func inPlan(line *Indexed, result *solver.Result) bool {
	for _, solve := range result.Plan.Solver {
		kind, name, _ := strings.Cut(solve.Problem, " ")
		switch kind {
		case "partition", "energy":
			if line.Problem == "partition "+name &&
				(line.Objective == solve.ObjectiveNS || line.Objective == solve.BoundNS) {
				return true
			}
		case "joint":
			if line.Problem == "joint plan" && line.Objective == result.JointObjective {
				return true
			}
		default: // there are few
			if line.Problem == "buckets "+kind {
				return true
			}
		}
	}
	return strings.HasPrefix(line.Problem, "tiers ")
}

// ShowModels tells what was written.
func (l *Log) ShowModels() {
	if l.models == "" {
		return
	}
	others := ""
	if l.of == ofPlan && len(l.files) > len(l.index) {
		others = fmt.Sprintf(", of %d; --write-models-of %s keeps every one", len(l.files), ofAll)
	}
	l.s.Printf("%s: %d linear programs, %v%s\n", l.models, len(l.index), unit.Bytes(l.bytes), others)
	if l.skipped > 0 {
		l.s.Warnf("%d linear programs were not written: all together they would take more than %v; a pattern of "+
			"--write-models-of selects some", l.skipped, unit.Bytes(mostModelBytes))
	}
}

// Written writes the index of the models, and returns the error of writing them.
func (l *Log) Written() error {
	if l.models != "" && l.err == nil {
		l.err = l.writeIndex()
	}
	if l.err != nil {
		return diag.New(diag.ClassOr(l.err, diag.ClassIO), "write models: %w", l.err)
	}
	return nil
}

// discard removes the linear programs of an interrupted solve, and the directories that were made for them.
func (l *Log) discard() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = context.Canceled // an engine that has not ended yet writes no more
	var failed error
	for _, file := range l.files {
		if err := os.Remove(filepath.Join(l.models, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	for _, dir := range l.made {
		_ = os.Remove(dir) // unless someone else has put something there
	}
	return failed
}

// writeIndex writes a line of JSON per linear program, in the order of the files.
func (l *Log) writeIndex() error {
	slices.SortFunc(l.index, func(a, b Indexed) int { return strings.Compare(a.File, b.File) })
	var text bytes.Buffer
	lines := json.NewEncoder(&text)
	for _, line := range l.index {
		if err := lines.Encode(line); err != nil {
			return err
		}
	}
	return wholefile.Write(filepath.Join(l.models, IndexName), text.Bytes())
}

// Show summarises by engine and status, and names what no engine answered for.
func (l *Log) Show() {
	// A solve poses hundreds of problems; one line for each engine and status tells enough.
	type key struct{ engine, status string }
	type sum struct {
		problems   int
		nodes      int64
		gap        float64
		vars, most int
		failed     string
	}
	var order []key
	sums := map[key]*sum{}
	for _, solved := range l.Solves {
		of := key{solved.Engine, solved.Status}
		total := sums[of]
		if total == nil {
			total = &sum{}
			sums[of] = total
			order = append(order, of)
		}
		total.problems, total.nodes = total.problems+1, total.nodes+solved.Nodes
		// Sizes are those of the largest problem, nodes those of all: the first tells what was hard, the second how
		// long it took.
		total.vars, total.most = max(total.vars, solved.Vars), max(total.most, solved.Choices)
		if solved.Gap != nil {
			total.gap = max(total.gap, *solved.Gap)
		}
		if solved.Failed != "" {
			total.failed = solved.Failed
		}
	}
	for _, key := range order {
		sum := sums[key]
		size := fmt.Sprintf("%d choices", sum.most)
		if sum.vars > 0 {
			size = fmt.Sprintf("%d variables", sum.vars)
		}
		gap := ""
		if key.status == string(problem.Feasible) {
			gap = fmt.Sprintf(" within %.2g %% of the bound", 100*sum.gap)
		}
		l.s.Printf("solved: %s by engine %s, %s%s; the largest has %s; %s searched in all\n",
			cli.Count(sum.problems, "problem"), key.engine, key.status, gap, size, cli.Count(int(sum.nodes), "node"))
	}
	for _, key := range order {
		// A failure behind which another engine stood in cost time and no quality, but is told.
		if f := sums[key].failed; f != "" {
			l.s.Warnf("engine %s failed, and the answer is that of another one: %s", key.engine, f)
		}
	}
}
