package executor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// slowly is a source that takes its time to make each part ready and notes what it was asked for, in order.
type slowly struct {
	*emit.Content
	mu     sync.Mutex
	parts  []executor.Part // of the latest call of Ahead
	ready  []executor.Part
	asked  []executor.Part
	before int // parts asked for that had not been made ready
	during int // parts asked for while others were made ready
	begun  bool
	busy   bool
	took   time.Duration
}

func (s *slowly) Ahead(ctx context.Context, parts []executor.Part, through func(parts int)) {
	set := func(busy bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.begun, s.busy, s.parts = true, busy, parts
	}
	set(true)
	defer set(false)
	for i, part := range parts {
		select {
		case <-ctx.Done():
			return
		case <-time.After(s.took):
		}
		s.mu.Lock()
		part.Few = false
		s.ready = append(s.ready, part)
		s.mu.Unlock()
		through(i + 1)
	}
}

func (s *slowly) Range(name string, offset, bytes int64) ([]byte, error) {
	s.mu.Lock()
	part := executor.Part{Blob: name, Offset: offset, Bytes: bytes}
	s.asked = append(s.asked, part)
	if !slices.Contains(s.ready, part) {
		s.before++
	}
	if s.busy {
		s.during++
	}
	s.mu.Unlock()
	return s.Content.Range(name, offset, bytes)
}

// Everything a program reads is made ready before it is asked for, and asked for while the rest is made ready; what all
// prefills read already while the prompt is still looked for; nothing twice.
func TestPartsAreMadeReadyAhead(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	p := batchPlan(t, m, []planir.Proc{proc("a", a, "")}, []int{1, 16, 32}, nil, 40, op.A8TQ8C, bySingle)
	for _, foresee := range []bool{false, true} {
		c, err := emit.NewContent(context.Background(), p, m, []driver.Compiler{hostcompiler.New()})
		if err != nil {
			t.Fatal(err)
		}
		src := &slowly{Content: c, took: time.Millisecond}
		x, err := executor.Open(context.Background(), p, src, executor.Options{Drivers: []driver.Driver{host.New()}, OnDemand: true})
		if err != nil {
			t.Fatal(err)
		}
		if foresee {
			x.Foresee(context.Background())
		}
		if len(src.asked) > 0 || len(x.Loaded()) > 0 {
			t.Errorf("opening asked for %d parts and loaded %q", len(src.asked), x.Loaded())
		}
		if _, err := x.Generate(context.Background(), []int32{1, 2, 3}, 1, &executor.Sampler{}, nil); err != nil {
			t.Fatal(err)
		}
		if got := x.Loaded(); !slices.Equal(got, []string{"prefill@16"}) {
			t.Errorf("loaded %q", got)
		}
		if len(src.asked) == 0 || src.before > 0 {
			t.Errorf("foresee %v: %d of %d parts were not ready when asked for", foresee, src.before, len(src.asked))
		}
		if src.during == 0 {
			t.Errorf("foresee %v: none of %d parts was asked for before the last one was ready", foresee, len(src.asked))
		}
		places := map[executor.Part]bool{}
		for _, r := range src.ready {
			if places[r] {
				t.Errorf("foresee %v: part %+v is made ready twice", foresee, r)
			}
			places[r] = true
		}
		if len(places) != len(src.asked) {
			t.Errorf("foresee %v: %d parts made ready, %d asked for", foresee, len(places), len(src.asked))
		}
		x.Close()
		c.Close()
	}
}

// Closing waits for what was begun ahead, and ends it: the source can be closed then.
func TestCloseEndsForesight(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	p := batchPlan(t, m, []planir.Proc{proc("a", a, "")}, []int{1, 16}, nil, 40, op.A8TQ8C, bySingle)
	c, err := emit.NewContent(context.Background(), p, m, []driver.Compiler{hostcompiler.New()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	src := &slowly{Content: c, took: time.Hour}
	x, err := executor.Open(context.Background(), p, src, executor.Options{Drivers: []driver.Driver{host.New()}, OnDemand: true})
	if err != nil {
		t.Fatal(err)
	}
	x.Foresee(context.Background())
	x.Close()
	if src.busy || !src.begun {
		t.Errorf("closed while parts are made ready: busy %v, begun %v", src.busy, src.begun)
	}
}

// refusing is a source that refuses the last part that is made ready, as a bundle does where that is damaged.
type refusing struct{ *slowly }

var errDamaged = errors.New("damaged")

func (r *refusing) Range(name string, offset, bytes int64) ([]byte, error) {
	data, err := r.slowly.Range(name, offset, bytes)
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := r.parts[len(r.parts)-1]; last.Blob == name && last.Offset == offset {
		return nil, errDamaged
	}
	return data, err
}

// Where the last weights of a program are refused, no step of it has run, no token comes out, and nothing is made ready
// any more.
func TestNothingRunsBeforeAllWeightsAreReleased(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	p := batchPlan(t, m, []planir.Proc{proc("a", a, "")}, []int{1, 16}, nil, 40, op.A8TQ8C, bySingle)
	c, err := emit.NewContent(context.Background(), p, m, []driver.Compiler{hostcompiler.New()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	src := &refusing{&slowly{Content: c, took: time.Millisecond}}
	steps := 0
	x, err := executor.Open(context.Background(), p, src, executor.Options{Drivers: []driver.Driver{host.New()},
		OnDemand: true, Observe: func(executor.Observed) { steps++ }})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for range 2 { // also when it is tried again
		tokens := 0
		_, err = x.Generate(context.Background(), []int32{1, 2, 3}, 1, &executor.Sampler{}, func(int32) bool {
			tokens++
			return true
		})
		if !errors.Is(err, errDamaged) || steps > 0 || tokens > 0 || len(x.Loaded()) > 0 {
			t.Errorf("got %v after %d steps and %d tokens, with %q loaded", err, steps, tokens, x.Loaded())
		}
		if src.busy {
			t.Error("parts are still made ready")
		}
	}
}

// rowless is a source that refuses small parts of a table, which are its rows.
type rowless struct {
	*slowly
	table planir.Placement
}

func (r *rowless) Range(name string, offset, bytes int64) ([]byte, error) {
	data, err := r.slowly.Range(name, offset, bytes)
	if r.table.Offset <= offset && offset < r.table.Offset+r.table.Pack.Bytes && bytes < r.table.Pack.Bytes {
		return nil, errDamaged
	}
	return data, err
}

// A table of which a short prompt reads a few rows is neither made ready nor asked for as a whole where programs load
// on demand, and the tokens are the same. A row that is refused ends the call with the reason.
func TestTablesAreReadByRow(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	p := batchPlan(t, m, []planir.Proc{proc("a", a, "")}, []int{1, 16}, nil, 40, op.A32W16, bySingle)
	var table planir.Placement
	for _, blob := range p.Program.WeightBlobs() {
		for _, placed := range blob.Packs {
			if strings.HasPrefix(placed.Pack.Weight, "embed") {
				table = placed
			}
		}
	}
	if table.Pack == nil {
		t.Fatal("the plan has no table")
	}
	run := func(least int64, damaged bool) (tokens []int32, whole bool, err error) {
		defer executor.SetLeastTable(least)()
		content, err := emit.NewContent(context.Background(), p, m, []driver.Compiler{hostcompiler.New()})
		if err != nil {
			t.Fatal(err)
		}
		defer content.Close()
		noted := &slowly{Content: content}
		var src executor.Source = noted
		if damaged {
			src = &rowless{noted, table}
		}
		x, err := executor.Open(context.Background(), p, src,
			executor.Options{Drivers: []driver.Driver{host.New()}, OnDemand: true})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		x.Foresee(context.Background())
		_, err = x.Generate(context.Background(), []int32{1, 2, 3}, 3, &executor.Sampler{}, func(token int32) bool {
			tokens = append(tokens, token)
			return true
		})
		whole = slices.ContainsFunc(append(noted.ready, noted.asked...), func(part executor.Part) bool {
			return part.Offset == table.Offset && part.Bytes == table.Pack.Bytes
		})
		return tokens, whole, err
	}
	want, whole, err := run(table.Pack.Bytes, false)
	if err != nil || !whole {
		t.Fatalf("a small table: got %v, all of it was asked for: %v", err, whole)
	}
	got, whole, err := run(table.Pack.Bytes-1, false)
	if err != nil || whole || !slices.Equal(got, want) {
		t.Errorf("by row: got %v, want %v, error %v; all of the table was asked for: %v", got, want, err, whole)
	}
	if got, _, err = run(table.Pack.Bytes-1, true); !errors.Is(err, errDamaged) || len(got) > 0 {
		t.Errorf("damaged rows: got tokens %v and error %v", got, err)
	}
}
