package sim_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
)

// What the papers print of forms: llm.npu sec. 4 to the letter; of HeteroInfer sec. 3.2 the direction and that the order is nothing
// to a square product.
func TestFormsAsPrinted(t *testing.T) {
	s := phone(t)
	npu := s.Processor("npu")
	launch := 1e3 * npu.LaunchUS
	in := func(o op.Op, f op.Form) float64 {
		o.Form = f
		return float64(ns(t, s, "npu", o)) - launch
	}
	square := matmul(1024, 2048, 2048, op.A8TQ8C)
	if got := in(square, "conv 1024x1") / in(square, "conv 32x32"); math.Abs(got-1.62) > 0.001 {
		t.Errorf("32x32 is %.4f times as fast as 1024x1, want 1.62", got)
	}
	if a, b := in(square, ""), in(square, "conv 1024x1"); a != b {
		t.Errorf("one pixel high takes %v ns, the default %v", b, a)
	}
	last := math.Inf(1)
	for _, f := range []op.Form{"conv 1x1024", "conv 2x512", "conv 4x256", "conv 8x128", "conv 16x64", "conv 32x32"} {
		took := in(square, f)
		if w, h, _ := f.Image(); took >= last || took != in(square, op.ConvForm(h, w)) {
			t.Errorf("%s takes %v ns, what is less square %v, turned %v", f, took, last, in(square, op.ConvForm(h, w)))
		}
		last = took
	}
	for _, scheme := range []op.Scheme{op.A32W32, op.A8TQ4B32} {
		x := npu.Sim.Schemes[scheme]
		x.Step = capability.Tile{}
		npu.Sim.Schemes[scheme] = x
		wide, tall := matmul(256, 4096, 14336, scheme), matmul(14336, 4096, 256, scheme)
		if a, b := in(wide, ""), in(wide, op.Swapped); a < 1.5*b {
			t.Errorf("%s: %v ns weight first, %v in the default order", wide.Key(), b, a)
		}
		if a, b := in(tall, ""), in(tall, op.Swapped); a > b {
			t.Errorf("%s: %v ns weight first, %v in the default order", tall.Key(), b, a)
		}
		even := matmul(2048, 4096, 2048, scheme)
		if a, b := in(even, ""), in(even, op.Swapped); math.Abs(a/b-1) > 1e-6 {
			t.Errorf("%s: %v ns weight first, %v in the default order", even.Key(), b, a)
		}
	}
}

// A form that the SoC does not list has no time, is not compiled, and not loaded.
func TestFormsNotListed(t *testing.T) {
	s := phone(t)
	for _, c := range []struct {
		proc string
		o    op.Op
	}{
		{"gpu", op.Op{Kind: op.MatMul, M: 64, K: 64, N: 64, Scheme: op.A8TQ8C, Form: op.Swapped}},
		{"npu", op.Op{Kind: op.MatMul, M: 64, K: 64, N: 64, Scheme: op.A8TQ8C, Form: op.Swapped}},
		{"npu", op.Op{Kind: op.MatMul, M: 64, K: 64, N: 64, Scheme: op.A8TQ4B32, Form: "conv 8x8"}},
	} {
		if _, err := sim.NS(s, c.proc, c.o); diag.ClassOf(err) != diag.ClassInfeasible || !strings.Contains(err.Error(), string(c.o.Form)) {
			t.Errorf("%s on %s: %v", c.o.Key(), c.proc, err)
		}
		g := op.Single(c.o, pack.N32)
		if _, err := sim.NewCompiler(s).Compile(context.Background(), g, nil, driver.Target{Proc: c.proc}); err == nil || !strings.Contains(err.Error(), string(c.o.Form)) {
			t.Errorf("%s compiled for %s: %v", c.o.Key(), c.proc, err)
		}
	}
}
