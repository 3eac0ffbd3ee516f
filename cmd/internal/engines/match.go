package engines

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hetc/hetc/profiler/stat"
)

// Match is a comparison of engines on tasks.
type Match struct {
	Engines []Engine
	Tasks   []Task
	Cores   []int // as many threads run
	Rounds  int   // each with a process for every engine and task
	Seed    uint64
	Timeout time.Duration // of one process
	Budget  time.Duration // no round begins that would end after it; 0: none
	// Finalists is the factor by which a form of another engine may be slower than the fastest one and go on after the
	// first round; 0: all go on (see drop)
	Finalists float64
	Quiet     float64       // cores that others may use meanwhile, or the process is repeated; 0: that is not checked
	Patience  time.Duration // for which all processes together wait for a quiet machine

	Note func(format string, args ...any) // progress; not nil
}

// Sample is what one process measured.
type Sample struct {
	Round     int       `json:"round"`
	TPS       []float64 `json:"tokens_per_s"` // of every repetition
	Median    float64   `json:"median_tokens_per_s"`
	PeakBytes int64     `json:"peak_bytes"`
	Others    float64   `json:"others_cores"`      // used meanwhile by other processes; negative where unknown
	Repeats   int       `json:"repeats,omitempty"` // because others were at work
}

// Series is what an engine did on a task.
type Series struct {
	Engine  string       `json:"engine"`
	Form    string       `json:"form"`
	Task    Task         `json:"task"`
	Version string       `json:"version"`
	Backend string       `json:"backend"`
	Samples []Sample     `json:"samples"`
	Summary stat.Summary `json:"tokens_per_s"`      // over processes, of their medians; zero without any
	Dropped string       `json:"dropped,omitempty"` // why it was measured no further: slower than which form
	Failed  string       `json:"failed,omitempty"`  // why it was measured no further: an error
	Peak    int64        `json:"peak_bytes"`        // the largest of all processes
	// of decoding a token; 0: not known
	WeightBytes int64 `json:"weight_bytes_per_token,omitempty"`

	took     time.Duration // in the last round
	finalist bool          // passed the rule of Match.Finalists, which applies once
}

// Ratio compares hetc with the fastest form of another engine on a task.
type Ratio struct {
	Form    string       `json:"form"` // hetc's
	Task    Task         `json:"task"`
	Peer    string       `json:"peer"`
	Best    string       `json:"peer_form"`
	Dropped bool         `json:"peer_form_dropped,omitempty"` // so that it has fewer rounds than others
	Summary stat.Summary `json:"ratio"`                       // over rounds, of tokens per second
}

// Result is a match that was played.
type Result struct {
	Rounds    int      `json:"rounds"`
	Finalists float64  `json:"finalists,omitempty"` // as in Match
	Cores     []int    `json:"cores"`
	Seed      uint64   `json:"seed"`
	Series    []Series `json:"series"`
	Ratios    []Ratio  `json:"ratios"`
	Repeated  int      `json:"repeated"`  // processes, because others were at work
	Disturbed int      `json:"disturbed"` // of those that count
	Seconds   float64  `json:"seconds"`
	Stopped   bool     `json:"stopped,omitempty"` // before all rounds: no time left, interrupted, or hetc failed
}

// Play runs all rounds. In each, tasks and, within a task, engines come in a random order; every process is
// fresh. A process that others disturbed is repeated twice at most. A form of another engine that fails on a task is
// measured no further there, and one that does not end in time on no task; hetc's failure is an error. A match that
// fails or is interrupted after its first round returns what was measured together with the error.
func (m *Match) Play(ctx context.Context) (*Result, error) {
	began := time.Now()
	result := &Result{Finalists: m.Finalists, Cores: m.Cores, Seed: m.Seed}
	for _, task := range m.Tasks {
		for _, engine := range m.Engines {
			result.Series = append(result.Series, Series{Engine: engine.Name(), Form: engine.Form(), Task: task})
		}
	}
	rng := rand.New(rand.NewPCG(m.Seed, 0))
	// of the whole match: time to wait for quiet, and repetitions of disturbed processes
	waits, repeats := m.Patience, len(m.Engines)*len(m.Tasks)
	var ended error // before all rounds, but after the first
	for round := range m.Rounds {
		start := time.Now()
		next := result.nextRound()
		if left := m.Budget - start.Sub(began); m.Budget > 0 && round > 0 && next > left {
			m.Note("no further round: it would take %v, and %v are left", next.Round(time.Second),
				max(0, left).Round(time.Second))
			result.Stopped = true
			break
		}
		if err := m.round(ctx, result, rng, &waits, &repeats); err != nil {
			if round == 0 {
				return nil, err
			}
			ended, result.Stopped = err, true
			break
		}
		result.Rounds++
		m.Note("round %d of %d: %v", round+1, m.Rounds, time.Since(start).Round(time.Second))
		if result.Rounds < m.Rounds {
			m.drop(result)
		}
	}
	result.Seconds = time.Since(began).Seconds()
	if err := result.summarise(); err != nil {
		return nil, err
	}
	return result, ended
}

// round measures each series that is not over once.
func (m *Match) round(ctx context.Context, result *Result, rng *rand.Rand, waits *time.Duration, repeats *int) error {
	for _, ti := range rng.Perm(len(m.Tasks)) {
		for _, ei := range rng.Perm(len(m.Engines)) {
			series := &result.Series[ti*len(m.Engines)+ei]
			if series.over() {
				continue
			}
			began := time.Now()
			err := m.measure(ctx, result, series, m.Engines[ei], waits, repeats)
			series.took = time.Since(began)
			switch {
			case err == nil:
			case ctx.Err() != nil || series.Engine == "hetc":
				return fmt.Errorf("measure %s %s, %v: %w", series.Engine, series.Form, series.Task, err)
			default:
				m.fail(result, series, err)
			}
		}
	}
	return nil
}

// over reports whether a series is measured no further.
func (s *Series) over() bool { return s.Dropped != "" || s.Failed != "" }

// nextRound returns how long another round takes if each process takes as long as in the last one.
func (r *Result) nextRound() (sum time.Duration) {
	for i := range r.Series {
		if series := &r.Series[i]; !series.over() {
			sum += series.took
		}
	}
	return sum
}

// fail notes why a series is measured no further. A form that did not end in time is not tried on other tasks either:
// each might take as long.
func (m *Match) fail(result *Result, failed *Series, err error) {
	failed.Failed = Reason(failed.Engine, err)
	m.Note("%s %s, %v: %s", failed.Engine, failed.Form, failed.Task, failed.Failed)
	if !errors.Is(err, errTooLong) {
		return
	}
	for i := range result.Series {
		series := &result.Series[i]
		if series.Engine == failed.Engine && series.Form == failed.Form && !series.over() {
			series.Failed = fmt.Sprintf("%v took too long", failed.Task)
		}
	}
}

// measure runs one process, or up to three while others are at work and there are repeats left; the least
// disturbed one counts.
func (m *Match) measure(
	ctx context.Context, result *Result, series *Series, engine Engine, waits *time.Duration, repeats *int,
) error {
	const most = 3
	var best Sample
	for try := range most {
		if series.Task.Start > 0 {
			readFiles(ctx, engine.Files())
		}
		if m.Quiet > 0 {
			if err := m.awaitQuiet(ctx, waits); err != nil {
				return err
			}
		}
		program, args := engine.Command(series.Task, len(m.Cores))
		done, err := Run(ctx, Limits{Cores: m.Cores, Time: m.Timeout}, program, args...)
		if err != nil {
			return err
		}
		reading, err := engine.Parse(series.Task, len(m.Cores), done.Out, done.Complaints)
		if err != nil {
			return fmt.Errorf("%w%s", err, tail(done.Complaints))
		}
		sample := Sample{Round: result.Rounds, PeakBytes: done.PeakBytes, Others: done.OthersCores}
		if series.Task.Start > 0 {
			reading.SecondsPerRep = []float64{cmp.Or(reading.StartSeconds, done.Wall.Seconds())}
		}
		for _, sec := range reading.SecondsPerRep {
			sample.TPS = append(sample.TPS, float64(series.Task.Tokens())/sec)
		}
		sample.Median = stat.Median(sample.TPS)
		series.Version, series.Backend, series.WeightBytes = reading.Version, reading.Backend, reading.WeightBytes
		series.Peak = max(series.Peak, sample.PeakBytes)
		// the least disturbed of the attempts
		if try == 0 || sample.Others < best.Others {
			best = sample
		}
		if best.Repeats = try; !m.disturbed(&sample) || *repeats == 0 {
			break
		}
		*repeats--
	}
	result.Repeated += best.Repeats
	if m.disturbed(&best) {
		result.Disturbed++
	}
	series.Samples = append(series.Samples, best)
	return nil
}

// readFiles reads files, and those in folders, so that a start finds them in the page cache, whatever was measured
// before it. It returns how many bytes it read. What cannot be read is left to the engine, which says so.
func readFiles(ctx context.Context, paths []string) (bytes int64) {
	for _, path := range paths {
		_ = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return ctx.Err()
			}
			file, err := os.Open(path)
			if err != nil {
				return ctx.Err()
			}
			defer file.Close()
			count, _ := io.Copy(io.Discard, file)
			bytes += count
			return ctx.Err()
		})
	}
	return bytes
}

// disturbed reports whether others were at work while something was measured.
func (m *Match) disturbed(s *Sample) bool { return m.Quiet > 0 && s.Others > m.Quiet }

// awaitQuiet returns when others leave the machine alone, or when the time for waiting is over; what others do
// then is told with the measurement.
func (m *Match) awaitQuiet(ctx context.Context, left *time.Duration) error {
	const look = 300 * time.Millisecond
	for {
		before, known := usage()
		start := time.Now()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(look):
		}
		after, ok := usage()
		spent := time.Since(start)
		if !ok || !known || float64(after-before) <= m.Quiet*float64(spent) || *left <= 0 {
			return nil
		}
		*left -= spent
	}
}

// summarise computes medians, intervals and ratios.
func (r *Result) summarise() error {
	for i := range r.Series {
		series := &r.Series[i]
		if len(series.Samples) == 0 {
			continue
		}
		var err error
		if series.Summary, err = stat.Summarise(rates(series)); err != nil {
			return err
		}
	}
	for i := range r.Series {
		own := &r.Series[i]
		if own.Engine != "hetc" {
			continue
		}
		// By round, so that what disturbs a round disturbs both sides of its ratio. Every series has a sample of each
		// round from the first to its last.
		for _, peer := range r.best(own.Task) {
			var ratios []float64
			for k := range min(len(own.Samples), len(peer.Samples)) {
				ratios = append(ratios, own.Samples[k].Median/peer.Samples[k].Median)
			}
			sum, err := stat.Summarise(ratios)
			if err != nil {
				return err
			}
			r.Ratios = append(r.Ratios,
				Ratio{Form: own.Form, Task: own.Task, Peer: peer.Engine, Best: peer.Form, Dropped: peer.Dropped != "",
					Summary: sum})
		}
	}
	return nil
}

// best are the fastest forms of the other engines on a task, one for each. A form that was dropped counts only where its
// engine has no other.
func (r *Result) best(t Task) []*Series {
	var out []*Series
	for i := range r.Series {
		series := &r.Series[i]
		if series.Engine == "hetc" || series.Task != t || len(series.Samples) == 0 {
			continue
		}
		at := slices.IndexFunc(out, func(o *Series) bool { return o.Engine == series.Engine })
		switch {
		case at < 0:
			out = append(out, series)
		case better(series, out[at]):
			out[at] = series
		}
	}
	return out
}

// better reports whether a form represents its engine rather than another one.
func better(s, other *Series) bool {
	if goesOn := s.Dropped == ""; goesOn != (other.Dropped == "") {
		return goesOn
	}
	return s.Summary.Median > other.Summary.Median
}

// Peak is the largest memory of an engine's form over all tasks, bytes.
func (r *Result) Peak(engine, form string) int64 {
	var peak int64
	for _, series := range r.Series {
		if series.Engine == engine && series.Form == form {
			peak = max(peak, series.Peak)
		}
	}
	return peak
}
