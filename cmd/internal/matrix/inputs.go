package matrix

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/cas"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
	"github.com/hetc/hetc/solver/workload"
)

// modelInput is a model of the configuration, once opened.
type modelInput struct {
	entry  modelEntry
	err    error
	model  *models.Model
	digest cas.Digest
	files  map[string][]byte // of the tokenizer

	calibration       *calibration.Calibration // nil: none
	calibrationDigest string                   // "" for none
}

// socInput is a SoC and its record.
type socInput struct {
	entry  socEntry
	err    error
	soc    *socs.SoC
	part   *socs.SoC // measured and planned with: the SoC, or the processors of a target's device
	digest string
	facts  *record.Set // of a target's compiler, nil: none
	record cas.Digest  // of the record's bytes
	cut    bool        // the record's last line was cut off
}

// workloadInput is a workload.
type workloadInput struct {
	entry    workloadEntry
	err      error
	workload *workload.Workload
	digest   string
}

// openInputs reads the inputs of all cells, each once. An input that cannot be read fails the cells that need it; only
// the end of ctx is an error. The caller calls closeAll, also after an error.
func (b *build) openInputs(ctx context.Context, cells []*Cell) (closeAll func(), err error) {
	// Cells share inputs by pointer, so that the first cell that uses one opens it.
	seen := map[any]bool{}
	first := func(input any) bool {
		old := seen[input]
		seen[input] = true
		return !old
	}
	var opened []*models.Model
	closeAll = func() {
		for _, model := range opened {
			model.Close()
		}
	}
	for _, cell := range cells {
		if err := ctx.Err(); err != nil {
			return closeAll, err
		}
		if first(cell.soc) {
			cell.soc.err = b.openSoC(cell.soc)
		}
		if first(cell.workload) {
			cell.workload.err = b.openWorkload(cell.workload)
		}
		if first(cell.model) {
			cell.model.err = b.openModel(ctx, cell.model)
			// The model may be open after an error too.
			if cell.model.model != nil {
				opened = append(opened, cell.model.model)
			}
		}
	}

	return closeAll, nil
}

// openWorkload reads a workload, or takes the default one.
func (b *build) openWorkload(input *workloadInput) (err error) {
	input.workload = workload.Default()
	if input.entry.Workload != "" {
		input.workload, err = workload.Read(b.o.Config.inside(input.entry.Workload))
		if err != nil {
			return err
		}
	}
	input.digest, err = input.workload.Digest()
	return err
}

// openModel opens a model with its digest, calibration and tokenizer files.
func (b *build) openModel(ctx context.Context, input *modelInput) (err error) {
	if input.model, err = b.o.Config.openModel(input.entry); err != nil {
		return err
	}
	if input.digest, err = b.modelDigest(input.model); err != nil {
		return err
	}

	if input.entry.Calibration != "" {
		if input.calibration, err = calibration.Read(b.o.Config.inside(input.entry.Calibration)); err != nil {
			return err
		}
		if err = input.calibration.CheckModel(input.model.Name, input.digest.String()); err != nil {
			return err
		}
		if input.calibrationDigest, err = input.calibration.Digest(); err != nil {
			return err
		}
	}

	// Without a key or weights there are no bundles, which alone need the tokenizer.
	if b.o.Key == nil || !input.model.HasWeights() {
		return nil
	}
	if input.files, err = input.model.TokenizerFiles(); err != nil {
		return err
	}
	return b.o.Tools.TryTokenizer(ctx, input.model, input.files)
}

// openSoC reads a SoC with its record and facts.
func (b *build) openSoC(input *socInput) (err error) {
	if input.soc, err = b.o.Config.openSoC(input.entry); err != nil {
		return err
	}
	if input.digest, err = input.soc.Digest(); err != nil {
		return err
	}

	input.part = input.soc
	if input.entry.Target != "" {
		if input.part, err = input.soc.Restricted(); err != nil {
			return err
		}
		if err := input.checkTwin(); err != nil {
			return err
		}
		if input.facts, err = b.openFacts(input); err != nil {
			return err
		}
	}

	if input.entry.Record == "" {
		if input.soc.Simulated() {
			return nil // the record is simulated for each model
		}
		value, key := input.entry.source()
		return diag.New(diag.ClassInput, "%s %q: a real machine needs a record, and none is given", key,
			input.entry.Name).
			WithHint("measure it there: hetc profile --%s %s --model DIR -o rec.jsonl; then {%s: %s, record: "+
				"rec.jsonl}", key, value, key, value)
	}

	data, err := b.readRecord(input)
	if err != nil {
		return err
	}

	input.record = sha256.Sum256(data)
	input.cut = len(data) > 0 && data[len(data)-1] != '\n'
	return nil
}

// checkTwin refuses a twin where no plan can have one. Only graphs of a compiler have a twin, and none of the
// processors that a plan may use has a compiler.
func (s *socInput) checkTwin() error {
	if !s.entry.Twin {
		return nil
	}
	var compiled []string
	for i := range s.part.Processors {
		proc := &s.part.Processors[i]
		if proc.Target == nil || proc.Target.Compiler == "" {
			continue
		}
		if len(s.entry.Only) == 0 || slices.Contains(s.entry.Only, proc.Name) {
			return nil
		}
		compiled = append(compiled, proc.Name)
	}

	if compiled == nil {
		return diag.New(diag.ClassInput, "target %q has twin: true, and none of its processors has a compiler",
			s.entry.Target).WithHint("leave twin: true out")
	}
	return diag.New(diag.ClassInput, "target %q has twin: true, and only: %q leaves out what is compiled for, %q",
		s.entry.Name, s.entry.Only, compiled).WithHint("leave twin: true out, or add %s to only", compiled[0])
}

// openFacts reads the facts of a target's compiler from the file of facts, or else from the record; nil if there are
// none.
func (b *build) openFacts(input *socInput) (*record.Set, error) {
	file := cmp.Or(input.entry.Facts, input.entry.Record)
	if file == "" {
		return nil, nil
	}
	set, err := record.Open(b.o.Config.inside(file))
	if err != nil {
		return nil, err
	}
	if len(set.Facts()) == 0 {
		if input.entry.Facts == "" {
			return nil, nil
		}
		return nil, diag.New(diag.ClassInput, "record %q has no compiler facts", file).
			WithHint("hetc profile --compiler-only --target %s makes them", input.entry.Target)
	}

	return set, nil
}

// factsText returns the compiler facts that a plan depends on as text, "" where there are none.
func (s *socInput) factsText() (string, error) {
	if s.facts == nil {
		return "", nil
	}
	text, err := json.Marshal(s.facts.Facts())
	if err != nil {
		return "", fmt.Errorf("compiler facts: %w", err)
	}
	return string(text), nil
}

// readRecord returns the bytes of a SoC's record.
func (b *build) readRecord(s *socInput) ([]byte, error) {
	return wholefile.Read(b.o.Config.inside(s.entry.Record), maxRecord)
}

// errChanged returns the error about an input that has changed since the run began.
func errChanged(what, name string) error {
	return diag.New(diag.ClassInput, "%s %q changed while it was built from", what, name).
		WithHint("build again when no other program writes to it")
}
