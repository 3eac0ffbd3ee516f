package bench

import (
	"context"
	"path/filepath"
	"sort"
	"strings"

	"github.com/hetc/hetc/cmd/internal/engines"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
)

// calibrate calibrates the model by which the quality of the one at path is judged. It reads the part of the text that
// quality does not read; without such a part there is no calibration.
//
// A plan for the judged model itself is solved and packed with the calibration. Where --quality-model judges, the
// calibration serves its figures alone: rounding changes neither the size nor the speed of weights.
func (b *enginesBench) calibrate(ctx context.Context, path string) error {
	b.calibration = ""
	if b.Text == "" || b.Plan != "" {
		return nil
	}

	model, err := b.openQuality(path)
	if err != nil {
		return err
	}
	defer model.Close()
	rest, err := b.restOfText(model)
	if err != nil || len(rest) == 0 {
		return err
	}

	name := filepath.Join(b.dir, "calibration-"+strings.TrimSuffix(model.Name, ".gguf"))
	text, out := name+".txt", name+".yaml"
	if err := wholefile.Write(text, rest); err != nil {
		return err
	}
	err = b.unlessDone([]string{out}, model.Dir, []string{text}, func() error {
		return b.step(ctx, "calibrate", "--model", model.Dir, "--text", text, "--schemes", string(op.A8TQ4B128),
			"--no-folds", "-o", out)
	})
	if err != nil {
		return err
	}
	b.calibration = out
	return nil
}

// restOfText returns the lines of the text behind the windows of quality, none where they are too few.
func (b *enginesBench) restOfText(model *models.Model) ([]byte, error) {
	// Only the tokenizer is used. Weights that this process read would count as memory of those that it starts.
	on := &trial.Model{Model: model}
	size := min(engines.Window, model.MaxContext)
	const all, least = 0, 8 // windows; hetc calibrate reads at least 8
	whole, err := on.ReadText(b.Text, all, size)
	if err != nil || len(whole.Windows) < engines.Windows+least {
		return nil, err
	}

	const mostBytes = 1 << 30 // ReadText has a lower limit
	text, err := wholefile.Read(b.Text, mostBytes)
	if err != nil {
		return nil, err
	}

	// A token may reach across the end of a line, so what counts is the beginning of the text up to there. The whole
	// text can be cut: an error says that the beginning is too short.
	ends := lineEnds(text)
	line := sort.Search(len(ends), func(i int) bool {
		read, err := on.Cut(text[:ends[i]], all, size)
		return err == nil && len(read.Windows) > engines.Windows
	})
	if line == len(ends) {
		return nil, nil
	}

	rest := text[ends[line]:]
	if cut, err := on.Cut(rest, all, size); err != nil || len(cut.Windows) < least {
		return nil, nil // the rest is too short
	}
	return rest, nil
}

// lineEnds lists the offsets behind the lines of a text.
func lineEnds(text []byte) (ends []int) {
	for at, char := range text {
		if char == '\n' {
			ends = append(ends, at+1)
		}
	}
	return ends
}
