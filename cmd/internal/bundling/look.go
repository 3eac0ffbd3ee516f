package bundling

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/hetc/hetc/cmd/internal/accept"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/cmd/internal/planview"
	"github.com/hetc/hetc/cmd/internal/runcmd"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/check"
	"github.com/hetc/hetc/planir/plantext"
	"github.com/hetc/hetc/runtime/programs"
	"github.com/hetc/hetc/socs"
)

// Verify verifies every byte of a bundle, and shows what else the bundle claims and what those
// claims were compared with.
func Verify(ctx context.Context, ui *cli.Streams, path string, terms *accept.Terms) error {
	accepted, err := terms.Open(ui, path, nil)
	if err != nil {
		return err
	}
	defer accepted.Close()
	line := ui.Line(false)
	err = accepted.VerifyAll(ctx, func(done, total int64) {
		line.Show("verify: %v of %v", unit.Bytes(done), unit.Bytes(total))
	})
	line.End()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	doc := map[string]any{"file": path, "verified": true, "identity": accepted.Digest().String(),
		"keyids": accepted.Signers()}
	// A plan that this version cannot read is no failure: its bytes are what was signed.
	plan, unread := verifiedPlan(accepted.Bundle)
	if unread == nil {
		if err := runcmd.CheckEvidence(accepted.Manifest(), plan); err != nil {
			return err
		}
		doc["evidence"] = plan.Evidence()
	} else {
		doc["plan_error"] = unread.Error()
	}
	ui.Printf("%s: verified, identity %s, signed by %v\n", path, accepted.Digest(), accepted.Signers())
	if unread != nil {
		ui.Warnf("this hetc cannot read the plan in it: %v", unread)
	} else {
		planview.ShowEvidence(ui, plan)
		planview.ShowAttention(ui, plan)
	}
	comparisons := accepted.Comparisons(false)
	accept.ShowComparisons(ui, comparisons)
	doc["comparisons"] = comparisons
	return ui.Result(doc)
}

// Inspect shows the claims of a bundle. Nothing is verified.
func Inspect(ui *cli.Streams, path string) error {
	unverified, err := bundle.Inspect(path)
	if err != nil {
		return err
	}
	showManifest(ui, path, unverified)
	report, err := claimedReport(path)
	if err != nil {
		return err
	}
	manifest, err := unverified.Manifest.Encode()
	if err != nil {
		return err
	}
	doc := map[string]any{
		"verified": false, "identity": unverified.Digest.String(), "claimed_signers": unverified.Signers,
		"manifest": json.RawMessage(manifest),
	}
	built, err := claimedPrograms(path, unverified)
	if err != nil {
		return err
	}
	if len(built) > 0 {
		ui.Printf("\n")
		doc["programs"] = built
	}
	for _, made := range built {
		ui.Printf("GPU programs: %d binaries of %s for exactly device %q with driver %q; others build the signed "+
			"sources\n", made.Programs, unit.Bytes(made.Bytes), made.Device, made.Driver)
	}
	if report != nil {
		ui.Printf("\n")
		showReport(ui, report)
		doc["report"] = report
	}
	if plan := ClaimedPlan(path); plan != nil {
		ui.Printf("\n")
		planview.ShowEvidence(ui, plan)
		planview.ShowAttention(ui, plan)
		planview.ShowLimits(ui, plan)
		planview.ShowKernels(ui, plan)
		if named := planview.NamedKernels(plan); named != nil {
			doc["kernels"] = named
		}
		doc["evidence"], doc["quality"], doc["memory"] = plan.Evidence(), plan.Quality, plan.Memory
	}
	return ui.Result(doc)
}

// builtPrograms are the binaries of a bundle for one device and driver.
type builtPrograms struct {
	Device   string `json:"device"`
	Driver   string `json:"driver"`
	Programs int    `json:"programs"`
	Bytes    int64  `json:"bytes"`
}

// claimedPrograms returns the binaries of GPU programs in a bundle, by the names of their devices. Nothing is verified.
func claimedPrograms(path string, unverified *bundle.Unverified) ([]builtPrograms, error) {
	var out []builtPrograms
	for _, blob := range unverified.Manifest.Blobs {
		if blob.Role != bundle.RoleGPUKernel || !strings.HasPrefix(blob.Name, programs.Folder) {
			continue
		}
		data, err := bundle.Claimed(path, blob.Name, blob.Bytes)
		if err != nil {
			return nil, err
		}
		made, ok := programs.Described(data)
		if !ok {
			return nil, diag.New(diag.ClassVerify, "%s: blob %q is no program of a device", path, blob.Name).
				WithHint("hetc verify says whether the file is what was signed")
		}
		at := slices.IndexFunc(out, func(of builtPrograms) bool {
			return of.Device == made.Device && of.Driver == made.Driver
		})
		if at < 0 {
			at = len(out)
			out = append(out, builtPrograms{Device: made.Device, Driver: made.Driver})
		}
		out[at].Programs++
		out[at].Bytes += blob.Bytes
	}
	slices.SortFunc(out, func(a, b builtPrograms) int {
		return cmp.Or(strings.Compare(a.Device, b.Device), strings.Compare(a.Driver, b.Driver))
	})
	return out, nil
}

// showManifest prints the claims of a bundle and the table of its blobs.
func showManifest(ui *cli.Streams, path string, unverified *bundle.Unverified) {
	manifest := unverified.Manifest
	ui.Printf("%s: not verified\n", path)
	ui.Printf("identity   %s\nclaims     signed by %v\n", unverified.Digest, unverified.Signers)
	ui.Printf("product    %s, version %s, security version %d\n", manifest.Product, manifest.Version,
		manifest.SecurityVersion)
	ui.Printf("target     %s\n", TargetText(&manifest.Target))
	for _, component := range manifest.Target.Components {
		ui.Printf("needs      %s that accepts token %s\n", component.Name, component.Token)
	}
	ui.Printf("toolchain  hetc %s, %s\n\n", manifest.Toolchain.Hetc, manifest.Toolchain.Plan)
	rows := make([][]string, len(manifest.Blobs))
	for i, blob := range manifest.Blobs {
		rows[i] = []string{blob.Name, string(blob.Role), strconv.FormatInt(blob.Bytes, 10), blob.SHA256.String()[:16]}
	}
	ui.Table([]string{"blob", "role", ">bytes", "sha256"}, rows)
}

// CheckPlan checks that a plan is legal for a model on a SoC, each a file or a catalog name.
func CheckPlan(ui *cli.Streams, path, socName, modelName string) error {
	plan, err := plantext.Read(path)
	if err != nil {
		return err
	}
	soc, err := socs.Open(socName)
	if err != nil {
		return err
	}
	model, err := models.Open(modelName)
	if err != nil {
		return err
	}
	defer model.Close()
	found := check.Plan(plan, model, soc)
	for _, finding := range found {
		if finding.Severity != diag.Error {
			ui.Warnf("%s", finding)
		}
	}
	if err := found.Err(); err != nil {
		return err
	}
	ui.Printf("%s: legal for %s on %s\n", path, plan.Model.Name, plan.SoC.Name)
	return ui.Result(map[string]any{"file": path, "legal": true})
}
