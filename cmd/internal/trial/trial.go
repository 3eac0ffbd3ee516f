// Package trial knows how a model is executed to see what it computes rather than how fast: as the trivial plan on this
// machine's cores, each class of weights in a chosen scheme. It is what hetc calibrate, quality and loads are made of:
// read calibrate.go, attention.go and drop.go.
package trial

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/emit"
	hostcompiler "github.com/hetc/hetc/emit/compile/host"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
	"github.com/hetc/hetc/runtime/driver/host"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/quality"
	"github.com/hetc/hetc/runtime/tokenizer"
)

// Model is a model with weights and the processor that executes it: all cores of this machine, or one.
type Model struct {
	*models.Model
	Digest string

	proc  planir.Proc
	first *emit.Content // other contents take the packed weights from it that they share with it
}

// oneCore is the number of parameters below which the matrices of a model are too small to share: cores that wait
// for each other after every one of them gain little, and lose much where others want them too.
const oneCore = 50e6

// Open finds the processor for a model with weights, which stays the caller's to close after this one.
func Open(ctx context.Context, model *models.Model) (*Model, error) {
	if !model.HasWeights() {
		return nil, diag.New(diag.ClassInput, "model %q has shapes only, no weights", model.Name).
			WithHint("give the directory of a model with weights and a tokenizer")
	}
	digest, err := model.Digest()
	if err != nil {
		return nil, err
	}
	drv := host.New()
	devices, err := drv.Devices(ctx)
	if err != nil {
		return nil, err
	}
	// The driver lists single cores first, and all of them together last.
	device := devices[len(devices)-1] // the widest range
	if model.Parameters() < oneCore {
		device = devices[0]
	}
	out := &Model{Model: model, Digest: digest}
	return out, out.use(ctx, drv, device.Select)
}

// use has the model executed by a selection of cores.
func (m *Model) use(ctx context.Context, drv driver.Driver, selection string) error {
	opened, err := drv.Open(ctx, driver.Config{Select: selection})
	if err != nil {
		return err
	}
	defer opened.Close()
	capabilities := opened.Capabilities()
	m.proc = planir.Proc{
		Name: "host", Kind: "cpu", Driver: drv.Name(), Select: selection, Cores: capabilities.Cores,
		Set: capabilities.Offered(),
	}
	m.proc.Schemes = capabilities.Schemes // imitations too: what they cost in accuracy is the question
	m.proc.FusesGLU = false               // the results of products are observed
	return nil
}

// Plan returns the trivial plan for windows of tokens at once and one by one, with the folds of a calibration (nil:
// none).
func (m *Model) Plan(
	window int, schemeOf func(node string) op.Scheme, cal *calibration.Calibration,
) (*planir.Plan, error) {
	return m.planned(window, op.F32, schemeOf, cal, nil)
}

// CachedPlan is Plan with a type of cache, which Plan has in float32.
func (m *Model) CachedPlan(
	window int, cache op.Type, schemeOf func(node string) op.Scheme, cal *calibration.Calibration,
) (*planir.Plan, error) {
	return m.planned(window, cache, schemeOf, cal, nil)
}

// PrunedPlan is Plan with shadow outliers in some layers only.
func (m *Model) PrunedPlan(
	window int, schemeOf func(node string) op.Scheme, cal *calibration.Calibration, shadows []planir.Shadow,
) (*planir.Plan, error) {
	return m.planned(window, op.F32, schemeOf, cal, shadows)
}

// planned is PrunedPlan with a type of cache, and with capacity tiers of experts for windows.
func (m *Model) planned(
	window int, cache op.Type, schemeOf func(node string) op.Scheme, cal *calibration.Calibration,
	shadows []planir.Shadow, tiers ...planir.ExpertTiers,
) (*planir.Plan, error) {
	graph := m.Graph()
	plan := &planir.Plan{
		Schema: planir.Schema, Model: planir.ModelRef{Name: m.Name, Digest: m.Digest, EOS: m.EOS, BOS: m.BOS},
		SoC: planir.SoCRef{Name: "trial", Control: m.proc.Name}, MaxContext: window, KV: cache,
		Procs: []planir.Proc{m.proc}, Shadows: shadows, Experts: tiers,
	}
	var err error
	if cal != nil {
		// folds are part of the calculation, so the plan names where they come from
		digest, err := cal.Digest()
		if err != nil {
			return nil, err
		}
		plan.Inputs = []planir.Input{{Kind: planir.CalibrationInput, Digest: digest}}
		plan.Folds = cal.Groups()
	}
	// Both numbers of rows have one scheme: a loss belongs to the scheme, not to the phase.
	plan.Decisions, err = lower.Trivial(&graph, m.proc.Name, []int{1, window}, window, plan.KV,
		func(node string, _ int) op.Scheme { return schemeOf(node) }, tiers...)
	if err != nil {
		return nil, err
	}
	if err := lower.Lower(plan, &graph); err != nil {
		return nil, err
	}
	return plan, planir.Check(plan).Err()
}

// SparsePlan returns the trivial plan in float32 for windows of tokens, in which prompts attend to positions that are
// selected with the numbers of a calibration.
func (m *Model) SparsePlan(window int, at *planir.Attention, cal *calibration.Calibration) (*planir.Plan, error) {
	plan, err := m.Plan(window, Float32, cal)
	if err != nil {
		return nil, err
	}
	plan.Attention = at
	graph := m.Graph()
	plan.Decisions, err = lower.TrivialOf(plan, &graph, m.proc.Name, []int{1, window},
		func(node string, _ int) op.Scheme { return Float32(node) })
	if err != nil {
		return nil, err
	}
	if err := lower.Lower(plan, &graph); err != nil {
		return nil, err
	}
	return plan, planir.Check(plan).Err()
}

// AllCores has the model executed by all cores of this machine, however small its matrices are: attention to a long
// context gains from them.
func (m *Model) AllCores(ctx context.Context) error {
	drv := host.New()
	devices, err := drv.Devices(ctx)
	if err != nil {
		return err
	}
	return m.use(ctx, drv, devices[len(devices)-1].Select)
}

// Float32 returns the scheme of every node in a reference.
func Float32(string) op.Scheme { return op.A32W32 }

// Machine is a plan with its weights in memory.
type Machine struct {
	*executor.Machine
	model   *Model
	content *emit.Content
}

// Open loads a plan of the model, made with the calibration. Weights that the first plan opened packs equally are
// taken from it: it is closed last.
func (m *Model) Open(
	ctx context.Context, plan *planir.Plan, cal *calibration.Calibration, observe func(executor.Observed),
) (*Machine, error) {
	content, err := emit.NewCalibrated(ctx, plan, m.Model, cal, []driver.Compiler{hostcompiler.New()})
	if err != nil {
		return nil, err
	}
	need := runcmd.WeightBytes(plan)
	if m.first == nil {
		m.first = content
	} else {
		content.ShareWith(m.first)
		need = 0 // at most what the first one needs for a class
	}
	machine, err := runcmd.Execute(ctx, plan, content, need,
		executor.Options{Drivers: []driver.Driver{host.New()}, Observe: observe})
	if err != nil {
		return nil, errors.Join(err, (&Machine{nil, m, content}).Close())
	}
	return &Machine{machine, m, content}, nil
}

// Close releases lanes and weights.
func (m *Machine) Close() error {
	if m.model.first == m.content {
		m.model.first = nil
	}
	var err error
	if m.Machine != nil {
		err = m.Machine.Close()
	}
	return errors.Join(err, m.content.Close())
}

// Classes returns the nodes whose precision is a choice, in the order of execution.
func (m *Model) Classes() []string {
	var out []string
	graph := m.Graph()
	for _, section := range graph.Sections {
		for _, node := range section.Nodes {
			name := section.Name + "." + node.Name
			if !node.Exact && slices.ContainsFunc(node.Ops, op.Op.HasScheme) && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// takes reports whether a class (or calibration.All) can have a scheme: not every one is there for experts.
func (m *Model) takes(class string, scheme op.Scheme) bool {
	if scheme.Experts() {
		return true
	}
	graph := m.Graph()
	for _, section := range graph.Sections {
		for _, node := range section.Nodes {
			if (class == calibration.All || class == section.Name+"."+node.Name) &&
				slices.ContainsFunc(node.Ops, func(o op.Op) bool { return o.Kind == op.ExpertMatMul }) {
				return false
			}
		}
	}
	return true
}

// PackedTable returns the embedding that can look rows up in the packed matrix of a tied head, "" where there is none.
func (m *Model) PackedTable() string {
	graph := m.Graph()
	for _, section := range graph.Sections {
		for _, node := range section.Nodes {
			if node.Packed != "" {
				return section.Name + "." + node.Name
			}
		}
	}
	return ""
}

// Text is what a model reads.
type Text struct {
	SHA256  string // of the whole file
	Windows []quality.Window
}

// What to do about a text with too few windows, where they have one length and where --window-tokens sets it.
const (
	moreWindows    = "give a longer text, or more --windows"
	shorterWindows = moreWindows + ", or shorter ones with --window-tokens"
)

// halves divides the windows in turns: what is fitted to observed windows is judged on the compared ones between them.
// wayOut is the hint of the error about a text that is too short.
func (t *Text) halves(wayOut string) (observed, compared []quality.Window, err error) {
	for i, window := range t.Windows {
		if i%2 == 0 {
			compared = append(compared, window)
		} else {
			observed = append(observed, window)
		}
	}
	if len(observed) < 2 {
		return nil, nil, diag.New(diag.ClassInput, "text of %d windows, want at least %d", len(t.Windows),
			LeastWindows).WithHint("%s", wayOut)
	}
	return observed, compared, nil
}

// maxText is what the tokenizer encodes at once, in bytes.
const maxText = 8 << 20

// ReadText reads a text file and cuts it into at most the given number of windows (0: all) of size tokens.
func (m *Model) ReadText(path string, windows, size int) (*Text, error) {
	data, err := wholefile.Read(path, maxText)
	if err != nil {
		return nil, err
	}
	text, err := m.Cut(data, windows, size)
	if err != nil {
		return nil, fmt.Errorf("text %q: %w", path, err)
	}
	return text, nil
}

// notText is where data is not UTF-8, -1 for nowhere. A character may be cut off at the end, as where a file was cut.
func notText(data []byte) int {
	for at := 0; at < len(data) && utf8.FullRune(data[at:]); {
		char, size := utf8.DecodeRune(data[at:])
		if char == utf8.RuneError && size == 1 {
			return at
		}
		at += size
	}
	return -1
}

// Cut is ReadText of the bytes of a file.
func (m *Model) Cut(data []byte, windows, size int) (*Text, error) {
	files, err := m.TokenizerFiles()
	if err != nil {
		return nil, err
	}
	if len(files["tokenizer"]) == 0 {
		return nil, diag.New(diag.ClassInput, "model %q has no tokenizer, and a text is to be read", m.Dir).
			WithHint("put the model's tokenizer.json beside its weights")
	}
	tok, err := tokenizer.New(files["tokenizer"], files["config"], m.BOS)
	if err != nil {
		return nil, fmt.Errorf("model %q: tokenizer.json: %w", m.Dir, err)
	}
	if len(data) == 0 {
		return nil, diag.New(diag.ClassInput, "the file is empty").
			WithHint("give a few thousand words of what the model will read")
	}
	if at := notText(data); at >= 0 {
		return nil, diag.New(diag.ClassInput, "byte %#02x at offset %d is no UTF-8", data[at], at).
			WithHint("give a plain text; one in another encoding is converted by: iconv -f ENCODING -t UTF-8")
	}
	ids, err := tok.Encode(string(data))
	if err != nil {
		return nil, err
	}
	// Checked once for the whole text, before minutes of execution.
	for i, id := range ids {
		if id < 0 || int(id) >= m.Vocab {
			return nil, diag.New(diag.ClassInput, "token %d is id %d of the tokenizer, and the model has ids 0..%d", i,
				id, m.Vocab-1).
				WithHint("the tokenizer belongs to another model, or the model was converted without its added tokens")
		}
	}
	text := &Text{SHA256: fmt.Sprintf("%x", sha256.Sum256(data))}
	if text.Windows, err = quality.Windows(ids, size, windows); err != nil {
		return nil, err
	}
	return text, nil
}
