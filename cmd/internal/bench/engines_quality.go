package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/engines"
	"github.com/hetc/hetc/cmd/internal/trial"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/plantext"
)

// mostQuality bounds the time of one process that measures quality.
const mostQuality = time.Hour

// quality measures how far the forms of a model diverge from its float32 weights. A model without a tokenizer is
// represented by that of --quality-model, with the same schemes and formats. peers keeps the figures of the other
// engines by model, since several models may share one.
func (b *enginesBench) quality(
	ctx context.Context, path string, measured *EnginesModel, peers map[string]*peersQuality,
) error {
	model, err := b.openQuality(path)
	if err != nil {
		return err
	}

	defer model.Close()
	of := model.Dir
	measured.QualityOf = strings.TrimSuffix(model.Name, ".gguf")
	dir := filepath.Join(b.dir, measured.Name)
	for i := range measured.Plans {
		made := &measured.Plans[i]
		var got []engines.Quality

		// The bundle's own model reads the text; another model gets the plan's schemes instead.
		if b.QualityModel == "" {
			got, err = b.ownQuality(ctx, made.Form, "--bundle", made.bundle, "--trust", filepath.Join(dir, "local.pub"),
				"--model", of, "--decode")
		} else {
			got, err = b.schemesQuality(ctx, dir, model, of, made)
		}

		if err != nil {
			return fmt.Errorf("quality of hetc %s: %w", made.Form, err)
		}
		measured.Quality = append(measured.Quality, got...)
	}

	if peers[of] == nil {
		if peers[of], err = b.peersQuality(ctx, model, of); err != nil {
			return err
		}
	}

	measured.Quality = append(measured.Quality, peers[of].list...)
	measured.Skipped = append(measured.Skipped, peers[of].skipped...)
	return nil
}

// openQuality opens the model by which the quality of the one at path is judged.
func (b *enginesBench) openQuality(path string) (*models.Model, error) {
	if b.QualityModel != "" {
		path = b.QualityModel
	}
	model, err := models.Open(path)
	if err != nil {
		return nil, err
	}

	files, err := model.TokenizerFiles()
	if err == nil && len(files["tokenizer"]) == 0 {
		err = diag.New(diag.ClassInput, "quality: model %q has no tokenizer, and a text is to be read", path).
			WithHint("name a model that has one with --quality-model: the same schemes are measured with it")
	}
	if err != nil {
		return nil, errors.Join(err, model.Close())
	}
	return model, nil
}

// ownQuality runs hetc quality and parses the results of its phases.
func (b *enginesBench) ownQuality(ctx context.Context, form string, args ...string) ([]engines.Quality, error) {
	out, err := b.output(ctx,
		append([]string{"quality", "--json", "--text", b.Text, "--windows", strconv.Itoa(engines.Windows)}, args...)...)
	if err != nil {
		return nil, err
	}

	// These fields are the part of the document of hetc quality --json that is used.
	type estimate struct{ Mean, Low, High float64 }
	var doc struct {
		Phases []struct {
			Phase        string
			KL           estimate `json:"kl"`
			TopAgreement estimate `json:"top_agreement"`
			Perplexity   estimate `json:"perplexity"`
		} `json:"phases"`
	}
	if err := json.Unmarshal(out, &doc); err != nil {
		return nil, diag.New(diag.ClassInternal, "hetc quality --json: %w", err)
	}

	var list []engines.Quality
	for _, phase := range doc.Phases {
		list = append(list, engines.Quality{
			Engine: "hetc", Form: form, Phase: phase.Phase, MeanKL: phase.KL.Mean,
			KLError: (phase.KL.High - phase.KL.Low) / 2, SameTop: phase.TopAgreement.Mean,
			Perplexity: phase.Perplexity.Mean,
		})
	}
	return list, nil
}

// schemesQuality applies the schemes that a plan for another model has in each phase, operator by operator, and its type
// of cache to model m, and measures them there.
func (b *enginesBench) schemesQuality(
	ctx context.Context, dir string, m *models.Model, path string, made *enginesPlan,
) ([]engines.Quality, error) {
	on, err := trial.Open(ctx, m)
	if err != nil {
		return nil, err
	}

	cal, err := bindings.ReadCalibration(b.calibration)
	if err != nil {
		return nil, err
	}
	var packed []string
	if cal != nil {
		packed = []string{"--calibration", b.calibration}
	}

	var list []engines.Quality
	for _, phase := range []string{"prefill", "decode"} {
		plan, err := phasePlan(on, path, made.plan, cal, phase)
		if err != nil {
			return nil, err
		}
		text, err := plantext.Encode(plan)
		if err != nil {
			return nil, err
		}
		file := filepath.Join(dir, fmt.Sprintf("quality-%s-%s.yaml", made.name, phase))
		if err := wholefile.Write(file, text); err != nil {
			return nil, err
		}

		args := append([]string{"--plan", file, "--model", path, "--decode"}, packed...)
		got, err := b.ownQuality(ctx, made.Form, args...)
		if err != nil {
			return nil, err
		}

		for _, quality := range got {
			if quality.Phase == phase {
				list = append(list, quality)
			}
		}
	}

	return list, nil
}

// phasePlan returns a plan for the model at path with the schemes that another plan has in a phase and its type of
// cache, packed with a calibration (nil: none).
func phasePlan(
	on *trial.Model, path string, from *planir.Plan, cal *calibration.Calibration, phase string,
) (*planir.Plan, error) {
	var missing []string
	tied := true
	plan, err := on.CachedPlan(engines.Window, from.KV, func(node string) op.Scheme {
		scheme, ok := schemeIn(from, node, phase)
		if !ok {
			missing = append(missing, node)
		}
		// An embedding may be read from the packed head, which a model with a separate table has not.
		tied = tied && (!scheme.LooksUp() || on.PackedTable() == node)
		return scheme
	}, cal)
	if len(missing) > 0 {
		return nil, diag.New(diag.ClassInput, "model %q has the operators %s, and the plan has no scheme for them",
			path, strings.Join(missing, ", ")).
			WithHint("name a --quality-model of the same architecture")
	}
	if !tied {
		return nil, diag.New(diag.ClassInput,
			"model %q has a table and a head of its own, and the plan reads the embedding from the head", path).
			WithHint("name a --quality-model whose head is tied")
	}
	return plan, err
}

// schemeIn returns the scheme of a node in the largest program of a phase. The last matrix has one row
// in all programs, which prefill shares with decoding.
func schemeIn(plan *planir.Plan, node, phase string) (op.Scheme, bool) {
	best := -1
	for i, decision := range plan.Decisions {
		if decision.Node != node {
			continue
		}
		// Decoding is judged by programs of one row, prefill by programs of prompts or, where there are none, of one
		// row. Programs that decode a batch count for neither.
		if decision.Rows != 1 && (phase == "decode" || plan.Decodes(decision.Rows)) {
			continue
		}
		if best < 0 || decision.Rows > plan.Decisions[best].Rows {
			best = i
		}
	}

	if best < 0 {
		return "", false
	}
	return plan.Decisions[best].Scheme, true
}
