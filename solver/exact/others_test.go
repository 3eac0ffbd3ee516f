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

// Name implements milp.Engine.
func (c command) Name() string { return c.name }

// Solve writes the model to a file, runs the command and reads its answer.
func (c command) Solve(ctx context.Context, posed *milp.Model, _ milp.Options) (out milp.Result, err error) {
	const model = "model.lp"
	file, err := os.Create(filepath.Join(c.dir, model))
	if err != nil {
		return out, err
	}
	if err := errors.Join(posed.WriteLP(file), file.Close()); err != nil {
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
	values, err := c.read(string(text), len(posed.Vars))
	if err != nil {
		return out, err
	}
	for i := range posed.Vars {
		if posed.Vars[i].Integer {
			values[i] = math.Round(values[i])
		}
	}
	values, objective, err := posed.Verify(values)
	if err != nil {
		return out, err
	}
	return milp.Result{Status: milp.Optimal, X: values, Objective: objective, Bound: objective}, nil
}

// read reads the values of so many variables from a solution. Both programs number variables in the order of the model;
// cbc names those that are not 0.
func (c command) read(text string, vars int) ([]float64, error) {
	values := make([]float64, vars)
	set := func(number, value string, from int) error {
		at, err1 := strconv.Atoi(number)
		parsed, err2 := strconv.ParseFloat(value, 64)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		if at -= from; at < len(values) { // the last one is the constant
			values[at] = parsed
		}
		return nil
	}
	isOptimal := false
	for i, line := range strings.Split(text, "\n") {
		fields := strings.Fields(strings.ReplaceAll(line, "**", " "))
		var err error
		switch {
		case c.name == "cbc" && i == 0:
			isOptimal = strings.HasPrefix(line, "Optimal")
		case c.name == "cbc" && len(fields) >= 3:
			err = set(fields[0], fields[2], 0)
		case c.name == "glpk" && len(fields) >= 5 && fields[0] == "s":
			isOptimal = fields[4] == "o"
		case c.name == "glpk" && len(fields) >= 3 && fields[0] == "j":
			err = set(fields[1], fields[2], 1)
		}
		if err != nil {
			return nil, err
		}
	}
	if !isOptimal {
		return nil, fmt.Errorf("%s: not optimal:\n%.400s", c.name, text)
	}
	return values, nil
}

// GLPK and CBC find what exact finds, for models of all families.
func TestOtherProgramsAgree(t *testing.T) {
	require.Slow(t)
	var joint []*problem.Joint
	for seed := uint64(0); len(joint) < 2; seed++ {
		posed := medium(seed)
		solution, err := exact.Engine{}.Joint(t.Context(), posed, problem.Limits{})
		if err == nil && solution.Status == problem.Optimal {
			joint = append(joint, posed)
		}
	}

	var alone []*problem.Partition // without what joint problems share
	for seed := range uint64(2) {
		partition := medium(seed).Parts[0].Partition
		for i := range partition.Chains {
			for j := range partition.Chains[i].Items {
				for k := range partition.Chains[i].Items[j].Choices {
					partition.Chains[i].Items[j].Choices[k].Assets = nil
				}
			}
		}
		alone = append(alone, partition)
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

			for i, posed := range []*problem.Tiers{tiers, prune} {
				got, err1 := relay.Tiers(t.Context(), posed, problem.Limits{})
				want, err2 := exact.Engine{}.Tiers(t.Context(), posed, problem.Limits{})
				same(fmt.Sprintf("tiers %d", i), got.Objective, want.Objective, err1, err2)
			}
			got, err1 := relay.Buckets(t.Context(), buckets, problem.Limits{})
			want, err2 := exact.Engine{}.Buckets(t.Context(), buckets, problem.Limits{})
			same("buckets", got.Objective, want.Objective, err1, err2)
			for i, posed := range scales {
				got, err1 := relay.Scales(t.Context(), posed, problem.Limits{})
				want, err2 := exact.Scales(posed)
				same(fmt.Sprintf("scales %d", i), int64(1e12*got.MSE), int64(1e12*want.MSE), err1, err2)
			}
			for i, posed := range joint {
				got, err1 := relay.Joint(t.Context(), posed, problem.Limits{})
				want, err2 := exact.Engine{}.Joint(t.Context(), posed, problem.Limits{})
				same(fmt.Sprintf("joint %d", i), got.Objective, want.Objective, err1, err2)
				first, err1 := relay.Partition(t.Context(), alone[i])
				second, err2 := exact.Engine{}.Partition(t.Context(), alone[i])
				same(fmt.Sprintf("partition %d", i), first.ObjectiveNS, second.ObjectiveNS, err1, err2)
			}
		})
	}
}
