// Package diff knows in what two plans or two bundles differ.
package diff

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"github.com/hetc/hetc/cmd/internal/bundling"
	"github.com/hetc/hetc/cmd/internal/cli"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/plantext"
)

// difference is something that two plans or bundles do not have alike. A side that lacks it is "".
type difference struct {
	Section string `json:"section"` // inputs, processors, decisions, ...
	What    string `json:"what"`
	A       string `json:"a"`
	B       string `json:"b"`
}

// Compare shows in what two plans, or two bundles, differ.
func Compare(ui *cli.Streams, pathA, pathB string) error {
	a, err := open(pathA)
	if err != nil {
		return err
	}
	b, err := open(pathB)
	if err != nil {
		return err
	}
	// A bundle holds a plan, but says more than one: what differs by kind alone would be listed as differences.
	if (a.manifest == nil) != (b.manifest == nil) {
		return diag.New(diag.ClassUsage, "diff: one of %q and %q is a bundle, and the other a plan", pathA, pathB).
			WithHint("compare two plans, or two bundles")
	}
	differences := []difference{}
	// what the manifests say, then what the plans do
	if a.manifest != nil {
		differences = append(differences, bundles(a, b)...)
	}
	bothPlans := a.plan != nil && b.plan != nil
	if bothPlans {
		differences = append(differences, plans(a.plan, b.plan)...)
	}
	if len(differences) == 0 {
		ui.Printf("equal\n")
	}
	// Notes stand before the table: they say how far it can be trusted.
	notes := caveats(a.plan, b.plan)
	for _, note := range notes {
		ui.Printf("%s\n", note)
	}
	var rows [][]string
	for _, difference := range differences {
		rows = append(rows, []string{difference.Section, difference.What, orDash(difference.A), orDash(difference.B)})
	}
	if rows != nil {
		ui.Table([]string{"", "what", "A", "B"}, rows)
		ui.Printf("%s\n", cli.Count(len(differences), "difference"))
	}
	doc := map[string]any{
		"equal": len(differences) == 0, "a": pathA, "b": pathB, "notes": notes, "differences": differences,
	}
	if bothPlans {
		doc["evidence_a"], doc["evidence_b"] = a.plan.Evidence(), b.plan.Evidence()
	}
	return ui.Result(doc)
}

// caveats say what a reader of the differences has to know. A plan that cannot be read is nil.
func caveats(a, b *planir.Plan) (notes []string) {
	if a == nil || b == nil {
		return []string{"a bundle whose plan cannot be read is compared by its manifest only"}
	}
	if a.Model.Name != b.Model.Name {
		notes = append(notes, fmt.Sprintf("the plans are for different models (%s, %s): only what has the same name "+
			"is compared",
			a.Model.Name, b.Model.Name))
	}
	if a.SoC.Name != b.SoC.Name {
		notes = append(notes, fmt.Sprintf("the plans are for different SoCs (%s, %s): times are of different machines",
			a.SoC.Name, b.SoC.Name))
	}
	if text := a.EvidenceText(); text != "" {
		notes = append(notes, "A is "+text)
	}
	if text := b.EvidenceText(); text != "" {
		notes = append(notes, "B is "+text)
	}
	if a.SoC.Imported || b.SoC.Imported {
		notes = append(notes, "times of imported records were measured elsewhere")
	}
	return notes
}

// orDash shows what a side lacks.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// side is one of what is compared: a plan, or a bundle with the plan it claims to hold.
type side struct {
	// nil where it cannot be read
	plan *planir.Plan
	// nil for a plan
	manifest *bundle.Manifest
	digest   string
	signers  []string
}

// open reads a plan, or the manifest of a bundle with the plan that it claims.
func open(path string) (*side, error) {
	if isBundle(path) {
		unverified, err := bundle.Inspect(path)
		if err != nil {
			return nil, err
		}
		return &side{
			plan: bundling.ClaimedPlan(path), manifest: unverified.Manifest, digest: unverified.Digest.String(),
			signers: unverified.Signers,
		}, nil
	}
	plan, err := plantext.Read(path)
	if err != nil {
		return nil, err
	}
	return &side{plan: plan}, nil
}

// isBundle tells by its first bytes, or because it is a directory.
func isBundle(path string) bool {
	st, err := os.Stat(path)
	if err != nil {
		return false // plantext says it better
	}
	if st.IsDir() {
		return true
	}
	if !st.Mode().IsRegular() {
		return false
	}
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	// A file that is no whole bundle but is called one is opened as one, for the better error.
	head := make([]byte, 5)
	n, _ := file.Read(head)
	return bytes.Equal(head[:n], []byte("\x89HETB")) || strings.HasSuffix(path, ".hetb")
}

// bundles compares what two manifests claim.
func bundles(a, b *side) []difference {
	var found findings
	manifestA, manifestB := a.manifest, b.manifest
	found.add("bundle", "identity", a.digest[:16], b.digest[:16])
	found.add("bundle", "claims signed by", strings.Join(a.signers, " "), strings.Join(b.signers, " "))
	found.add("bundle", "product", manifestA.Product, manifestB.Product)
	found.add("bundle", "version", manifestA.Version, manifestB.Version)
	found.add("bundle", "security version", fmt.Sprint(manifestA.SecurityVersion),
		fmt.Sprint(manifestB.SecurityVersion))
	found.add("bundle", "target", bundling.TargetText(&manifestA.Target), bundling.TargetText(&manifestB.Target))
	found.byName("blobs", blobs(manifestA), blobs(manifestB))
	return found
}

// blobs are sizes and digests by name.
func blobs(m *bundle.Manifest) map[string]string {
	out := map[string]string{}
	for _, blob := range m.Blobs {
		out[blob.Name] = fmt.Sprintf("%d bytes, %.16s", blob.Bytes, blob.SHA256)
	}
	return out
}
