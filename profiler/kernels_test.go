package profiler

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/hetc/hetc/internal/require"

	compiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/runtime/driver/host"
)

// Every kernel set is measured against its own bounds, on one core and on all, through the real driver.
func TestKernelsAreMeasuredAgainstTheirBounds(t *testing.T) {
	require.Slow(t)
	cores := hostCores(t)
	cores = cores[:min(2, len(cores))]
	sets := []string{"portable", host.Kernels()}
	rounds := 0
	list, err := Kernels(context.Background(), KernelOptions{Driver: host.New(), Compiler: compiler.New(), Sets: sets,
		Marked: sets[1], Cores: cores, Rounds: 3, Seed: 1,
		Progress: func(round int) { rounds = round + 1 }, small: true})
	if err != nil {
		t.Fatal(err)
	}
	if rounds != 3 {
		t.Errorf("%d rounds told, want 3", rounds)
	}
	seen := map[string]bool{}
	for i, kernel := range list {
		seen[fmt.Sprintf("%s %d %s %s %s", kernel.Set, kernel.Cores, kernel.What, kernel.Shape, kernel.Unit)] = true
		if !(kernel.Rate > 0) || math.IsInf(kernel.Rate, 0) {
			t.Errorf("rate of %+v", kernel)
		}
		if kernel.Rounds != 3 || kernel.AllRate != kernel.Rate || kernel.AllShare != kernel.Share {
			t.Errorf("three rounds are too few to leave any out: %+v", kernel)
		}
		if bounded := kernel.Of != ""; bounded != (kernel.Share > 0) || kernel.Low > kernel.Share ||
			kernel.High < kernel.Share {
			t.Errorf("share of %+v", kernel)
		}
		if kernel.Mark > 0 && kernel.Set != sets[1] ||
			kernel.Reached() != (kernel.Mark == 0 || kernel.Share >= kernel.Mark) {
			t.Errorf("mark of %+v", kernel)
		}
		if i > 0 && list[i-1].Set == kernel.Set && list[i-1].Cores > kernel.Cores {
			t.Errorf("%+v after %+v", kernel, list[i-1])
		}
	}
	for _, set := range sets {
		for _, want := range []string{
			"1 int8 peak  Gop/s", "1 f32 peak  Gop/s", "1 stream  GB/s", "1 a8t/q8c matmul 5x64x96 Gop/s",
			"1 a32/w32 matmul 5x64x96 Gop/s",
			"1 a8t/q8c matmul 1x64x96 GB/s", "1 a8t/q4b32 matmul 1x64x96 GB/s", "1 attention 5 of 5, 8x64 f16 Gop/s",
			"1 attention 5 of 20, 8x64 f32 Gop/s",
			"1 attention 1 of 20, 8x64 f16 GB/s", "1 attention 1 of 20, 1x80 f16 GB/s",
		} {
			if !seen[set+" "+want] {
				t.Errorf("no line %q", set+" "+want)
			}
		}
		for _, want := range []string{
			"2 int8 peak  Gop/s", "2 a8t/q8c matmul 5x64x96 Gop/s", "2 a32/w32 matmul 5x64x96 Gop/s",
			"2 a8t/q8c matmul 1x64x96 GB/s",
		} {
			if len(cores) > 1 && !seen[set+" "+want] {
				t.Errorf("no line %q", set+" "+want)
			}
		}
	}
}

// Rounds in which a core began fewer instructions than it can do not count, on any of a line's cores, unless too few
// are left.
func TestDisturbedRoundsDoNotCount(t *testing.T) {
	x := &kernelLine{}
	for i := range 30 {
		core := func(busy bool) float64 {
			if busy {
				return 10 + float64(i)/10
			}
			return 20 - float64(i)/20
		}
		x.issued = append(x.issued, []float64{core(i%2 == 1), core(i%3 == 2)})
		x.rates = append(x.rates, float64(i))
	}
	c := &comparison{options: KernelOptions{Cores: []int{0, 1}}, lines: []*kernelLine{x}}
	best := c.bestIssue()
	if !(best[0] > 19 && best[0] <= 20 && best[1] > 19 && best[1] <= 20) {
		t.Errorf("best %v, want about 20", best)
	}
	var want []float64
	for i := range 30 {
		if i%2 == 0 && i%3 != 2 {
			want = append(want, float64(i))
		}
	}
	own := x.undisturbed(best)
	if got := undisturbedOnly(x.rates, own); !slices.Equal(got, want) {
		t.Errorf("rounds %v count, want %v", got, want)
	}
	for i := range own[:20] {
		own[i] = false
	}
	if got := undisturbedOnly(x.rates, own); len(got) != 30 {
		t.Errorf("%d rounds count, want all: too few are left", len(got))
	}
	for _, x := range (&kernelLine{issued: [][]float64{nil, nil}}).undisturbed([]float64{0}) {
		if !x {
			t.Error("a round that nobody could judge does not count")
		}
	}
}

// An interruption ends the comparison, and so does a set that this CPU lacks.
func TestKernelsEndWithTheirContext(t *testing.T) {
	require.Slow(t)
	o := KernelOptions{Driver: host.New(), Compiler: compiler.New(), Sets: []string{"portable"},
		Cores: hostCores(t)[:1], Rounds: 1000000, small: true}
	ctx, cancel := context.WithCancel(context.Background())
	o.Progress = func(round int) {
		if round == 1 {
			cancel()
		}
	}
	if _, err := Kernels(ctx, o); err == nil {
		t.Error("not interrupted")
	}
	o.Sets = []string{"vliw"}
	if _, err := Kernels(context.Background(), o); err == nil {
		t.Error("no error for an unknown set")
	}
}
