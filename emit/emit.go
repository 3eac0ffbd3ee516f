package emit

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/runtime/driver"
)

// Options say what Emit writes. The plan must be legal for the model (planir/check).
type Options struct {
	Plan        *planir.Plan
	Model       *models.Model
	Calibration *calibration.Calibration // the one that the plan was made with, nil for none
	Compilers   []driver.Compiler
	Signers     []bundle.Signer // at least one

	Target        *Target // rewrites the plan for what executes it; nil: the plan's own processors do
	AllowFallback bool    // what the target does not execute, or its compiler refuses, goes to the control processor
	// Oracle computes in float32 what samples of graphs with weights are compared with; nil: no graph is tried.
	Oracle driver.Driver
	// Watch is told about groups of graphs that are compiled with their weights, by several goroutines; nil: nothing
	// is.
	Watch func(Event)
	// Memo keeps what was packed and tried, so that it is not packed and tried again as far as compilers keep what they
	// made; nil: it is.
	Memo    Memo
	Scratch string // directory where what was compiled waits for the bundle; "": among temporary files
	// TwinReport is of the twin, whose digests the report repeats; nil: it repeats those of graphs that were tried
	// alone.
	TwinReport *Report

	// Prefix computes the beginning of prompts with the plan that the bundle holds (planir/prefix); nil: there is none.
	Prefix func(ctx context.Context, plan *planir.Plan, content *Content) ([]byte, error)

	// SelfTest computes what the runtime compares kernels with that another driver than the host's executes; nil: the
	// bundle has no self-test. SelfTestOptions configure its processor.
	SelfTest        driver.Driver
	SelfTestOptions map[string]string

	// Prebuild are drivers whose devices here build the programs that the bundle then holds as binaries; nil: it holds
	// sources only.
	Prebuild []driver.Driver

	Reference bool              // add a reference program with its own weights, for hetrun --check
	Files     map[string][]byte // further blobs by role name: "tokenizer", "config"

	Product         string // trust and rollback domain
	Version         string // for people
	SecurityVersion int64
	Generation      int64  // of the keyring the bundle is signed for
	OS, Arch        string // the target's, as runtime.GOOS and runtime.GOARCH; a simulation runs anywhere
	Toolchain       string // version of hetc
	NotAfter        int64  // Unix seconds, 0: never
	IssuedAt        int64  // Unix seconds, 0: not stated
}

// Memo remembers short results. A key covers everything that a result depends on but the build of hetc and the machine,
// which a Memo must keep apart itself. Emit asks it from several goroutines.
type Memo interface {
	// Recall returns a result that was kept; what is lost or damaged was not.
	Recall(key string) ([]byte, bool)
	Keep(key string, result []byte) error
}

// Names of blobs that hetrun looks for.
const (
	PlanBlob        = "plan"
	ReportBlob      = "npu-report"
	PrefixBlob      = "prefix"
	SelfTestBlob    = "self-test"
	referencePrefix = "reference/" // prefix of the reference program's blobs
)

// Emit writes the bundle to path, atomically, and returns its identity.
func Emit(ctx context.Context, path string, options Options) (id bundle.Digest, err error) {
	if !options.Model.HasWeights() {
		return bundle.Digest{}, diag.New(diag.ClassInput, "emit: model %q has shapes only", options.Model.Name).
			WithHint("give the directory of a model with weights, or make random ones with hetc models synth")
	}
	if err := options.CheckStated(); err != nil {
		return bundle.Digest{}, err
	}
	content, report, err := options.buildContent(ctx)
	if err != nil {
		return bundle.Digest{}, err
	}
	defer func() {
		if failed := content.Close(); failed != nil && err == nil {
			err = failed
		}
	}()
	sources, err := content.sources(ctx, "", bundle.RoleWeights)
	if err != nil {
		return bundle.Digest{}, err
	}
	var components []bundle.Component
	// Only graphs that hold their weights have a report, and name the library that loads them.
	if report != nil {
		text, err := report.encode()
		if err != nil {
			return bundle.Digest{}, err
		}
		sources = append(sources, blob(ReportBlob, bundle.RoleReport, "application/vnd.hetc.npu-report.v1+json", text))
		components = report.components()
	}
	more, err := options.optionalSources(ctx, content)
	if err != nil {
		return bundle.Digest{}, err
	}
	sources = append(sources, more...)
	slices.SortFunc(sources, func(a, b bundle.Source) int { return strings.Compare(a.Name, b.Name) })
	// The manifest's blobs are filled in when the contents are written and digested.
	manifest := options.stated()
	manifest.Target = options.manifestTarget(content.plan, components)
	// Weights and artifacts are written as they come, so an error here leaves no bundle behind.
	return bundle.Write(ctx, path, manifest, sources, options.Signers...)
}

// stated returns the manifest without its target and its blobs.
func (o *Options) stated() bundle.Manifest {
	return bundle.Manifest{
		Product: o.Product, Version: o.Version, SecurityVersion: o.SecurityVersion,
		KeyringGeneration: o.Generation, IssuedAt: o.IssuedAt, NotAfter: o.NotAfter,
		Toolchain:  bundle.Toolchain{Hetc: o.Toolchain, Plan: planir.Schema},
		Requires:   bundle.Requires{Features: []string{bundle.FeatureChunks}},
		Entrypoint: PlanBlob,
	}
}

// CheckStated refuses a product, versions, a generation and times that no bundle can state.
func (o *Options) CheckStated() error {
	manifest := o.stated()
	if err := manifest.CheckStated(); err != nil {
		return diag.New(diag.ClassInput, "a bundle cannot state this: %w", err)
	}
	return nil
}

// optionalSources returns the blobs that the options ask for beside the plan and what it needs.
func (o *Options) optionalSources(ctx context.Context, content *Content) (sources []bundle.Source, err error) {
	if o.Reference {
		if sources, err = o.referenceSources(ctx, content.plan); err != nil {
			return nil, fmt.Errorf("emit reference: %w", err)
		}
	}
	if o.Prebuild != nil {
		binaries, err := content.programSources(ctx, o.Prebuild)
		if err != nil {
			return nil, fmt.Errorf("emit: %w", err)
		}
		sources = append(sources, binaries...)
	}
	if o.SelfTest != nil {
		tests, err := content.selfTestSources(ctx, o.SelfTest, o.SelfTestOptions)
		if err != nil {
			return nil, fmt.Errorf("emit: %w", err)
		}
		sources = append(sources, tests...)
	}
	if o.Prefix != nil {
		computed, err := o.Prefix(ctx, content.plan, content)
		if err != nil {
			return nil, fmt.Errorf("emit prefix: %w", err)
		}
		sources = append(sources, blob(PrefixBlob, bundle.RolePrefix, "application/octet-stream", computed))
	}
	for name, data := range o.Files {
		sources = append(sources, blob(name, bundle.Role(name), "application/json", data))
	}
	return sources, nil
}

// manifestTarget says where a plan's bundle may run. A simulation names no device and no system: only the
// simulator answers to its name, on every machine.
func (o *Options) manifestTarget(p *planir.Plan, components []bundle.Component) bundle.Target {
	if p.Evidence() == planir.Simulated {
		return bundle.Target{SoC: []string{bundle.SimulatedSoC + p.SoC.Name}}
	}

	soc := p.SoC.Name
	if p.SoC.Fingerprint != "" {
		soc = p.SoC.Fingerprint
	}
	return bundle.Target{SoC: []string{soc}, OS: o.OS, Arch: o.Arch, Components: components}
}

// blob returns a blob of the bundle that is in memory.
func blob(name string, role bundle.Role, media string, data []byte) bundle.Source {
	return bundle.Source{Name: name, Role: role, Type: media, Bytes: int64(len(data)), Content: bytes.NewReader(data)}
}

// sources lists a plan, its artifacts and its weights as blobs.
func (c *Content) sources(ctx context.Context, prefix string, weights bundle.Role) ([]bundle.Source, error) {
	plan := c.plan
	// The plan names artifacts and weights without the prefix: two programs of a bundle differ by it alone.
	code, err := planir.Encode(plan)
	if err != nil {
		return nil, err
	}
	out := []bundle.Source{blob(prefix+PlanBlob, bundle.RolePlan, "application/vnd.hetc.plan.v1+json", code)}
	// Artifacts and weights are made while the bundle is written, so that they are not in memory together.
	for _, name := range slices.Sorted(maps.Keys(c.artifacts)) {
		made := c.artifacts[name]
		out = append(out, bundle.Source{
			Name: prefix + name, Role: roleOf(plan.Proc(made.proc)), Type: "application/octet-stream",
			Bytes: made.bytes,
			Write: func(dst io.Writer) error {
				code, err := made.read()
				if err == nil {
					_, err = dst.Write(code)
				}
				return err
			},
		})
	}
	for _, blob := range plan.Program.WeightBlobs() {
		out = append(out, bundle.Source{
			Name: prefix + blob.Name, Role: weights, Bytes: blob.Size,
			Write: func(dst io.Writer) error {
				if err := ctx.Err(); err != nil {
					return err
				}
				return c.writeBlob(dst, blob)
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
