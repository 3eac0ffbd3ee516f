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
}

func (s *scripted) Name() string { return s.name }
func (s *scripted) Form() string { return s.form }

func (s *scripted) Command(t Task, _ int) (string, []string) {
	if s.ran == nil {
		s.ran = map[Task]int{}
	}
	s.ran[t]++
	return "sh", []string{"-c", fmt.Sprintf("echo %s %s %s >> '%s'; echo %s", s.name, s.form, t.Phase(), s.log, s.seconds(t, s.ran[t]))}
}

func (s *scripted) Parse(t Task, _ int, out, _ []byte) (Reading, error) {
	sec, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	if err != nil {
		return Reading{}, fmt.Errorf("no number: %q", out)
	}
	return Reading{SecondsPerRep: []float64{sec, sec, 100 * sec}[:t.Reps], Version: "1", Backend: "sh"}, nil
}

func fixed(prefill, decode string) func(Task, int) string {
	return func(t Task, _ int) string {
		if t.Prompt > 0 {
			return prefill
		}
		return decode
	}
}

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

// The fastest form of each task is compared with, round by round; forms that were slower throughout are measured
// no further, and those that take twice as long are measured once (TestMatchBudgetWithoutDropped).
func TestMatch(t *testing.T) {
	m := &Match{Rounds: 6, Seed: 3, Engines: []Engine{
		&scripted{name: "hetc", form: "a", seconds: fixed("0.5", "0.5")},
		&scripted{name: "hetc", form: "b", seconds: fixed("4", "4")},
		&scripted{name: "peer", form: "Q4", seconds: fixed("2", "2")},
		&scripted{name: "peer", form: "Q8", seconds: func(task Task, n int) string { // better at prefill from the second process on
			if task.Prompt > 0 {
				return []string{"2.8", "1", "1", "1", "1", "1", "1", "1"}[n-1]
			}
			return "2.5"
		}},
	}}
	r, log := play(t, m)
	if r.Rounds != 6 || r.Stopped || len(r.Series) != 8 {
		t.Fatalf("%d rounds, stopped %v, %d series", r.Rounds, r.Stopped, len(r.Series))
	}
	for i, want := range []struct {
		n       int
		tps     float64
		dropped bool
	}{{6, 200, false}, {6, 25, false}, {6, 50, false}, {6, 100, false}, {6, 20, false}, {6, 2.5, false}, {6, 5, false}, {2, 4, true}} {
		s := r.Series[i]
		if len(s.Samples) != want.n || s.Summary.Median != want.tps || s.Dropped != want.dropped || s.Version != "1" || s.Backend != "sh" {
			t.Errorf("%s %s %v: %d processes, %v tokens/s, dropped %v; want %+v", s.Engine, s.Form, s.Task, len(s.Samples), s.Summary.Median, s.Dropped, want)
		}
	}
	for i, want := range []struct {
		form, best string
		ratio      float64
	}{{"a", "Q8", 2}, {"b", "Q8", 0.25}, {"a", "Q4", 4}, {"b", "Q4", 0.5}} {
		x := r.Ratios[i]
		if x.Form != want.form || x.Peer != "peer" || x.Best != want.best || x.Summary.Median != want.ratio {
			t.Errorf("ratio %d: %+v, want %+v", i, x, want)
		}
	}
	if low := r.Ratios[0].Summary; low.Low != 2 || low.High != 5.6 || low.Coverage < 0.95 { // in one of six rounds it was 5.6
		t.Errorf("interval %v..%v covers %v", low.Low, low.High, low.Coverage)
	}
	// All forms of a task in a row, once each in every round, and not always in the same order.
	orders := map[string]bool{}
	decodes := 0
	for len(log) > 0 {
		phase, n := strings.Fields(log[0])[2], 4
		if phase == "decode" {
			if decodes++; decodes > trialRounds {
				n = 3 // without Q8
			}
		}
		var forms []string
		for _, l := range log[:n] {
			if f := strings.Fields(l); f[2] == phase {
				forms = append(forms, f[1])
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
		&scripted{name: "hetc", form: "a", seconds: fixed("1", "1")}, &scripted{name: "peer", form: "Q4", seconds: fixed("2", "2")}}}
	if r, _ := play(t, m); r.Rounds != 1 || !r.Stopped || r.Ratios[0].Summary.Median != 2 {
		t.Errorf("%d rounds, stopped %v, ratios %+v", r.Rounds, r.Stopped, r.Ratios)
	}
}

// An interrupted match shows what it has measured, once there is a whole round.
func TestMatchInterrupted(t *testing.T) {
	for _, test := range []struct {
		after int // processes of the peer, of which each round has two
		shown bool
	}{{1, false}, {4, true}} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		count := 0
		m := &Match{Rounds: 50, Seed: 1, Cores: []int{0}, Timeout: time.Minute, Note: t.Logf,
			Tasks: []Task{{Prompt: 100, Reps: 1}, {Depth: 7, Gen: 10, Reps: 1}}, Engines: []Engine{
				&scripted{name: "hetc", form: "a", seconds: fixed("1", "1")},
				&scripted{name: "peer", form: "Q4", seconds: func(Task, int) string {
					if count++; count == test.after {
						cancel()
					}
					return "2"
				}}}}
		for _, engine := range m.Engines {
			engine.(*scripted).log = filepath.Join(t.TempDir(), "log")
		}
		result, err := m.Play(ctx)
		if err == nil {
			t.Fatalf("interrupted in process %d: no error", test.after)
		}
		if shown := result != nil; shown != test.shown {
			t.Fatalf("interrupted in process %d: got a result %v, want %v", test.after, shown, test.shown)
		}
		if test.shown && (result.Rounds != 1 || !result.Stopped || len(result.Ratios) != 2 || result.Ratios[0].Summary.Median != 2) {
			t.Errorf("%d rounds, stopped %v, ratios %+v", result.Rounds, result.Stopped, result.Ratios)
		}
	}
}

// The budget is compared with what the next round takes: forms that are measured no further do not count.
func TestMatchBudgetWithoutDropped(t *testing.T) {
	require.Slow(t)
	slow := func(Task, int) string { return "4; sleep 1" }
	m := &Match{Rounds: 6, Seed: 1, Budget: 2600 * time.Millisecond, Tasks: []Task{{Depth: 1, Gen: 1, Reps: 1}},
		Engines: []Engine{&scripted{name: "hetc", form: "a", seconds: fixed("", "1")},
			&scripted{name: "peer", form: "Q4", seconds: fixed("", "2")}, &scripted{name: "peer", form: "Q8", seconds: slow}}}
	if r, _ := play(t, m); r.Rounds <= trialRounds || len(r.Series[2].Samples) != 1 {
		t.Errorf("%d rounds, %d of the slow form: want more than %d and 1", r.Rounds, len(r.Series[2].Samples), trialRounds)
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
	m := &Match{Rounds: 3, Seed: 1, Engines: []Engine{&scripted{name: "hetc", form: "a", seconds: fixed("1", "1")},
		&scripted{name: "peer", form: "Q4", seconds: failing},
		&scripted{name: "peer", form: "Q8", seconds: fixed("fast", "fast; echo sorry >&2")}}}
	r, _ := play(t, m)
	for i, want := range []struct {
		samples int
		failed  string
	}{{3, ""}, {3, ""}, {0, `no number: "fast\n", without a word`}, {3, ""}, {1, "sh failed: exit status 3: no memory left"},
		{0, `no number: "fast\n": sorry`}} {
		if s := r.Series[i]; len(s.Samples) != want.samples || s.Failed != want.failed || s.Dropped {
			t.Errorf("%s %s, %v: %d samples, dropped %v, failed %q; want %+v", s.Engine, s.Form, s.Task, len(s.Samples),
				s.Dropped, s.Failed, want)
		}
	}
	if len(r.Ratios) != 2 || r.Ratios[0].Summary.Median != 2 || r.Ratios[1].Summary.Median != 1 || r.Ratios[1].Summary.N != 1 {
		t.Errorf("ratios %+v", r.Ratios)
	}
}

// A form that does not end in time costs that time once.
func TestMatchPeerHangs(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	hanging := &scripted{name: "peer", form: "Q4", log: log, seconds: fixed("1; sleep 60", "1; sleep 60")}
	m := &Match{Rounds: 2, Seed: 1, Cores: []int{0}, Timeout: 2 * time.Second, Note: t.Logf,
		Tasks:   []Task{{Prompt: 9, Reps: 1}, {Depth: 7, Gen: 10, Reps: 1}},
		Engines: []Engine{&scripted{name: "hetc", form: "a", log: log, seconds: fixed("1", "1")}, hanging}}
	r, err := m.Play(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	why := []string{r.Series[1].Failed, r.Series[3].Failed}
	slices.Sort(why)
	if !strings.HasSuffix(why[0], " took too long") || !strings.HasPrefix(why[1], "sh did not end within 2s") || r.Rounds != 2 {
		t.Errorf("%d rounds, failed %q", r.Rounds, why)
	}
	if runs := hanging.ran[m.Tasks[0]] + hanging.ran[m.Tasks[1]]; runs != 1 {
		t.Errorf("the form was tried %d times, want once", runs)
	}
}

// hetc's output that cannot be read ends the match, and it is said which and at what.
func TestMatchGarbage(t *testing.T) {
	m := &Match{Rounds: 3, Seed: 1, Engines: []Engine{&scripted{name: "hetc", form: "Q4", log: "/dev/null", seconds: fixed("fast", "fast; echo sorry >&2")}},
		Tasks: []Task{{Depth: 1, Gen: 1, Reps: 1}}, Cores: []int{0}, Timeout: time.Minute, Note: t.Logf}
	_, err := m.Play(t.Context())
	if err == nil || !strings.Contains(err.Error(), `measure hetc Q4, decode 1 after 1: no number: "fast\n"; its last words:`+"\nsorry") {
		t.Error(err)
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
	match := Match{Engines: []Engine{echo{peer}}, Tasks: []Task{{Start: 8, Reps: 1}}, Rounds: 1, Timeout: time.Minute,
		Note: t.Logf}
	result, err := match.Play(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := result.Series[0].Samples[0].TPS; len(got) != 1 || got[0] != 4 {
		t.Errorf("got %v tokens/s, want 4", got)
	}
}

// echo runs a program that does nothing.
type echo struct{ Engine }

func (echo) Command(Task, int) (string, []string) { return "/bin/sh", []string{"-c", "true"} }
