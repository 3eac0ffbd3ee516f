package doctor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/hetc/hetc/cmd/internal/machine"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/runtime/tokenizer"
)

// checkModel checks a model's directory or file. It tells whether that can be read, which keys and tensors are unused,
// whether every weight is a finite number, and whether its tokenizer is understood. It reads all weights.
func checkModel(ctx context.Context, dir string) ([]Finding, error) {
	model, err := models.Open(dir)
	if err != nil {
		// A model with several mistakes gives one finding for each.
		var list diag.List
		if !errors.As(err, &list) {
			return []Finding{failed("model", err)}, nil
		}
		var out []Finding
		for _, finding := range list {
			out = append(out, failed("model", finding))
		}
		return out, nil
	}
	defer model.Close()
	out := []Finding{ok("model", "%s, %s, %s parameters stored as %s, context %d", model.Name, model.Architecture,
		parameters(model.Parameters()), model.Stored, model.MaxContext)}
	if model.Dir == "" {
		return append(out, ok("weights", "none: a catalog entry has shapes only").but(Note,
			"enough for planning; hetc models synth %s -o DIR writes random ones", model.Name)), nil
	}
	out = append(out, unread(model), ignored(model))
	read, err := weights(ctx, model)
	if err != nil {
		return nil, err
	}
	text, err := readTokenizer(ctx, model)
	if err != nil {
		return nil, err
	}
	return append(append(out, read), text...), nil
}

// unread reports the config keys that the architecture does not use.
func unread(m *models.Model) Finding {
	const name = "config keys"
	if keys := m.UnreadKeys(); len(keys) > 0 {
		return ok(name, "%d mean nothing to %s: %s", len(keys), m.Architecture, some(keys)).
			but(Note, "they are not used; make sure that none of them changes what the model computes")
	}
	return ok(name, "all understood")
}

// ignored reports the tensors that the architecture does not use.
func ignored(m *models.Model) Finding {
	const name = "tensors"
	need := len(m.Required())
	if more := m.Ignored(); len(more) > 0 {
		return ok(name, "%d used, %d not: %s", need, len(more), some(more)).
			but(Note, "they are not used; make sure that the model computes without them")
	}
	return ok(name, "%d, all used", need)
}

// some joins the first few names and counts the rest.
func some(names []string) string {
	const most = 6
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// weights reads every tensor, on all cores, and looks for values that are no finite numbers.
func weights(ctx context.Context, model *models.Model) (Finding, error) {
	names := model.Required()
	bad := make([]string, len(names))
	errs := make([]error, len(names))
	next := make(chan int)
	var wg sync.WaitGroup
	// workers take tensors in turn; results keep the order of names
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				bad[i], errs[i] = notFinite(ctx, model, names[i])
			}
		})
	}
	for i := range names {
		next <- i
	}
	close(next)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		if ctx.Err() != nil {
			return Finding{}, ctx.Err()
		}
		return failed("weights", err), nil
	}
	var found []string
	for _, value := range bad {
		if value != "" {
			found = append(found, value)
		}
	}
	if len(found) > 0 {
		finding := ok("weights", "%d tensors hold values that are no numbers: %s", len(found), some(found)).
			but(Problem, "fetch the model again; hetc emit refuses such weights")
		finding.class = diag.ClassInput
		return finding, nil
	}
	// As stored: a plan with fewer bits takes less.
	bytes := int64(0)
	for _, name := range names {
		if tensor, err := model.Tensor(name); err == nil {
			bytes += int64(len(tensor.Data()))
		}
	}
	finding := ok("weights", "%v, all finite", unit.Bytes(bytes))
	if free := machine.FreeMemory(); free > 0 && bytes > free {
		finding.Found += fmt.Sprintf(", more than the %v of memory that are free", unit.Bytes(free))
		return finding.but(Note,
			"permit 8 or 4 bit weights in the workload (schemes:), or use a machine with more memory"), nil
	}
	return finding, nil
}

// notFinite names the first value of a tensor that is NaN or infinite, "" where there is none. It
// reads some rows at a time, to bound its memory.
func notFinite(ctx context.Context, m *models.Model, name string) (string, error) {
	tensor, err := m.Tensor(name)
	if err != nil {
		return "", err
	}
	// all dimensions but the last are rows
	rows, cols := 1, 1
	for i, size := range tensor.Shape() {
		if i < len(tensor.Shape())-1 {
			rows *= size
		} else {
			cols = size
		}
	}
	const chunk = 1 << 18 // values
	step := max(1, chunk/max(1, cols))
	buf := make([]float32, min(step, rows)*cols)
	for first := 0; first < rows; first += step {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		n := min(step, rows-first)
		part := buf[:n*cols]
		if err := tensor.Read(part, first, first+n, 0, cols); err != nil {
			return "", fmt.Errorf("tensor %q: %w", name, err)
		}
		for i, value := range part {
			if math.IsNaN(float64(value)) || math.IsInf(float64(value), 0) {
				return fmt.Sprintf("%q (row %d, column %d: %v)", name, first+i/cols, i%cols, value), nil
			}
		}
	}
	return "", nil
}

// readTokenizer checks the tokenizer, and whether its chat template works within the limits.
func readTokenizer(ctx context.Context, model *models.Model) ([]Finding, error) {
	const name = "tokenizer"
	files, err := model.TokenizerFiles()
	if err != nil {
		return []Finding{failed(name, err)}, nil
	}
	text, have := files["tokenizer"]
	if !have {
		finding := ok(name, "none").but(Note,
			"the model runs on token ids only (--tokens); its tokenizer.json belongs into the directory")
		return []Finding{finding}, nil
	}
	tok, err := tokenizer.New(text, files["config"], model.BOS)
	if err != nil {
		return []Finding{failed(name, err)}, nil
	}
	finding := ok(name, "%d tokens", tok.VocabSize())
	if tok.VocabSize() > model.Vocab {
		finding = finding.but(Note, "the model has rows for %d tokens only", model.Vocab)
	}
	unusable, err := tok.TryChat(ctx)
	switch {
	case ctx.Err() != nil:
		return nil, err
	case err != nil:
		return []Finding{finding, failed("chat template", err)}, nil
	case unusable != nil:
		template := ok("chat template", "%v", unusable).but(Note,
			"--chat cannot use it; prompts without --chat need none")
		return []Finding{finding, template}, nil
	}
	return []Finding{finding}, nil
}

// parameters writes a number of parameters as models are named: 1.1B, 124.4M, 21.1K.
func parameters(count int64) string {
	for _, of := range []struct {
		unit   float64
		letter string
	}{{1e9, "B"}, {1e6, "M"}, {1e3, "K"}} {
		if float64(count) >= of.unit {
			return fmt.Sprintf("%.1f%s", float64(count)/of.unit, of.letter)
		}
	}
	return strconv.FormatInt(count, 10)
}
