// Package diff knows in what two plans or two bundles differ.
package diff

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/hetc/hetc/cmd/internal/bundling"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/bundle"
	"github.com/hetc/hetc/planir/plantext"
)

// Unlike is something that two plans or bundles do not have alike. A side that lacks it is "".
type Unlike struct {
	Section string `json:"section"` // inputs, processors, decisions, ...
	What    string `json:"what"`
	A       string `json:"a"`
	B       string `json:"b"`
}

func Short(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

// side is one of what is compared: a plan, or a bundle with the plan it claims to hold.
type side struct {
	Plan     *planir.Plan
	Manifest *bundle.Manifest
	digest   string
	signers  []string
}

func Open(path string) (*side, error) {
	if isBundle(path) {
		u, err := bundle.Inspect(path)
		if err != nil {
			return nil, err
		}
		return &side{Plan: bundling.ClaimedPlan(path), Manifest: u.Manifest, digest: u.Digest.String(), signers: u.Signers}, nil
	}
	p, err := plantext.Read(path)
	if err != nil {
		return nil, err
	}
	return &side{Plan: p}, nil
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
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	head := make([]byte, 5)
	n, _ := f.Read(head)
	return bytes.Equal(head[:n], []byte("\x89HETB")) || strings.HasSuffix(path, ".hetb")
}

func Bundles(a, b *side) []Unlike {
	var out []Unlike
	add := func(section, what, x, y string) {
		if x != y {
			out = append(out, Unlike{section, what, x, y})
		}
	}
	m, n := a.Manifest, b.Manifest
	add("bundle", "identity", a.digest[:16], b.digest[:16])
	add("bundle", "claims signed by", strings.Join(a.signers, " "), strings.Join(b.signers, " "))
	add("bundle", "product", m.Product, n.Product)
	add("bundle", "version", m.Version, n.Version)
	add("bundle", "security version", fmt.Sprint(m.SecurityVersion), fmt.Sprint(n.SecurityVersion))
	add("bundle", "target", bundling.TargetText(&m.Target), bundling.TargetText(&n.Target))
	blobs := func(m *bundle.Manifest) map[string]string {
		out := map[string]string{}
		for _, x := range m.Blobs {
			out[x.Name] = fmt.Sprintf("%d bytes, %.16s", x.Bytes, x.SHA256)
		}
		return out
	}
	out = append(out, diffMaps("blobs", blobs(m), blobs(n))...)
	return out
}

// diffMaps compares by name.
func diffMaps(section string, a, b map[string]string) []Unlike {
	names := map[string]bool{}
	for k := range a {
		names[k] = true
	}
	for k := range b {
		names[k] = true
	}
	var out []Unlike
	for _, k := range slices.Sorted(maps.Keys(names)) {
		if x, inA := a[k]; true {
			if y, inB := b[k]; inA != inB || x != y {
				out = append(out, Unlike{section, k, x, y})
			}
		}
	}
	return out
}

func Plans(a, b *planir.Plan) []Unlike {
	var out []Unlike
	add := func(section, what, x, y string) {
		if x != y {
			out = append(out, Unlike{section, what, x, y})
		}
	}
	id := func(name, digest string) string { return fmt.Sprintf("%s (%.12s)", name, digest) }
	add("inputs", "model", id(a.Model.Name, a.Model.Digest), id(b.Model.Name, b.Model.Digest))
	add("plan", "evidence", string(a.Evidence()), string(b.Evidence()))
	add("inputs", "soc", id(a.SoC.Name, a.SoC.Digest), id(b.SoC.Name, b.SoC.Digest))
	inputs := func(p *planir.Plan) map[string]string {
		out := map[string]string{}
		for _, x := range p.Inputs {
			out[x.Kind] = fmt.Sprintf("%.12s", x.Digest)
		}
		return out
	}
	out = append(out, diffMaps("inputs", inputs(a), inputs(b))...)
	add("plan", "context", fmt.Sprint(a.MaxContext), fmt.Sprint(b.MaxContext))
	add("plan", "cache", string(a.KV), string(b.KV))
	add("plan", "batches", trim(a.Batches), trim(b.Batches))
	add("plan", "folds", strings.Join(a.Folds, ", "), strings.Join(b.Folds, ", "))
	buckets := func(p *planir.Plan) string {
		var list []int
		for _, ph := range p.Program.Programs {
			if ph.Phase == "prefill" {
				list = append(list, ph.Rows)
			}
		}
		slices.Sort(list)
		return trim(list)
	}
	add("plan", "buckets", buckets(a), buckets(b))
	procs := func(p *planir.Plan) map[string]string {
		out := map[string]string{}
		for _, x := range p.Procs {
			out[x.Name] = fmt.Sprintf("%s, driver %s %s", x.Kind, x.Driver, x.Select)
		}
		return out
	}
	out = append(out, diffMaps("processors", procs(a), procs(b))...)
	for i := range a.Procs {
		if q := b.Proc(a.Procs[i].Name); q != nil && !reflect.DeepEqual(&a.Procs[i], q) && len(diffMaps("", procs(&planir.Plan{Procs: a.Procs[i : i+1]}), procs(&planir.Plan{Procs: []planir.Proc{*q}}))) == 0 {
			out = append(out, Unlike{"processors", q.Name, "other capabilities", "other capabilities"})
		}
	}
	decisions := func(p *planir.Plan) map[string]string {
		out := map[string]string{}
		for i := range p.Decisions {
			d := &p.Decisions[i]
			out[fmt.Sprintf("%s@%d", d.Node, d.Rows)] = strings.TrimSpace(fmt.Sprintf("%s %s %s", d.Scheme, d.Strategy, d.ShareText()))
		}
		return out
	}
	out = append(out, inOrder(diffMaps("decisions", decisions(a), decisions(b)), a, b)...)
	times := func(p *planir.Plan) map[string]string {
		out := map[string]string{}
		for _, x := range p.Predictions {
			out[x.Program] = fmt.Sprintf("%.3f ms", float64(x.PlanNS)/1e6)
		}
		return out
	}
	for _, d := range diffMaps("predictions", times(a), times(b)) {
		var x, y int64
		for _, p := range a.Predictions {
			if p.Program == d.What {
				x = p.PlanNS
			}
		}
		for _, p := range b.Predictions {
			if p.Program == d.What {
				y = p.PlanNS
			}
		}
		if x > 0 && y > 0 {
			d.B += fmt.Sprintf(" (%+.1f %%)", 100*(float64(y)/float64(x)-1))
		}
		out = append(out, d)
	}
	quality := func(p *planir.Plan) map[string]string {
		out := map[string]string{}
		for _, q := range p.Quality {
			out[q.Phase] = fmt.Sprintf("KL %.3g", q.KL)
		}
		return out
	}
	out = append(out, diffMaps("quality", quality(a), quality(b))...)
	memory := func(p *planir.Plan) map[string]string {
		m := p.Memory
		if m == nil {
			return nil
		}
		out := map[string]string{}
		for _, x := range []struct {
			name  string
			bytes int64
		}{{"total", m.Total}, {"weights", m.Weights}, {"tables", m.Tables}, {"cache", m.Cache}, {"buffers", m.Pool}, {"bound", m.Max}} {
			if x.bytes > 0 {
				out[x.name] = fmt.Sprintf("%v", unit.Bytes(x.bytes))
			}
		}
		return out
	}
	out = append(out, diffMaps("memory", memory(a), memory(b))...)
	if (a.Tiers == nil) != (b.Tiers == nil) || a.Tiers != nil && !reflect.DeepEqual(a.Tiers, b.Tiers) {
		tiers := func(p *planir.Plan) string {
			if p.Tiers == nil {
				return ""
			}
			return fmt.Sprintf("tiers of %v rows, %.3f ms for %d tokens", p.Tiers.Capacities, float64(p.Tiers.ExpectNS)/1e6, p.Tiers.ChunkTokens)
		}
		out = append(out, Unlike{"experts", "tiers", tiers(a), tiers(b)})
	}
	if len(out) == 0 { // whatever else there is
		x, err1 := planir.Digest(a)
		y, err2 := planir.Digest(b)
		if err1 == nil && err2 == nil {
			add("plan", "digest", x[:12], y[:12])
		}
	}
	return out
}

func trim(list []int) string { return strings.Trim(fmt.Sprint(list), "[]") }

// inOrder puts differences of decisions into the order of the plans.
func inOrder(list []Unlike, a, b *planir.Plan) []Unlike {
	at := map[string]int{}
	for _, p := range []*planir.Plan{a, b} {
		for i := range p.Decisions {
			name := fmt.Sprintf("%s@%d", p.Decisions[i].Node, p.Decisions[i].Rows)
			if _, ok := at[name]; !ok {
				at[name] = len(at)
			}
		}
	}
	slices.SortStableFunc(list, func(x, y Unlike) int { return at[x.What] - at[y.What] })
	return list
}
