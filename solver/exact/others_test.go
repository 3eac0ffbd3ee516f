package exact_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
	"github.com/hetc/hetc/solver/exact"
	"github.com/hetc/hetc/solver/milp"
	"github.com/hetc/hetc/solver/problem"
)

// command solves models with another solver's command, through a file: a general engine whose answers a relay reads and
// verifies.
type command struct {
	dir, name string
}

func (c command) Name() string { return c.name }

func (c command) Solve(ctx context.Context, m *milp.Model, _ milp.Options) (out milp.Result, err error) {
	const model = "model.lp"
	f, err := os.Create(filepath.Join(c.dir, model))
	if err != nil {
		return out, err
	}
	if err := errors.Join(m.WriteLP(f), f.Close()); err != nil {
		return out, err
	}
	args := []string{"cbc", model, "ratio", "0", "allow", "0", "solve", "solution", "out.txt"}
	if c.name == "glpk" {
		args = []string{"glpsol", "--lp", model, "--min", "-w", "out.txt"}
	}
	run := exec.CommandContext(ctx, args[0], args[1:]...)
	run.Dir = c.dir
	if text, err := run.CombinedOutput(); err != nil {
		return out, fmt.Errorf("%s: %w\n%s", args[0], err, text)
	}
	text, err := os.ReadFile(filepath.Join(c.dir, "out.txt"))
	if err != nil {
		return out, err
	}
	// Both number variables in the order of the model; cbc names those that are not 0.
	x := make([]float64, len(m.Vars))
	set := func(number, value string, from int) error {
		j, err1 := strconv.Atoi(number)
		v, err2 := strconv.ParseFloat(value, 64)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if j -= from; j < len(x) { // the last one is the constant
			if x[j] = v; m.Vars[j].Integer {
				x[j] = math.Round(v)
			}
		}
		return nil
	}
	optimal := false
	for i, line := range strings.Split(string(text), "\n") {
		f := strings.Fields(strings.ReplaceAll(line, "**", " "))
		switch {
		case c.name == "cbc" && i == 0:
			optimal = strings.HasPrefix(line, "Optimal")
		case c.name == "cbc" && len(f) >= 3:
			err = set(f[0], f[2], 0)
		case c.name == "glpk" && len(f) >= 5 && f[0] == "s":
			optimal = f[4] == "o"
		case c.name == "glpk" && len(f) >= 3 && f[0] == "j":
			err = set(f[1], f[2], 1)
		}
		if err != nil {
			return out, err
		}
	}
	if !optimal {
		return out, fmt.Errorf("%s: not optimal:\n%.400s", args[0], text)
	}
	x, objective, err := m.Verify(x)
	if err != nil {
		return out, err
	}
	return milp.Result{Status: milp.Optimal, X: x, Objective: objective, Bound: objective}, nil
}

// GLPK and CBC find what exact finds, for models of all families.
func TestOtherProgramsAgree(t *testing.T) {
	require.Slow(t)
	var joint []*problem.Joint
	for seed := uint64(0); len(joint) < 2; seed++ {
		j := medium(seed)
		if s, err := (exact.Engine{}).Joint(t.Context(), j, problem.Limits{}); err == nil && s.Status == problem.Optimal {
			joint = append(joint, j)
		}
	}
	var alone []*problem.Partition // without what joint problems share
	for seed := range uint64(2) {
		p := medium(seed).Parts[0].Partition
		for c := range p.Chains {
			for i := range p.Chains[c].Items {
				for k := range p.Chains[c].Items[i].Choices {
					p.Chains[c].Items[i].Choices[k].Assets = nil
				}
			}
		}
		alone = append(alone, p)
	}
	tiers := problem.GenerateTiers(2, 2, 6, 3)
	prune := problem.GenerateTiers(3, 2, 6, 3)
	prune.Drop, prune.MaxDropPPM = true, 60_000
	buckets := problem.BucketExample(16, 3)
	scales := mediumScales(2)
	for _, program := range []struct{ name, file string }{{"glpk", "glpsol"}, {"cbc", "cbc"}} {
		t.Run(program.name, func(t *testing.T) {
			if _, err := exec.LookPath(program.file); err != nil {
				require.Skip(t, program.name, err)
			}
			relay := problem.Relay{General: command{t.TempDir(), program.name}}
			same := func(name string, got, want int64, err1, err2 error) {
				t.Helper()
				if err := errors.Join(err1, err2); err != nil {
					t.Errorf("%s: %v", name, err)
				} else if math.Abs(float64(got-want)) > 1e-6*float64(want) {
					t.Errorf("%s: %d, and exact %d", name, got, want)
				}
			}
			for i, p := range []*problem.Tiers{tiers, prune} {
				a, err1 := relay.Tiers(t.Context(), p, problem.Limits{})
				b, err2 := exact.Engine{}.Tiers(t.Context(), p, problem.Limits{})
				same(fmt.Sprintf("tiers %d", i), a.Objective, b.Objective, err1, err2)
			}
			a, err1 := relay.Buckets(t.Context(), buckets, problem.Limits{})
			b, err2 := exact.Engine{}.Buckets(t.Context(), buckets, problem.Limits{})
			same("buckets", a.Objective, b.Objective, err1, err2)
			for i, s := range scales {
				x, err1 := relay.Scales(t.Context(), s, problem.Limits{})
				y, err2 := exact.Scales(s)
				same(fmt.Sprintf("scales %d", i), int64(1e12*x.MSE), int64(1e12*y.MSE), err1, err2)
			}
			for i, j := range joint {
				a, err1 := relay.Joint(t.Context(), j, problem.Limits{})
				b, err2 := exact.Engine{}.Joint(t.Context(), j, problem.Limits{})
				same(fmt.Sprintf("joint %d", i), a.Objective, b.Objective, err1, err2)
				c, err1 := relay.Partition(t.Context(), alone[i])
				d, err2 := exact.Engine{}.Partition(t.Context(), alone[i])
				same(fmt.Sprintf("partition %d", i), c.ObjectiveNS, d.ObjectiveNS, err1, err2)
			}
		})
	}
}
