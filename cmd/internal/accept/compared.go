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

// Comparisons are what was compared beside signature, layout and contents, and what was not. target says that the
// bundle's target was.
func (a *Accepted) Comparisons(target bool) []Comparison {
	m, t := a.Manifest(), a.terms
	out := []Comparison{
		{What: "product", Claims: m.Product, Compared: t.product != "", With: "--" + flagProduct, How: "--" + flagProduct + " NAME"},
		a.securityVersion(),
		{What: "keyring generation", Claims: fmt.Sprint(m.KeyringGeneration), Compared: true, With: "the trusted keys"},
		{What: "issued", Claims: moment(m.IssuedAt, "not stated"), Compared: !t.ignoreExpiry, With: t.clockName(), How: "without --" + flagIgnoreExpiry},
		{What: "expires", Claims: moment(m.NotAfter, "never"), Compared: !t.ignoreExpiry, With: t.clockName(), How: "without --" + flagIgnoreExpiry},
		{What: "target", Claims: a.target(), Compared: target, With: "this machine", How: "hetrun does, with the machine it runs on"},
	}
	for i := range out {
		if out[i].Compared {
			out[i].How = ""
		} else {
			out[i].With = ""
		}
	}
	return out
}

func (a *Accepted) securityVersion() Comparison {
	c := Comparison{What: "security version", Claims: fmt.Sprint(a.Manifest().SecurityVersion), How: fmt.Sprintf("--%s N, --%s FILE", flagMinSecurity, flagState)}
	var with []string
	if a.terms.minSecurity > 0 {
		with = append(with, fmt.Sprintf("--%s %d", flagMinSecurity, a.terms.minSecurity))
	}
	if a.state != nil {
		stored := "nothing stored"
		if r := a.state.stored.Of(a.Manifest().Product); r != nil {
			stored = fmt.Sprintf("%d of generation %d", r.SecurityVersion, r.Generation)
		}
		with = append(with, fmt.Sprintf("%s: %s", a.terms.state, stored))
	}
	c.With, c.Compared = strings.Join(with, ", "), len(with) > 0
	return c
}

// target describes where the bundle may run.
func (a *Accepted) target() string {
	t := &a.Manifest().Target
	var parts []string
	say := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if len(t.SoC) > 0 {
		say("soc %s", strings.Join(t.SoC, " or "))
	}
	if t.OS != "" || t.Arch != "" {
		say("%s/%s", t.OS, t.Arch)
	}
	if len(t.CPUFeatures) > 0 {
		say("cpu features %s", strings.Join(t.CPUFeatures, " "))
	}
	if t.RAMBytes > 0 {
		say("%d bytes of memory", t.RAMBytes)
	}
	for i := range t.Components {
		say("%s", t.Components[i].Name)
	}
	if len(parts) == 0 {
		return "any machine"
	}
	return strings.Join(parts, ", ")
}

func (t *Terms) clockName() string {
	if t.now != "" {
		return fmt.Sprintf("--%s %s", flagNow, t.now)
	}
	return "this machine's clock"
}

func moment(seconds int64, none string) string {
	if seconds == 0 {
		return none
	}
	return time.Unix(seconds, 0).UTC().Format(time.RFC3339)
}

// ShowComparisons prints them as a table.
func ShowComparisons(s *cli.Streams, list []Comparison) {
	rows := make([][]string, len(list))
	for i, c := range list {
		with := c.With
		if !c.Compared {
			with = "not compared: " + c.How
		}
		rows[i] = []string{c.What, c.Claims, with}
	}
	s.Table([]string{"demand", "bundle says", "<compared with"}, rows)
}
