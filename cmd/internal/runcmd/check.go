package runcmd

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models/safetensors"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/executor"
)

// runDump writes the logits of every prompt position.
func (o *options) runDump(ctx context.Context, ui *cli.Streams, m *executor.Machine, prompt []int32) error {
	all, vocab, err := logits(ctx, m, prompt)
	if err != nil {
		return err
	}
	if err := writeLogits(o.dumpLogits, all, len(prompt), vocab); err != nil {
		return err
	}
	ui.Printf("%s: logits [%d,%d]\n", o.dumpLogits, len(prompt), vocab)
	return ui.Result(map[string]any{"file": o.dumpLogits, "rows": len(prompt), "vocabulary": vocab})
}

// logits executes the prompt and returns the logits of every position, row-major.
func logits(ctx context.Context, m *executor.Machine, prompt []int32) (all []float32, vocab int, err error) {
	const copies, value = 2, 4 // what is compared with, or written; bytes
	if err := EnoughMemory(nil, copies*value*int64(len(prompt))*int64(m.Vocabulary()),
		machine.FreeMemory()); err != nil {
		return nil, 0, fmt.Errorf("logits of %d tokens: %w", len(prompt), err)
	}
	m.Reset()
	err = m.Do(ctx, func(c *executor.Control) error {
		_, err := c.Forward(prompt, executor.WantAll, func(_ int, row []float32) error {
			vocab = len(row)
			all = append(all, row...)
			return nil
		})
		return err
	})
	return all, vocab, err
}

// checked is how far an execution is from the reference.
type checked struct {
	Positions int
	// largest difference of a logit; divergence of the execution from the reference in nats per position; share
	// of positions with the same likeliest token, 0 to 1
	MaxAbsDiff, MeanKL, SameTop float64
}

// Limits of --check. Float32 programs differ from the reference by rounding alone. With quantised activations a
// rounding difference moves single activations to the next of 255 steps. Later layers amplify that to about the cost of
// the quantisation itself: mean KL 0.0003 to 0.0007 between equally good executions of the small demo model. A wrong
// shard costs far more than the limit.
const (
	checkAbs = 1e-3
	checkKL  = 0.01
)

// runCheck executes the prompt with the reference program too, and fails with class ClassRun unless both agree.
func (o *options) runCheck(
	ctx context.Context, ui *cli.Streams, b *opened, machine *executor.Machine, prompt []int32, drivers []driver.Driver,
) error {
	if !b.Has(referencePlan) {
		return diag.New(diag.ClassInput, "--check needs a reference program, and this bundle has none").
			WithHint("emit it with --with-reference")
	}
	plan, err := b.plan(referencePlan)
	if err != nil {
		return err
	}
	// Both programs are open at once, but execute one after the other.
	ref, err := Execute(ctx, plan, b.reference(), 0,
		executor.Options{Drivers: drivers, Deadline: o.deadline, Checked: true})
	if err != nil {
		return err
	}
	defer func() { _ = b.noteLeftBehind(ref.Close()) }()
	// the same prompt through both programs
	got, vocab, err := logits(ctx, machine, prompt)
	if err != nil {
		return err
	}
	want, _, err := logits(ctx, ref, prompt)
	if err != nil {
		return err
	}
	checked := compare(got, want, vocab)
	// So are plans whose cache rounds keys and values, which the reference does not, and those that leave out positions
	// or rows of experts: where two of these are nearly worth the same, the reference may leave out the other one.
	quantised := machine.Plan().KV != plan.KV || machine.Plan().ByCall() || slices.ContainsFunc(machine.Plan().Decisions,
		func(d planir.Decision) bool { return d.Scheme.Rounds() })
	ui.Notef("check: %d positions against the reference: largest difference %.2g, mean KL %.2g, same top token %.1f "+
		"%%", checked.Positions, checked.MaxAbsDiff, checked.MeanKL, 100*checked.SameTop)
	// A quantised plan cannot have the reference's logits: only its distribution is compared.
	if quantised && !(checked.MeanKL <= checkKL) || !quantised && !(checked.MaxAbsDiff <= checkAbs) {
		want := fmt.Sprintf("difference <= %.3g", checkAbs)
		if quantised {
			want = fmt.Sprintf("KL <= %.3g", checkKL)
		}
		return diag.New(diag.ClassRun,
			"check: execution differs from the reference: largest difference %.3g, mean KL %.3g, want %s",
			checked.MaxAbsDiff, checked.MeanKL, want).
			WithHint("this is a defect of a driver or of the plan's execution, not of quantisation; hetrun --steps " +
				"shows what ran where")
	}
	return nil
}

// compare measures how far two sets of logits [T,vocab] are apart.
func compare(got, want []float32, vocab int) checked {
	rows := len(want) / vocab
	result := checked{Positions: rows}
	if len(got) != len(want) {
		result.MaxAbsDiff, result.MeanKL = math.Inf(1), math.Inf(1)
		return result
	}
	same := 0
	for t := range rows {
		found, wanted := got[t*vocab:(t+1)*vocab], want[t*vocab:(t+1)*vocab]
		// KL(want || got), by the differences of log probabilities
		lg, lw := logSumExp(found), logSumExp(wanted)
		kl := 0.0
		for i := range wanted {
			d := math.Abs(float64(found[i]) - float64(wanted[i]))
			result.MaxAbsDiff = max(result.MaxAbsDiff, d) // the builtin: NaN sticks
			lp := float64(wanted[i]) - lw
			kl += math.Exp(lp) * (lp - (float64(found[i]) - lg))
		}
		result.MeanKL += kl / float64(rows)
		if argmax(found) == argmax(wanted) {
			same++
		}
	}
	result.SameTop = float64(same) / float64(rows)
	return result
}

// logSumExp returns the logarithm of the sum of exponentials, shifted by the maximum so that nothing overflows.
func logSumExp(v []float32) float64 {
	hi := float64(slices.Max(v))
	sum := 0.0
	for _, x := range v {
		sum += math.Exp(float64(x) - hi)
	}
	return hi + math.Log(sum)
}

// argmax returns the index of the largest value, the first of several.
func argmax(v []float32) int {
	best := 0
	for i, x := range v {
		if x > v[best] {
			best = i
		}
	}
	return best
}

// writeLogits writes float32 [rows,vocab] as tensor "logits".
func writeLogits(path string, logits []float32, rows, vocab int) error {
	data := make([]byte, 4*len(logits))
	for i, logit := range logits {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(logit))
	}
	return safetensors.Write(path,
		[]safetensors.Tensor{{Name: "logits", Type: op.F32, Shape: []int{rows, vocab}, Data: data}}, nil)
}
