package bundling

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/socs"
)

// Options are the flags of hetc emit.
type Options struct {
	emit.Options
	Target          TargetFlags
	PlanFile        string
	ModelDir        string
	SoC             string // file or catalog name: check the plan against it again
	Key             string // private key that signs; "": the environment's
	CalibrationFile string
	PrefixFile      string // text of the system message whose cache the bundle brings along; "": none
	Output          string // bundle to write
	Binaries        bool   // build the programs of GPUs for the devices that are here
}

// Write makes a bundle of a plan, signs it, and tells what is in it.
func Write(cmd *cobra.Command, ui *cli.Streams, options *Options) error {
	if err := cli.Required(cmd, "plan", "model", "output"); err != nil {
		return err
	}
	if err := wholefile.Writable(options.Output); err != nil {
		return err
	}
	if options.NotAfter != 0 && options.NotAfter < time.Now().Unix() {
		at := unit.Moment(options.NotAfter)
		ui.Warnf("--not-after %s has passed by this machine's clock: hosts with the same time refuse the bundle", &at)
	}
	machine, public, err := options.open(cmd.Context(), ui)
	if err != nil {
		return err
	}
	defer options.Model.Close()
	if options.PrefixFile != "" {
		if err := options.computePrefix(ui, machine); err != nil {
			return err
		}
	}
	if options.Binaries {
		options.Prebuild = bindings.Drivers(machine)
	}
	progress := newStages(ui)
	options.Watch = progress.watch
	identity, err := Emit(cmd.Context(), options.Output, options.Options, machine)
	if err != nil {
		return err
	}
	progress.written()
	// What is told comes from the file that was written, not from what should be in it.
	written, err := bundle.Inspect(options.Output)
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	took := progress.show()
	report, err := claimedReport(options.Output)
	if err != nil {
		return fmt.Errorf("read back: %w", err)
	}
	if report != nil {
		showReport(ui, report)
	}
	blobs := len(written.Manifest.Blobs)
	cli.Wrote(ui, options.Output, "%s, %d blobs, identity %s, key %s", unit.Bytes(written.Bytes), blobs, identity,
		public.ID())
	doc := map[string]any{
		"file": options.Output, "bytes": written.Bytes, "blobs": blobs, "identity": identity.String(),
		"keyid": public.ID(),
	}
	if report != nil {
		doc["report"], doc["compiled"] = report, took
	}
	return ui.Result(doc)
}

// open reads the inputs of emit. The caller closes the model if there is no error.
func (o *Options) open(ctx context.Context, ui *cli.Streams) (machine *socs.SoC, public *bundle.Key, err error) {
	if o.Plan, err = plantext.Read(o.PlanFile); err != nil {
		return nil, nil, err
	}
	if o.Model, err = models.Open(o.ModelDir); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			o.Model.Close()
		}
	}()
	if machine, err = bindings.SoCOf(o.Plan, o.SoC); err != nil {
		return nil, nil, err
	}
	private, err := emit.LoadSigningKey(o.Key)
	if err != nil {
		return nil, nil, err
	}
	if o.Files, err = o.Model.TokenizerFiles(); err != nil {
		return nil, nil, err
	}
	if len(o.Files["tokenizer"]) == 0 {
		ui.Warnf("model %q has no tokenizer: the bundle runs on token ids only (--tokens)", o.ModelDir)
	}
	if o.Calibration, err = bindings.ReadCalibration(o.CalibrationFile); err != nil {
		return nil, nil, err
	}
	o.Signers = []bundle.Signer{private.Signer()}
	return machine, &private.Public, o.Target.Apply(ctx, &o.Options, machine, &private.Public)
}
