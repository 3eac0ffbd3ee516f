package bundling

import (
	"context"
	"strconv"

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
	"github.com/hetc/hetc/socs"
)

// Verify verifies every byte of a bundle, and tells what else it claims and what that was compared with.
func Verify(ctx context.Context, s *cli.Streams, path string, terms *accept.Terms) error {
	b, err := terms.Open(s, path, nil)
	if err != nil {
		return err
	}
	defer b.Close()
	line := s.Line(false)
	err = b.VerifyAll(ctx, func(done, total int64) {
		line.Show("verify: %v of %v", unit.Bytes(done), unit.Bytes(total))
	})
	line.End()
	if err != nil {
		return err
	}
	doc := map[string]any{"file": path, "verified": true, "identity": b.Digest().String(), "keyids": b.Signers()}
	p, unread := verifiedPlan(b.Bundle)
	if unread == nil {
		if err := runcmd.CheckEvidence(b.Manifest(), p); err != nil {
			return err
		}
		doc["evidence"] = p.Evidence()
	} else {
		doc["plan_error"] = unread.Error()
	}
	s.Printf("%s: verified, identity %s, signed by %v\n", path, b.Digest(), b.Signers())
	if unread != nil { // its bytes are what was signed all the same
		s.Warnf("this hetc cannot read the plan in it: %v", unread)
	} else {
		planview.ShowEvidence(s, p)
	}
	comparisons := b.Comparisons(false)
	accept.ShowComparisons(s, comparisons)
	doc["comparisons"] = comparisons
	return s.Result(doc)
}

// Inspect shows what a bundle says of itself. Nothing is verified.
func Inspect(s *cli.Streams, path string) error {
	unverified, err := bundle.Inspect(path)
	if err != nil {
		return err
	}
	showManifest(s, path, unverified)
	report, err := claimedReport(path)
	if err != nil {
		return err
	}
	doc := map[string]any{
		"verified": false, "identity": unverified.Digest.String(), "claimed_signers": unverified.Signers,
		"manifest": unverified.Manifest,
	}
	if report != nil {
		s.Printf("\n")
		showReport(s, report)
		doc["report"] = report
	}
	if p := ClaimedPlan(path); p != nil {
		s.Printf("\n")
		planview.ShowEvidence(s, p)
		planview.ShowLimits(s, p)
		doc["evidence"], doc["quality"], doc["memory"] = p.Evidence(), p.Quality, p.Memory
	}
	return s.Result(doc)
}

// showManifest prints the claims of a bundle and the table of its blobs.
func showManifest(s *cli.Streams, path string, unverified *bundle.Unverified) {
	m := unverified.Manifest
	s.Printf("%s: not verified\n", path)
	s.Printf("identity   %s\nclaims     signed by %v\n", unverified.Digest, unverified.Signers)
	s.Printf("product    %s, version %s, security version %d\n", m.Product, m.Version, m.SecurityVersion)
	s.Printf("target     %s\n", TargetText(&m.Target))
	for _, component := range m.Target.Components {
		s.Printf("needs      %s that accepts token %s\n", component.Name, component.Token)
	}
	s.Printf("toolchain  hetc %s, %s\n\n", m.Toolchain.Hetc, m.Toolchain.Plan)
	rows := make([][]string, len(m.Blobs))
	for i, blob := range m.Blobs {
		rows[i] = []string{blob.Name, string(blob.Role), strconv.FormatInt(blob.Bytes, 10), blob.SHA256.String()[:16]}
	}
	s.Table([]string{"blob", "role", ">bytes", "sha256"}, rows)
}

// CheckPlan checks that a plan is legal for a model on a SoC, each a file or a catalog name.
func CheckPlan(s *cli.Streams, path, soc, model string) error {
	p, err := plantext.Read(path)
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
	s.Printf("%s: legal for %s on %s\n", path, p.Model.Name, p.SoC.Name)
	return s.Result(map[string]any{"file": path, "legal": true})
}
