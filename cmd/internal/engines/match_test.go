//go:build linux

package engines

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
)

// scripted is an engine whose times are given: it tests the order and the arithmetic of a match, nothing else.
type scripted struct {
	name, form string
	log        string                     // file that every process adds a line to
	seconds    func(t Task, n int) string // of the n-th process for a task, as it prints it
	ran        map[Task]int
	asked      int // how often for its files
}

func (s *scripted) Name() string { return s.name }

func (s *scripted) Form() string { return s.form }

func (s *scripted) Files() []string {
	s.asked++
	return nil
}

func (s *scripted) Command(t Task, _ int) (string, []string) {
	if s.ran == nil {
		s.ran = map[Task]int{}
	}
	s.ran[t]++
	return sh(fmt.Sprintf("echo %s %s %s >> '%s'; echo %s", s.name, s.form, t.Phase(), s.log, s.seconds(t, s.ran[t])))
}

func (s *scripted) Parse(t Task, _ int, out, _ []byte) (Reading, error) {
	sec, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	if err != nil {
		return Reading{}, fmt.Errorf("no number: %q", out)
	}
	return Reading{SecondsPerRep: []float64{sec, sec, 100 * sec}[:t.Reps], Version: "1", Backend: "sh"}, nil
}

// fixed are the same times for every process of a phase.
func fixed(prefill, decode string) func(Task, int) string {
	return func(t Task, _ int) string {
		if t.Prompt > 0 {
			return prefill
		}
		return decode
	}
}

// play plays a match, and returns its result and the lines that its processes logged.
func play(t *testing.T, m *Match) (*Result, []string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "log")
	for _, e := range m.Engines {
		e.(*scripted).log = log
	}
	m.Cores, m.Timeout, m.Note = []int{0}, time.Minute, t.Logf
	if m.Tasks == nil {
		m.Tasks = []Task{{Prompt: 100, Reps: 3}, {Depth: 7, Gen: 10, Reps: 1}}
	}
	r, err := m.Play(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return r, strings.Split(strings.TrimSpace(string(text)), "\n")
}

// Every form is compared with the fastest of another engine in each task, round by round. A form that was slower
// throughout is measured no further, and one that takes twice as long is measured once (TestMatchBudgetWithoutDropped).
func TestMatch(t *testing.T) {
	fasterPrompts := func(task Task, n int) string { // from the second process on
		switch {
		case task.Prompt == 0:
			return "2.5"
		case n == 1:
			return "2.8"
		}
		return "1"
	}
	m := &Match{Rounds: 6, Seed: 3, Engines: []Engine{
		&scripted{name: "hetc", form: "a", seconds: fixed("0.5", "0.5")},
		&scripted{name: "hetc", form: "b", seconds: fixed("4", "4")},
		&scripted{name: "peer", form: "Q4", seconds: fixed("2", "2")},
		&scripted{name: "peer", form: "Q8", seconds: fasterPrompts},
	}}

	r, log := play(t, m)

	if r.Rounds != 6 || r.Stopped || len(r.Series) != 8 {
		t.Fatalf("%d rounds, stopped %v, %d series", r.Rounds, r.Stopped, len(r.Series))
	}
	for i, want := range []struct {
		processes int
		rate      float64 // tokens/s
		dropped   bool
	}{
		{processes: 6, rate: 200}, // of prompts
		{processes: 6, rate: 25},
		{processes: 6, rate: 50},
		{processes: 6, rate: 100},

		{processes: 6, rate: 20}, // of tokens
		{processes: 6, rate: 2.5},
		{processes: 6, rate: 5},
		{processes: 2, rate: 4, dropped: true},
	} {
		s := r.Series[i]
		if len(s.Samples) != want.processes || s.Summary.Median != want.rate || (s.Dropped != "") != want.dropped {
			t.Errorf("%s %s %v: %d processes, %v tokens/s, dropped %q; want %+v", s.Engine, s.Form, s.Task,
				len(s.Samples), s.Summary.Median, s.Dropped, want)
		}
		if s.Version != "1" || s.Backend != "sh" {
			t.Errorf("%s %s: version %q, backend %q", s.Engine, s.Form, s.Version, s.Backend)
		}
	}
	for i, want := range []struct {
		form, best string
		ratio      float64
	}{
		{form: "a", best: "Q8", ratio: 2},
		{form: "b", best: "Q8", ratio: 0.25},
		{form: "a", best: "Q4", ratio: 4},
		{form: "b", best: "Q4", ratio: 0.5},
	} {
		x := r.Ratios[i]
		if x.Form != want.form || x.Peer != "peer" || x.Best != want.best || x.Summary.Median != want.ratio {
			t.Errorf("ratio %d: %+v, want %+v", i, x, want)
		}
	}
	first := r.Ratios[0].Summary
	if first.Low != 2 || first.High != 5.6 || first.Coverage < 0.95 { // in one of six rounds it was 5.6
		t.Errorf("interval %v..%v covers %v", first.Low, first.High, first.Coverage)
	}
	areShuffled(t, log)
}

// areShuffled expects all forms of a task in a row, once each in every round, and not always in the same order.
func areShuffled(t *testing.T, log []string) {
	t.Helper()
	orders := map[string]bool{}
	decodes := 0
	for len(log) > 0 {
		phase, n := strings.Fields(log[0])[2], 4
		if phase == "decode" {
			decodes++
			if decodes > trialRounds {
				n = 3 // without Q8
			}
		}
		var forms []string
		for _, line := range log[:n] {
			if fields := strings.Fields(line); fields[2] == phase {
				forms = append(forms, fields[1])
			}
		}
		orders[strings.Join(forms, " ")] = true
		slices.Sort(forms)
		if len(slices.Compact(forms)) != n {
			t.Fatalf("got %q for one task of one round", log[:n])
		}
		log = log[n:]
	}
	if len(orders) < 4 {
		t.Errorf("engines came in %d orders", len(orders))
	}
}

// A budget ends a match between rounds; the first is always played.
func TestMatchBudget(t *testing.T) {
	m := &Match{Rounds: 50, Seed: 1, Budget: time.Millisecond, Engines: []Engine{
		&scripted{name: "hetc", form: "a", seconds: fixed("1", "1")},
		&scripted{name: "peer", form: "Q4", seconds: fixed("2", "2")},
	}}
	if r, _ := play(t, m); r.Rounds != 1 || !r.Stopped || r.Ratios[0].Summary.Median != 2 {
		t.Errorf("%d rounds, stopped %v, ratios %+v", r.Rounds, r.Stopped, r.Ratios)
	}
}

// An interrupted match shows what it has measured, once there is a whole round.
func TestMatchInterrupted(t *testing.T) {
	for _, test := range []struct {
		after int // processes of the peer, of which each round has two
		shown bool
	}{
		{after: 1, shown: false},
		{after: 4, shown: true},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		count := 0
		interrupting := func(Task, int) string {
			count++
			if count == test.after {
				cancel()
			}
			return "2"
		}
		log := filepath.Join(t.TempDir(), "log")
		m := &Match{
			Rounds:  50,
			Seed:    1,
			Cores:   []int{0},
			Timeout: time.Minute,
			Note:    t.Logf,
			Tasks:   []Task{{Prompt: 100, Reps: 1}, {Depth: 7, Gen: 10, Reps: 1}},
			Engines: []Engine{
				&scripted{name: "hetc", form: "a", log: log, seconds: fixed("1", "1")},
				&scripted{name: "peer", form: "Q4", log: log, seconds: interrupting},
			},
		}

		result, err := m.Play(ctx)

		if err == nil {
			t.Fatalf("interrupted in process %d: no error", test.after)
		}
		if shown := result != nil; shown != test.shown {
			t.Fatalf("interrupted in process %d: got a result %v, want %v", test.after, shown, test.shown)
		}
		if !test.shown {
			continue
		}
		if result.Rounds != 1 || !result.Stopped {
			t.Errorf("%d rounds, stopped %v", result.Rounds, result.Stopped)
		}
		if len(result.Ratios) != 2 || result.Ratios[0].Summary.Median != 2 {
			t.Errorf("ratios %+v", result.Ratios)
		}
	}
}

// What was measured before hetc failed in a later round comes with the error; a failure in the first round leaves nothing.
func TestMatchFailsLater(t *testing.T) {
	for _, failing := range []int{1, 3} {
		seconds := func(_ Task, n int) string {
			if n == failing {
				return "1; echo no memory left >&2; exit 3"
			}
			return "1"
		}
		log := filepath.Join(t.TempDir(), "log")
		m := &Match{
			Rounds:  6,
			Seed:    1,
			Cores:   []int{0},
			Timeout: time.Minute,
			Note:    t.Logf,
			Tasks:   []Task{{Depth: 7, Gen: 10, Reps: 1}},
			Engines: []Engine{
				&scripted{name: "hetc", form: "a", log: log, seconds: seconds},
				&scripted{name: "peer", form: "Q4", log: log, seconds: fixed("", "2")},
			},
		}

		result, err := m.Play(t.Context())

		if err == nil || !strings.Contains(err.Error(), "no memory left") {
			t.Fatalf("hetc failed in process %d: got error %v", failing, err)
		}
		if failing == 1 {
			if result != nil {
				t.Errorf("hetc failed in the first round: got %+v", result)
			}
			continue
		}
		if result == nil || result.Rounds != 2 || !result.Stopped || result.Ratios[0].Summary.N != 2 {
			t.Errorf("hetc failed in the third round: got %+v, want two rounds", result)
		}
	}
}

// The budget is compared with what the next round takes: forms that are measured no further do not count.
func TestMatchBudgetWithoutDropped(t *testing.T) {
	require.Slow(t)
	slow := func(Task, int) string { return "4; sleep 1" }
	m := &Match{
		Rounds: 6,
		Seed:   1,
		Budget: 2600 * time.Millisecond,
		Tasks:  []Task{{Depth: 1, Gen: 1, Reps: 1}},
		Engines: []Engine{
			&scripted{name: "hetc", form: "a", seconds: fixed("", "1")},
			&scripted{name: "peer", form: "Q4", seconds: fixed("", "2")},
			&scripted{name: "peer", form: "Q8", seconds: slow},
		},
	}
	r, _ := play(t, m)
	if n := len(r.Series[2].Samples); r.Rounds <= trialRounds || n != 1 {
		t.Errorf("%d rounds, %d of the slow form: want more than %d and 1", r.Rounds, n, trialRounds)
	}
}

// A form of another engine that fails is told with the reason, and the rest of the match goes on.
func TestMatchPeerFails(t *testing.T) {
	failing := func(task Task, n int) string {
		switch {
		case task.Prompt > 0:
			return "2"
		case n > 1:
			return "1; echo no memory left >&2; exit 3"
		}
		return "1"
	}
	m := &Match{Rounds: 3, Seed: 1, Engines: []Engine{
		&scripted{name: "hetc", form: "a", seconds: fixed("1", "1")},
		&scripted{name: "peer", form: "Q4", seconds: failing},
		&scripted{name: "peer", form: "Q8", seconds: fixed("fast", "fast; echo sorry >&2")},
	}}

	r, _ := play(t, m)

	for i, want := range []struct {
		samples int
		failed  string
	}{
		{samples: 3}, // of prompts
		{samples: 3},
		{samples: 0, failed: `no number: "fast\n", without a word`},

		{samples: 3}, // of tokens
		{samples: 1, failed: "sh failed: exit status 3: no memory left"},
		{samples: 0, failed: `no number: "fast\n": sorry`},
	} {
		if s := r.Series[i]; len(s.Samples) != want.samples || s.Failed != want.failed || s.Dropped != "" {
			t.Errorf("%s %s, %v: %d samples, dropped %q, failed %q; want %+v", s.Engine, s.Form, s.Task, len(s.Samples),
				s.Dropped, s.Failed, want)
		}
	}
	if len(r.Ratios) != 2 {
		t.Fatalf("ratios %+v", r.Ratios)
	}
	prompts, tokens := r.Ratios[0].Summary, r.Ratios[1].Summary
	if prompts.Median != 2 || tokens.Median != 1 || tokens.N != 1 {
		t.Errorf("ratios %+v", r.Ratios)
	}
}

// A form that does not end in time costs that time once.
func TestMatchPeerHangs(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	hanging := &scripted{name: "peer", form: "Q4", log: log, seconds: fixed("1; sleep 60", "1; sleep 60")}
	m := &Match{
		Rounds:  2,
		Seed:    1,
		Cores:   []int{0},
		Timeout: 2 * time.Second,
		Note:    t.Logf,
		Tasks:   []Task{{Prompt: 9, Reps: 1}, {Depth: 7, Gen: 10, Reps: 1}},
		Engines: []Engine{&scripted{name: "hetc", form: "a", log: log, seconds: fixed("1", "1")}, hanging},
	}

	r, err := m.Play(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	why := []string{r.Series[1].Failed, r.Series[3].Failed}
	slices.Sort(why)
	if !strings.HasSuffix(why[0], " took too long") || !strings.HasPrefix(why[1], "sh did not end within 2s") {
		t.Errorf("failed %q", why)
	}
	if r.Rounds != 2 {
		t.Errorf("%d rounds, want 2", r.Rounds)
	}
	if runs := hanging.ran[m.Tasks[0]] + hanging.ran[m.Tasks[1]]; runs != 1 {
		t.Errorf("the form was tried %d times, want once", runs)
	}
}

// An output of hetc that cannot be read ends the match, and the error says which and at what.
func TestMatchGarbage(t *testing.T) {
	garbage := fixed("fast", "fast; echo sorry >&2")
	m := &Match{
		Rounds:  3,
		Seed:    1,
		Cores:   []int{0},
		Timeout: time.Minute,
		Note:    t.Logf,
		Tasks:   []Task{{Depth: 1, Gen: 1, Reps: 1}},
		Engines: []Engine{&scripted{name: "hetc", form: "Q4", log: "/dev/null", seconds: garbage}},
	}
	_, err := m.Play(t.Context())
	const want = `measure hetc Q4, decode 1 after 1: no number: "fast\n"; its last words:` + "\nsorry"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// The whole time of a process that starts counts, whatever it says.
func TestMatchStart(t *testing.T) {
	e := &scripted{name: "hetc", form: "a", seconds: func(Task, int) string { return "0.000001" }}
	r, _ := play(t, &Match{Rounds: 2, Tasks: []Task{{Start: 8, Reps: 1}}, Engines: []Engine{e}})
	if s := r.Series[0]; len(s.Samples) != 2 || !(s.Summary.Median > 0 && s.Summary.Median < 10_000) {
		t.Errorf("%+v", s)
	}
}

// timedStart says by itself how long it took to start.
type timedStart struct{ Engine }

func (timedStart) Parse(Task, int, []byte, []byte) (Reading, error) {
	return Reading{StartSeconds: 0.25, Version: "1", Backend: "sh"}, nil
}

// An engine that counts its start itself is believed: what Python needs to begin is not the engine's.
func TestMatchStartTimedByEngine(t *testing.T) {
	peer := timedStart{(&LlamaCpp{Dir: "/bin"}).Engine("f", "a")}
	match := Match{
		Engines: []Engine{echo{peer}},
		Tasks:   []Task{{Start: 8, Reps: 1}},
		Rounds:  1,
		Timeout: time.Minute,
		Note:    t.Logf,
	}
	result, err := match.Play(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := result.Series[0].Samples[0].TPS; len(got) != 1 || got[0] != 4 {
		t.Errorf("got %v tokens/s, want 4", got)
	}
}

// Before a start, and nothing else, the files of a form are read: those in folders too.
func TestStartsFindTheirFilesRead(t *testing.T) {
	engine := &scripted{name: "hetc", form: "plan", seconds: fixed("1", "1")}
	play(t, &Match{Engines: []Engine{engine}, Tasks: []Task{{Start: 8, Reps: 1}, {Prompt: 8, Reps: 1}}, Rounds: 2})
	if engine.asked != 2 {
		t.Errorf("asked for files %d times, want once for each of 2 starts", engine.asked)
	}

	dir := t.TempDir()
	for path, bytes := range map[string]int{"form/weights": 1000, "form/cache/blob": 200, "other": 30} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), make([]byte, bytes), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	paths := []string{filepath.Join(dir, "form"), filepath.Join(dir, "other"), filepath.Join(dir, "absent")}
	if got := readFiles(t.Context(), paths); got != 1230 {
		t.Errorf("%d bytes were read, want 1230", got)
	}
}

// echo runs a program that does nothing.
type echo struct{ Engine }

func (echo) Files() []string { return nil }

func (echo) Command(Task, int) (string, []string) { return "/bin/sh", []string{"-c", "true"} }
