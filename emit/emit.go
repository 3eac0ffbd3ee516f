package emit

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/pack"
	"github.com/hetc/hetc/runtime/driver"
)

// Options say what Emit writes. The plan must be legal for the model (planir/check).
type Options struct {
	Plan        *planir.Plan
	Model       *models.Model
	Calibration *calibration.Calibration // the one that the plan was made with, nil for none
	Compilers   []driver.Compiler
	Signers     []bundle.Signer // at least one

	Reference bool              // add a reference program with its own weights, for hetrun --check
	Files     map[string][]byte // further blobs by role name: "tokenizer", "config"

	Product         string // trust and rollback domain
	Version         string // for people
	SecurityVersion int64
	Generation      int64  // of the keyring the bundle is signed for
	OS, Arch        string // the target's, as runtime.GOOS and runtime.GOARCH
	Toolchain       string // version of hetc
	NotAfter        int64  // Unix seconds, 0: never
	IssuedAt        int64  // Unix seconds, 0: not stated
}

// Names of blobs that hetrun looks for.
const (
	PlanBlob      = "plan"
	TokenizerBlob = "tokenizer"
	ConfigBlob    = "config"
	Reference     = "reference/" // prefix of the reference program's blobs
)

// Emit writes the bundle to path, atomically, and returns its identity.
func Emit(ctx context.Context, path string, o Options) (bundle.Digest, error) {
	if !o.Model.HasWeights() {
		return bundle.Digest{}, diag.New(diag.ClassInput, "emit: model %q has shapes only", o.Model.Name).
			WithHint("give the directory of a model with weights, or make random ones with hetc models synth")
	}
	sources, err := contentSources(ctx, "", bundle.RoleWeights, o.Plan, o)
	if err != nil {
		return bundle.Digest{}, err
	}
	if o.Reference {
		ref, err := referencePlan(o.Plan, o.Model)
		if err != nil {
			return bundle.Digest{}, fmt.Errorf("emit reference: %w", err)
		}
		s, err := contentSources(ctx, Reference, bundle.RoleReference, ref, o)
		if err != nil {
			return bundle.Digest{}, fmt.Errorf("emit reference: %w", err)
		}
		sources = append(sources, s...)
	}
	for name, data := range o.Files {
		sources = append(sources, blob(name, bundle.Role(name), "application/json", data))
	}
	slices.SortFunc(sources, func(a, b bundle.Source) int { return strings.Compare(a.Name, b.Name) })
	soc := o.Plan.SoC.Name
	if o.Plan.SoC.Fingerprint != "" {
		soc = o.Plan.SoC.Fingerprint
	}
	m := bundle.Manifest{
		Product: o.Product, Version: o.Version, SecurityVersion: o.SecurityVersion, KeyringGeneration: o.Generation,
		IssuedAt: o.IssuedAt, NotAfter: o.NotAfter,
		Toolchain:  bundle.Toolchain{Hetc: o.Toolchain, Plan: planir.Schema},
		Requires:   bundle.Requires{Features: []string{bundle.FeatureChunks}},
		Target:     bundle.Target{SoC: []string{soc}, OS: o.OS, Arch: o.Arch},
		Entrypoint: PlanBlob,
	}
	return bundle.Write(ctx, path, m, sources, o.Signers...)
}

func blob(name string, role bundle.Role, media string, data []byte) bundle.Source {
	return bundle.Source{Name: name, Role: role, Type: media, Bytes: int64(len(data)), Content: bytes.NewReader(data)}
}

// contentSources lists a plan, its artifacts and its weights as blobs.
func contentSources(ctx context.Context, prefix string, weights bundle.Role, p *planir.Plan, o Options) ([]bundle.Source, error) {
	c, err := NewCalibrated(ctx, p, o.Model, o.Calibration, o.Compilers)
	if err != nil {
		return nil, err
	}
	code, err := planir.Encode(p)
	if err != nil {
		return nil, err
	}
	out := []bundle.Source{blob(prefix+PlanBlob, bundle.RolePlan, "application/vnd.hetc.plan.v1+json", code)}
	for i := range p.Program.Graphs {
		g := &p.Program.Graphs[i]
		a := c.artifacts[g.Artifact]
		out = append(out, blob(prefix+g.Artifact, roleOf(p.Proc(g.Proc)), "application/octet-stream", a.Code))
	}
	for _, w := range p.Program.WeightBlobs() {
		out = append(out, bundle.Source{
			Name: prefix + w.Name, Role: weights, Bytes: w.Size,
			Write: func(dst io.Writer) error {
				if err := ctx.Err(); err != nil {
					return err
				}
				return c.write(dst, w)
			},
		})
	}
	return out, nil
}

// roleOf names what an artifact is. A simulated NPU executes no NPU code, and a CPU's graph is a piece
// of the plan's program.
func roleOf(p *planir.Proc) bundle.Role {
	switch {
	case p.Driver == "sim" || p.Kind == "cpu":
		return bundle.RolePlan
	case p.Kind == "gpu":
		return bundle.RoleGPUKernel
	}
	return bundle.RoleNPUGraph
}

// referencePlan is the trivial plan for the same schemes and lengths on the host's reference kernels:
// float32 with float64 accumulation on the values that are stored. It shares no packed weights, graphs
// or flags with the plan it checks.
func referencePlan(p *planir.Plan, m *models.Model) (*planir.Plan, error) {
	const name = "reference"
	ref := &planir.Plan{
		Schema: planir.Schema, Model: p.Model, Folds: p.Folds, MaxContext: p.MaxContext, KV: op.F32,
		SoC: planir.SoCRef{Name: p.SoC.Name, Digest: p.SoC.Digest, Fingerprint: p.SoC.Fingerprint, Control: name},
	}
	for _, in := range p.Inputs {
		if in.Kind == planir.CalibrationInput {
			ref.Inputs = append(ref.Inputs, in) // its weights are folded and rounded as the plan's are
		}
	}
	proc := planir.Proc{
		Name: name, Kind: "cpu", Driver: "host", Select: "0", Options: map[string]string{"kernels": name}, Cores: []int{0},
		Schemes: op.Schemes, TileN: pack.TileN, TileK: pack.BlockK,
		DynamicRows: true, StridedInput: true, StridedOutput: true, WeightRanges: true,
	}
	if c := p.Proc(p.SoC.Control); c.Driver == proc.Driver {
		proc.Select, proc.Cores = c.Select, c.Cores // cores this machine lets us use
	}
	for _, s := range op.Schemes {
		proc.Layouts = append(proc.Layouts, planir.Layout{Scheme: s.Weight(), Layout: pack.N32})
	}
	slices.SortFunc(proc.Layouts, func(a, b planir.Layout) int { return strings.Compare(a.Scheme, b.Scheme) })
	ref.Procs = []planir.Proc{proc}
	g := m.Graph()
	var rows []int
	for _, ph := range p.Program.Programs {
		if !ph.Batch() { // it executes one sequence
			rows = append(rows, ph.Rows)
		}
	}
	var err error
	ref.Decisions, err = lower.Trivial(&g, name, rows, p.MaxContext, ref.KV, func(node string, r int) op.Scheme {
		for _, at := range []int{r, 1} {
			if d := p.DecisionFor(node, at); d != nil {
				return d.Scheme
			}
		}
		return ""
	})
	if err != nil {
		return nil, err
	}
	if err := lower.Lower(ref, &g); err != nil {
		return nil, err
	}
	return ref, planir.Check(ref).Err()
}
