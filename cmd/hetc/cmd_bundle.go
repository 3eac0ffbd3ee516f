package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/bindings"
	"github.com/hetc/hetc/cmd/internal/bundling"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/planview"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/socs"
)

func newEmit(s *cli.Streams) *cobra.Command {
	var plan, model, key, out, soc, cal string
	var o emit.Options
	var target bundling.TargetFlags
	c := &cobra.Command{
		Use:   "emit --plan plan.yaml --model DIR --key NAME.key -o app.hetb",
		Short: "pack the weights, compile the graphs, and sign a bundle",
		Long: `Writes a signed bundle: the plan's program, compiled graphs, packed weights, tokenizer. The plan is
checked against the model first, and against the SoC when --soc is given. The same inputs and key give
the same bytes. The key comes from --key, or from the environment: ` + emit.EnvSigningKey + ` (PEM text) or
` + emit.EnvSigningKeyFile + ` (a file).

A plan that was made with a calibration needs the same file again (--calibration): its folds change the
weights, and what it knows about activations decides how 4-bit weights are rounded.

--with-reference adds a reference program, which hetrun --check compares the plan's execution with.

A plan for a simulated SoC becomes a bundle for its device with --target NAME, the plan's SoC: its processors are those that the SoC's
target data name, and the graphs of an NPU are compiled with their weights by its vendor's compiler, which needs no device (make deps-qnn
fetches Qualcomm's; docs/npu.md). One graph of every kind is executed by the vendor's emulator on random values and compared with float32 and with the
uncompiled model in another engine; a graph beyond its bound is not written. What was compiled is kept in the cache ($` + bindings.EnvCache + `). --for-emulator
writes the bundle's twin for this machine: the same graphs for the vendor's emulator, the CPU's part on this CPU. Its times mean nothing.
With --twin the report of the bundle names the digest of every graph's twin; the twin is verified by the key that signs.

A graph that cannot be compiled, or is beyond its bound, is refused, with the processor that could execute its operators instead;
--allow-fallback gives them to the control processor, and says so here, in the plan and in the report.

` + cli.ExitCodes,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := cli.Required(c, "plan", "model", "output"); err != nil {
				return err
			}
			if err := wholefile.Writable(out); err != nil {
				return err
			}
			p, err := plantext.Read(plan)
			if err != nil {
				return err
			}
			m, err := models.Open(model)
			if err != nil {
				return err
			}
			defer m.Close()
			machine, err := bindings.SoCOf(p, soc)
			if err != nil {
				return err
			}
			private, err := emit.LoadSigningKey(key)
			if err != nil {
				return err
			}
			if o.Files, err = m.TokenizerFiles(); err != nil {
				return err
			}
			if len(o.Files["tokenizer"]) == 0 {
				s.Warnf("model %q has no tokenizer: the bundle runs on token ids only (--tokens)", model)
			}
			if o.Calibration, err = bindings.ReadCalibration(cal); err != nil {
				return err
			}
			o.Plan, o.Model, o.Signers = p, m, []bundle.Signer{private.Signer()}
			if err := target.Apply(c.Context(), &o, machine, &private.Public); err != nil {
				return err
			}
			progress := bundling.NewProgress(s)
			o.Watch = progress.Watch
			id, err := bundling.Emit(c.Context(), out, o, machine)
			if err != nil {
				return err
			}
			progress.Written()
			u, err := bundle.Inspect(out)
			if err != nil {
				return fmt.Errorf("read back: %w", err)
			}
			took := progress.Show()
			report, err := bundling.ClaimedReport(out)
			if err != nil {
				return fmt.Errorf("read back: %w", err)
			}
			if report != nil {
				bundling.ShowReport(s, report)
			}
			cli.Wrote(s, out, "%s, %d blobs, identity %s, key %s", unit.Bytes(u.Bytes), len(u.Manifest.Blobs), id, private.Public.ID())
			doc := map[string]any{"file": out, "bytes": u.Bytes, "blobs": len(u.Manifest.Blobs), "identity": id.String(), "keyid": private.Public.ID()}
			if report != nil {
				doc["report"], doc["compiled"] = report, took
			}
			return s.Result(doc)
		},
	}
	f := c.Flags()
	f.StringVar(&plan, "plan", "", "plan to emit")
	f.StringVar(&model, "model", "", "model directory with weights")
	f.StringVar(&soc, "soc", "", "check the plan against this SoC again")
	f.StringVar(&cal, "calibration", "", "calibration that the plan was made with")
	f.StringVar(&target.Name, "target", "", "make a bundle for the device of this SoC, the plan's")
	f.BoolVar(&target.Emulator, "for-emulator", false, "make the twin for the vendor's emulator, on this machine")
	f.BoolVar(&target.Fallback, "allow-fallback", false, "give what cannot be compiled to the control processor, and say so")
	f.StringVar(&target.Twin, "twin", "", "the twin made before, whose digests the report repeats")
	f.StringVar(&key, "key", "", "private key that signs")
	f.StringVarP(&out, "output", "o", "", "bundle to write")
	f.BoolVar(&o.Reference, "with-reference", false, "add a reference program for hetrun --check")
	f.StringVar(&o.Product, "product", "hetc", "domain of trust and rollback")
	f.StringVar(&o.Version, "bundle-version", "0", "version of the bundle, for people")
	f.Int64Var(&o.SecurityVersion, "security-version", 0, "raised when older bundles must be refused")
	f.Int64Var(&o.Generation, "keyring-generation", 1, "generation of the keyring the bundle is signed for")
	f.Int64Var(&o.NotAfter, "not-after", 0, "unix time after which hosts refuse it, by their clock, 0: never")
	return c
}

func newVerify(s *cli.Streams) *cobra.Command {
	var terms accept.Terms
	c := &cobra.Command{
		Use:   "verify app.hetb --trust NAME.pub",
		Short: "verify every byte of a bundle",
		Long: `Verifies header, envelope, signature, manifest, layout, chunk table and every byte of every blob.
A refusal names the step that failed.

Whether a machine may run the bundle is more than that. The table behind the result says what else the bundle claims, and
what that was compared with: its time always (--now, --ignore-expiry), product, security version and the versions accepted
before where flags ask for it (--product, --min-security-version, --state), the target never: hetrun compares it with the
machine it runs on. --state is only read here; hetrun raises it after a successful run.

` + cli.ExitCodes,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := cli.Required(c, "trust"); err != nil {
				return err
			}
			b, err := terms.Open(s, args[0], nil)
			if err != nil {
				return err
			}
			defer b.Close()
			line := s.Line(false)
			err = b.VerifyAll(c.Context(), func(done, total int64) {
				line.Show("verify: %v of %v", unit.Bytes(done), unit.Bytes(total))
			})
			line.End()
			if err != nil {
				return err
			}
			doc := map[string]any{"file": args[0], "verified": true, "identity": b.Digest().String(), "keyids": b.Signers()}
			p, unread := bundling.VerifiedPlan(b.Bundle)
			if unread == nil {
				if err := runcmd.CheckEvidence(b.Manifest(), p); err != nil {
					return err
				}
				doc["evidence"] = p.Evidence()
			} else {
				doc["plan_error"] = unread.Error()
			}
			s.Printf("%s: verified, identity %s, signed by %v\n", args[0], b.Digest(), b.Signers())
			if unread != nil { // its bytes are what was signed all the same
				s.Warnf("this hetc cannot read the plan in it: %v", unread)
			} else {
				planview.ShowEvidence(s, p)
			}
			comparisons := b.Comparisons(false)
			accept.ShowComparisons(s, comparisons)
			doc["comparisons"] = comparisons
			return s.Result(doc)
		},
	}
	terms.Register(c.Flags())
	return c
}

func newInspect(s *cli.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect app.hetb",
		Short: "show what a bundle says about itself, without a key",
		Long: `Shows a bundle's manifest, and what is known of the graphs that were compiled with their weights. Nothing is verified: neither signature nor contents (hetc verify does that).

` + cli.ExitCodes,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			u, err := bundle.Inspect(args[0])
			if err != nil {
				return err
			}
			m := u.Manifest
			s.Printf("%s: not verified\n", args[0])
			s.Printf("identity   %s\nclaims     signed by %v\nproduct    %s, version %s, security version %d\n", u.Digest, u.Signers, m.Product, m.Version, m.SecurityVersion)
			s.Printf("target     %s\n", bundling.TargetText(&m.Target))
			for _, x := range m.Target.Components {
				s.Printf("needs      %s that accepts token %s\n", x.Name, x.Token)
			}
			s.Printf("toolchain  hetc %s, %s\n\n", m.Toolchain.Hetc, m.Toolchain.Plan)
			rows := make([][]string, len(m.Blobs))
			for i, b := range m.Blobs {
				rows[i] = []string{b.Name, string(b.Role), strconv.FormatInt(b.Bytes, 10), b.SHA256.String()[:16]}
			}
			s.Table([]string{"blob", "role", ">bytes", "sha256"}, rows)
			report, err := bundling.ClaimedReport(args[0])
			if err != nil {
				return err
			}
			if report != nil {
				s.Printf("\n")
				bundling.ShowReport(s, report)
			}
			doc := map[string]any{"verified": false, "identity": u.Digest.String(), "claimed_signers": u.Signers, "manifest": m}
			if p := bundling.ClaimedPlan(args[0]); p != nil {
				s.Printf("\n")
				planview.ShowEvidence(s, p)
				planview.ShowLimits(s, p)
				doc["evidence"], doc["quality"], doc["memory"] = p.Evidence(), p.Quality, p.Memory
			}
			if report != nil {
				doc["report"] = report
			}
			return s.Result(doc)
		},
	}
}

func newCheck(s *cli.Streams) *cobra.Command {
	var soc, model string
	c := &cobra.Command{
		Use:   "check plan.yaml --soc soc.yaml --model DIR",
		Short: "check that a plan is legal for a model on a machine",
		Long: `Checks every numbered rule (planir/SPEC.md), then recomputes the program from the decisions and compares
it, the digests, the shapes and the processors' capabilities with model and SoC. Legality is not cost: a
slow plan is legal.

` + cli.ExitCodes,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := cli.Required(c, "soc", "model"); err != nil {
				return err
			}
			p, err := plantext.Read(args[0])
			if err != nil {
				return err
			}
			machine, err := socs.Open(soc)
			if err != nil {
				return err
			}
			m, err := models.Open(model)
			if err != nil {
				return err
			}
			defer m.Close()
			found := check.Plan(p, m, machine)
			for _, d := range found {
				if d.Severity != diag.Error {
					s.Warnf("%s", d)
				}
			}
			if err := found.Err(); err != nil {
				return err
			}
			s.Printf("%s: legal for %s on %s\n", args[0], p.Model.Name, p.SoC.Name)
			return s.Result(map[string]any{"file": args[0], "legal": true})
		},
	}
	c.Flags().StringVar(&soc, "soc", "", "SoC file or catalog name")
	c.Flags().StringVar(&model, "model", "", "model directory or catalog name")
	return c
}
