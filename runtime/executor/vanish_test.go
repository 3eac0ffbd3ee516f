//go:build linux || darwin || freebsd

package executor_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/drivertest"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/driver/host/kernel"
	"github.com/hetc/hetc/runtime/executor"
)

// mappedWeights serves the weights of a plan from a mapped file, one blob after another.
type mappedWeights struct {
	*emit.Content
	region  *mem.Region
	path    string
	from    map[string]int64
	changed error // what Unchanged says
}

func (s *mappedWeights) Range(name string, offset, bytes int64) ([]byte, error) {
	at := s.from[name] + offset
	return s.region.Bytes()[at:][:bytes:bytes], nil
}

func (s *mappedWeights) Unchanged() error { return s.changed }

// mapWeights writes the weights of a plan to a file and maps it.
func mapWeights(t *testing.T, p *planir.Plan, m *models.Model) *mappedWeights {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c := contentOf(t, p, m)
	s := &mappedWeights{Content: c, path: filepath.Join(t.TempDir(), "weights"), from: map[string]int64{}}
	f, err := os.Create(s.path)
	must(err)

	end := int64(0)
	for _, blob := range p.Program.WeightBlobs() {
		end = (end + 4095) / 4096 * 4096
		s.from[blob.Name] = end
		for _, placed := range blob.Packs {
			data, err := c.Range(blob.Name, placed.Offset, placed.Pack.Bytes)
			must(err)
			_, err = f.WriteAt(data, end+placed.Offset)
			must(err)
		}
		end += blob.Size
	}

	must(f.Truncate(end))
	s.region, err = mem.Map(f)
	must(err)
	must(f.Close())
	t.Cleanup(func() { s.region.Close() })
	return s
}

// A page of weights that goes away under any kernel, on the lane's thread or a helper's, is an error of the call. The
// machine stays whole and goes on once the pages are there again.
func TestWeightsThatVanish(t *testing.T) {
	require.Slow(t)
	if len(kernel.Sets()) == 0 {
		t.Fatal("no kernel sets")
	}
	demoModel := open(t)
	experts, err := models.Open("../../testdata/arch/mixtral-full")
	if err != nil {
		t.Fatal(err)
	}
	defer experts.Close()
	s0, s1 := cores(t)
	for _, set := range kernel.Sets() {
		for _, scheme := range []op.Scheme{op.A32W32, op.A32W16, op.A8TQ8C, op.A8TQ4B32, op.A8TQ4B128} {
			for _, both := range []bool{false, true} {
				// The fastest kernels are tested in every scheme, others in three.
				few := drivertest.Race || set.Name != kernel.Best().Name
				if few && (both || scheme == op.A32W16 || scheme == op.A8TQ4B128) {
					continue
				}
				m := demoModel
				if both && scheme == op.A8TQ8C {
					m = experts
				}
				procs := []planir.Proc{proc("a", s0, set.Name), proc("b", s1, set.Name)}
				layout := layoutOf(byPairs)
				if both { // one lane and its helper
					procs, layout = []planir.Proc{proc("a", s0+"-"+s1, set.Name)}, bySingle
				}
				t.Run(fmt.Sprintf("%s %s helpers=%v", set.Name, scheme, both), func(t *testing.T) {
					vanish(t, m, makePlan(t, m, planSpec{
						procs: procs, rows: []int{1, 16}, context: 64, scheme: scheme, layout: layout,
					}))
				})
			}
		}
	}
}

// vanish cuts the file of weights shorter and shorter, and makes it whole again.
func vanish(t *testing.T, m *models.Model, p *planir.Plan) {
	s := mapWeights(t, p, m)
	options := executor.Options{Drivers: []driver.Driver{host.New()}, Deadline: time.Minute}
	x, err := executor.Open(context.Background(), p, s, options)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	whole, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	generate := func() ([]int32, error) {
		x.Reset()
		g, err := x.Generate(context.Background(), []int32{1, 30, 40, 50, 60}, 6, &executor.Sampler{}, nil)
		return g.Tokens, err
	}
	want, err := generate()
	if err != nil {
		t.Fatal(err)
	}

	faults := 0
	const cuts = 9
	for cut := cuts - 1; cut >= 0; cut-- {
		returns(t, func() {
			if err := os.Truncate(s.path, int64(len(whole)/cuts*cut)); err != nil {
				t.Error(err)
			}
			_, err := generate()
			ofStep := diag.ClassOf(err) == diag.ClassIO && strings.Contains(err.Error(), "step")
			switch {
			case mem.IsFault(err) && ofStep:
				faults++
			case err != nil: // zeros behind the end of the last page have been read
				t.Errorf("cut at %d/%d: got %v, want a fault of a step", cut, cuts, err)
			}

			s.changed = errors.New("the file was cut")
			if _, err := generate(); !errors.Is(err, s.changed) {
				t.Errorf("cut at %d/%d: got %v, want what the source says", cut, cuts, err)
			}
			s.changed = nil
		})
	}
	if faults < cuts-2 {
		t.Errorf("%d faults in %d calls", faults, cuts)
	}

	if err := os.WriteFile(s.path, whole, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := generate(); err != nil || !slices.Equal(got, want) {
		t.Errorf("after the pages came back: got %v, %v, want %v", got, err, want)
	}
}
