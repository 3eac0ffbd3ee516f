package sim_test

import (
	"math"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/sim"
	"github.com/hetc/hetc/socs"
)

// Products on the NPU as images take the times that llm.npu prints: an image of 32x32 is 1.62 times as fast as one of
// 1024x1, and less square images take longer (section 4).
func TestImagesAsPrinted(t *testing.T) {
	soc := phone(t)
	took := func(form op.Form) float64 {
		return formNS(t, soc, matmul(1024, 2048, 2048, op.A8TQ8C), form)
	}

	if got := took("conv 1024x1") / took("conv 32x32"); math.Abs(got-1.62) > 0.001 {
		t.Errorf("32x32 is %.4f times as fast as 1024x1, want 1.62", got)
	}
	if plain, line := took(""), took("conv 1024x1"); plain != line {
		t.Errorf("one pixel high takes %v ns, the default %v", line, plain)
	}

	last := math.Inf(1)
	for _, form := range []op.Form{
		"conv 1x1024", "conv 2x512", "conv 4x256", "conv 8x128", "conv 16x64", "conv 32x32",
	} {
		got := took(form)
		if got >= last {
			t.Errorf("%s takes %v ns, the less square image %v", form, got, last)
		}
		width, height, _ := form.Image()
		if turned := took(op.ConvForm(height, width)); got != turned {
			t.Errorf("%s takes %v ns, turned %v", form, got, turned)
		}
		last = got
	}
}

// The order of the operands matters as HeteroInfer prints it: the weight first is faster for wide products and slower
// for tall ones, and a square product takes the same time in both orders (section 3.2).
func TestOrdersAsPrinted(t *testing.T) {
	soc := phone(t)
	for _, scheme := range []op.Scheme{op.A32W32, op.A8TQ4B32} {
		rates := soc.Processor("npu").Sim.Schemes
		continuous := rates[scheme]
		continuous.Step = capability.Tile{}
		rates[scheme] = continuous
		for _, c := range []struct {
			product   op.Op
			min, max  float64 // of the default order's time over the other's
			direction string
		}{
			{product: matmul(256, 4096, 14336, scheme), min: 1.5, max: math.Inf(1), direction: "faster"},
			{product: matmul(14336, 4096, 256, scheme), min: 0, max: 1, direction: "no faster"},
			{product: matmul(2048, 4096, 2048, scheme), min: 1 - 1e-6, max: 1 + 1e-6, direction: "as fast"},
		} {
			plain, swapped := formNS(t, soc, c.product, ""), formNS(t, soc, c.product, op.Swapped)
			if ratio := plain / swapped; ratio < c.min || ratio > c.max {
				t.Errorf("%s: %v ns weight first, %v in the default order, want weight first %s", c.product.Key(),
					swapped, plain, c.direction)
			}
		}
	}
}

// formNS returns how long the NPU takes for an operator in a form, without the launch.
func formNS(t *testing.T, soc *socs.SoC, o op.Op, form op.Form) float64 {
	t.Helper()
	o.Form = form
	return float64(ns(t, soc, "npu", o)) - 1e3*soc.Processor("npu").LaunchUS
}

// A form that the SoC does not list has no time and is not compiled.
func TestFormsNotListed(t *testing.T) {
	soc := phone(t)
	for _, c := range []struct {
		proc   string
		scheme op.Scheme
		form   op.Form
	}{
		{proc: "gpu", scheme: op.A8TQ8C, form: op.Swapped},
		{proc: "npu", scheme: op.A8TQ8C, form: op.Swapped},
		{proc: "npu", scheme: op.A8TQ4B32, form: "conv 8x8"},
	} {
		product := matmul(64, 64, 64, c.scheme)
		product.Form = c.form

		_, err := sim.NS(soc, c.proc, product)
		if diag.ClassOf(err) != diag.ClassInfeasible || !strings.Contains(err.Error(), string(c.form)) {
			t.Errorf("%s on %s: %v", product.Key(), c.proc, err)
		}
		graph := op.Single(product, pack.N32)
		_, err = sim.NewCompiler(soc).Compile(t.Context(), graph, nil, driver.Target{Proc: c.proc})
		if err == nil || !strings.Contains(err.Error(), string(c.form)) {
			t.Errorf("%s compiled for %s: %v", product.Key(), c.proc, err)
		}
	}
}
