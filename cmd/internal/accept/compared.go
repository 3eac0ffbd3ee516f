package accept

import (
	"fmt"
	"strings"
	"time"

	"github.com/hetc/hetc/cmd/internal/cli"
)

// Comparison is a demand of a bundle or of its host, and what it was compared with.
type Comparison struct {
	What     string `json:"what"`
	Claims   string `json:"claims"` // what was signed
	Compared bool   `json:"compared"`
	With     string `json:"with,omitempty"`
	How      string `json:"how,omitempty"` // to have it compared
}

// Comparisons returns what was compared beside signature, layout and contents, and what was not. target says that the
// bundle's target was.
func (a *Accepted) Comparisons(target bool) []Comparison {
	manifest, terms := a.Manifest(), a.terms
	out := []Comparison{
		{
			What: "product", Claims: manifest.Product, Compared: terms.product != "", With: "--" + flagProduct,
			How: "--" + flagProduct + " NAME",
		},
		a.securityVersion(),
		{
			What: "keyring generation", Claims: fmt.Sprint(manifest.KeyringGeneration), Compared: true,
			With: "the trusted keys",
		},
		{
			What: "issued", Claims: moment(manifest.IssuedAt, "not stated"), Compared: !terms.ignoreExpiry,
			With: terms.clockName(), How: "without --" + flagIgnoreExpiry,
		},
		{
			What: "expires", Claims: moment(manifest.NotAfter, "never"), Compared: !terms.ignoreExpiry,
			With: terms.clockName(), How: "without --" + flagIgnoreExpiry,
		},
		{
			What: "target", Claims: a.target(), Compared: target, With: "this machine",
			How: "hetrun does, with the machine it runs on",
		},
	}
	// each comparison says either what it was made with, or how to have it made
	for i := range out {
		if out[i].Compared {
			out[i].How = ""
		} else {
			out[i].With = ""
		}
	}
	return out
}

// securityVersion returns the claim of the security version, compared with --min-security-version and the stored
// ratchet.
func (a *Accepted) securityVersion() Comparison {
	comparison := Comparison{
		What: "security version", Claims: fmt.Sprint(a.Manifest().SecurityVersion),
		How: fmt.Sprintf("--%s N, --%s FILE", flagMinSecurity, flagState),
	}
	var with []string
	if a.terms.minSecurity > 0 {
		with = append(with, fmt.Sprintf("--%s %d", flagMinSecurity, a.terms.minSecurity))
	}
	if a.state != nil {
		stored := "nothing stored"
		if ratchet := a.state.stored.Of(a.Manifest().Product); ratchet != nil {
			stored = fmt.Sprintf("%d of generation %d", ratchet.SecurityVersion, ratchet.Generation)
		}
		with = append(with, fmt.Sprintf("%s: %s", a.terms.state, stored))
	}
	comparison.With, comparison.Compared = strings.Join(with, ", "), len(with) > 0
	return comparison
}

// target describes where the bundle may run.
func (a *Accepted) target() string {
	target := &a.Manifest().Target
	var parts []string
	say := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if len(target.SoC) > 0 {
		say("soc %s", strings.Join(target.SoC, " or "))
	}
	if target.OS != "" || target.Arch != "" {
		say("%s/%s", target.OS, target.Arch)
	}
	if len(target.CPUFeatures) > 0 {
		say("cpu features %s", strings.Join(target.CPUFeatures, " "))
	}
	if target.RAMBytes > 0 {
		say("%d bytes of memory", target.RAMBytes)
	}
	for i := range target.Components {
		say("%s", target.Components[i].Name)
	}
	if len(parts) == 0 {
		return "any machine"
	}
	return strings.Join(parts, ", ")
}

// clockName says by which clock expiry is judged.
func (t *Terms) clockName() string {
	if t.now != "" {
		return fmt.Sprintf("--%s %s", flagNow, t.now)
	}
	return "this machine's clock"
}

// moment writes unix seconds in UTC; none stands for 0.
func moment(seconds int64, none string) string {
	if seconds == 0 {
		return none
	}
	return time.Unix(seconds, 0).UTC().Format(time.RFC3339)
}

// ShowComparisons prints them as a table.
func ShowComparisons(ui *cli.Streams, list []Comparison) {
	rows := make([][]string, len(list))
	for i, comparison := range list {
		with := comparison.With
		if !comparison.Compared {
			with = "not compared: " + comparison.How
		}
		rows[i] = []string{comparison.What, comparison.Claims, with}
	}
	ui.Table([]string{"demand", "bundle says", "<compared with"}, rows)
}
