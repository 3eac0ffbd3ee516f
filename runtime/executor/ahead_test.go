package executor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
)

// slowly is a source that takes its time to make each part ready and notes what it was asked for, in order.
type slowly struct {
	*emit.Content
	took   time.Duration // for each part
	mu     sync.Mutex
	parts  []executor.Part // of the latest call of Ahead
	ready  []executor.Part
	asked  []executor.Part
	before int // parts asked for that had not been made ready
	during int // parts asked for while others were made ready
	begun  bool
	busy   bool
}

// openOnDemand opens a plan that loads its programs when they are needed, closed with the test.
func openOnDemand(t *testing.T, p *planir.Plan, src executor.Source) *executor.Machine {
	t.Helper()
	options := executor.Options{Drivers: []driver.Driver{host.New()}, OnDemand: true}
	x, err := executor.Open(context.Background(), p, src, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

// contentOf is what a bundle of the plan holds, closed with the test.
func contentOf(t testing.TB, p *planir.Plan, m *models.Model, more ...driver.Compiler) *emit.Content {
	t.Helper()
	c, err := emit.NewContent(context.Background(), p, m, append(more, hostcompiler.New()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
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

// Everything a program reads is made ready once, before it is asked for, and asked for while the rest is made ready.
// With Foresee this begins with what all prefills read, before the prompt is known.
func TestPartsAreMadeReadyAhead(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	p := batchPlan(t, m, nil, planSpec{
		procs: singleOn(a), rows: []int{1, 16, 32}, context: 40, scheme: op.A8TQ8C,
	})
	for _, foresee := range []bool{false, true} {
		t.Run(fmt.Sprintf("foresee %v", foresee), func(t *testing.T) {
			src := &slowly{Content: contentOf(t, p, m), took: time.Millisecond}
			x := openOnDemand(t, p, src)
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
				t.Errorf("%d of %d parts were not ready when asked for", src.before, len(src.asked))
			}
			if src.during == 0 {
				t.Errorf("none of %d parts was asked for before the last one was ready", len(src.asked))
			}
			places := map[executor.Part]bool{}
			for _, part := range src.ready {
				if places[part] {
					t.Errorf("part %+v is made ready twice", part)
				}
				places[part] = true
			}
			if len(places) != len(src.asked) {
				t.Errorf("%d parts made ready, %d asked for", len(places), len(src.asked))
			}
		})
	}
}

// Closing ends what was begun ahead and waits for it, so that the source can be closed then.
func TestCloseEndsForesight(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	p := batchPlan(t, m, nil, planSpec{procs: singleOn(a), rows: []int{1, 16}, context: 40, scheme: op.A8TQ8C})
	src := &slowly{Content: contentOf(t, p, m), took: time.Hour}
	x := openOnDemand(t, p, src)

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
	p := batchPlan(t, m, nil, planSpec{procs: singleOn(a), rows: []int{1, 16}, context: 40, scheme: op.A8TQ8C})
	src := &refusing{&slowly{Content: contentOf(t, p, m), took: time.Millisecond}}
	steps := 0
	x, err := executor.Open(context.Background(), p, src, executor.Options{
		Drivers:  []driver.Driver{host.New()},
		OnDemand: true,
		Observe:  func(executor.Observed) { steps++ },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	for range 2 { // also when it is tried again
		tokens := 0
		count := func(int32) bool {
			tokens++
			return true
		}

		_, err = x.Generate(context.Background(), []int32{1, 2, 3}, 1, &executor.Sampler{}, count)

		if !errors.Is(err, errDamaged) {
			t.Errorf("got %v, want %v", err, errDamaged)
		}
		if steps > 0 || tokens > 0 || len(x.Loaded()) > 0 {
			t.Errorf("%d steps have run and %d tokens come out, with %q loaded", steps, tokens, x.Loaded())
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

// A short prompt reads a few rows of a table. Where programs load on demand, the table is then neither made ready nor
// asked for as a whole, and the tokens are the same. A row that is refused ends the call with the reason.
func TestTablesAreReadByRow(t *testing.T) {
	m := open(t)
	a, _ := cores(t)
	p := batchPlan(t, m, nil, planSpec{procs: singleOn(a), rows: []int{1, 16}, context: 40, scheme: op.A32W16})
	table := embeddingTable(t, p)
	run := func(least int64, damaged bool) (tokens []int32, whole bool, err error) {
		defer executor.SetLeastTable(least)()
		noted := &slowly{Content: contentOf(t, p, m)}
		var src executor.Source = noted
		if damaged {
			src = &rowless{noted, table}
		}
		x := openOnDemand(t, p, src)
		x.Foresee(context.Background())
		_, err = x.Generate(context.Background(), []int32{1, 2, 3}, 3, &executor.Sampler{}, func(token int32) bool {
			tokens = append(tokens, token)
			return true
		})
		x.Close() // ends what is made ready ahead
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
	if err != nil {
		t.Errorf("by row: %v", err)
	}
	if whole || !slices.Equal(got, want) {
		t.Errorf("by row: got %v, want %v; all of the table was asked for: %v", got, want, whole)
	}

	got, _, err = run(table.Pack.Bytes-1, true)
	if !errors.Is(err, errDamaged) || len(got) > 0 {
		t.Errorf("damaged rows: got tokens %v and error %v", got, err)
	}
}

// embeddingTable is where the plan's table of embeddings lies.
func embeddingTable(t *testing.T, p *planir.Plan) planir.Placement {
	t.Helper()
	for _, blob := range p.Program.WeightBlobs() {
		for _, placed := range blob.Packs {
			if strings.HasPrefix(placed.Pack.Weight, "embed") {
				return placed
			}
		}
	}
	t.Fatal("the plan has no table")
	return planir.Placement{}
}
