package imported

import (
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/capability"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/profiler/record"
	"github.com/hetc/hetc/socs"
)

// Import describes the table for the header of a record.
func (t *Table) Import(source string) record.Import {
	return record.Import{File: t.File, SHA256: t.Digest, Source: source}
}

// Record returns the rows as measurements of a SoC. Refused operators become facts of a compiler,
// once for cold and warm.
func (t *Table) Record(s *socs.SoC, source, version string, seed uint64) (*record.Set, error) {
	digest, err := s.Digest()
	if err != nil {
		return nil, err
	}
	if err := t.fits(s); err != nil {
		return nil, err
	}
	set := record.NewSet(record.Header{
		Schema: record.Schema, SoC: s.Name, SoCDigest: digest, Fingerprint: s.Fingerprint, Simulated: s.Simulated(),
		Imported: []record.Import{t.Import(source)}, Hetc: version, Seed: seed,
		Environment: record.Environment{OS: s.OS, Arch: s.Arch},
	})
	for i := range t.Rows {
		r := &t.Rows[i]
		if r.Refused != "" {
			f := &record.Facts{Kind: record.CompilerFacts, Proc: r.Proc, Op: &r.Op, Compiler: record.ImportedCompiler,
				Options: map[string]string{}, Refused: r.Refused}
			if set.LookupFacts(f.Key()) != nil {
				continue // cold and warm
			}
			if err := set.AddFacts(f); err != nil {
				return nil, fmt.Errorf("import: line %d: %w", r.Line, err)
			}
			continue
		}
		m := &record.Measurement{Kind: record.Op, Proc: r.Proc, Op: &r.Op, Cold: r.Cold, HeldOut: r.HeldOut, Unit: "ns",
			Loops: 1, Samples: r.Samples, Simulated: s.Simulated()}
		if err := set.Add(m); err != nil {
			return nil, fmt.Errorf("import: line %d: %w", r.Line, err)
		}
	}
	return set, nil
}

// Own counts what is in a record beside the rows of tables: measurements of hetc, and what compilers said to it. hetc
// keeps the time of a first execution apart, which no table has.
func Own(set *record.Set) (measurements, facts int) {
	for _, measurement := range set.All() {
		if measurement.Kind != record.Op || measurement.First > 0 {
			measurements++
		}
	}
	for _, said := range set.Facts() {
		if said.Compiler != record.ImportedCompiler {
			facts++
		}
	}
	return measurements, facts
}

// fits returns an error for the first row whose operator or scheme its processor does not execute.
func (t *Table) fits(s *socs.SoC) error {
	var names []string
	for i := range s.Processors {
		names = append(names, s.Processors[i].Name)
	}
	for i := range t.Rows {
		r := &t.Rows[i]
		p := s.Processor(r.Proc)
		switch {
		case p == nil:
			return input("import %q: line %d is about processor %q, which SoC %q does not have", t.File, r.Line,
				clip(r.Proc), s.Name).
				WithCode("import.processor").WithHint("%s", diag.DidYouMean(r.Proc, names))
		case !p.Executes(r.Op.Kind):
			return input("import %q: line %d is about operator %s, which processor %q of SoC %q does not execute",
				t.File, r.Line, r.Op.Kind, r.Proc, s.Name).
				WithCode("import.processor")
		case r.Op.HasScheme() && r.Op.Scheme != "" && r.Op.Kind != op.Embed && !slices.Contains(p.Schemes, r.Op.Scheme):
			return input("import %q: line %d is in scheme %q, and processor %q of SoC %q executes %v", t.File, r.Line,
				r.Op.Scheme, r.Proc, s.Name, p.Schemes).
				WithCode("import.processor")
		}
	}
	return nil
}

// Description is what the caller knows about the processors and the table does not say.
type Description struct {
	Name          string          // of the SoC
	Kind          string          // of processors that are not called after theirs
	Tile          capability.Tile // 0: unknown
	LaunchUS      float64         // of one graph, which every time includes; 0: unknown
	BandwidthGBps float64         // 0: unknown
	Source        string
}

// SoC describes the processors of the table by what its rows show and by d. Every value has its
// source.
func (t *Table) SoC(d Description) (*socs.SoC, error) {
	s := &socs.SoC{Schema: socs.Schema, Name: d.Name,
		Description: fmt.Sprintf("Processors of %s: %s. Nothing here was measured by hetc, and no driver "+
			"executes on them.", t.File, d.Source)}
	from := fmt.Sprintf("measured: elsewhere (%s), imported from %s with sha256 %s", d.Source, t.File, t.Digest)
	s.Sources = map[string]string{}
	for i := range t.Rows {
		r := &t.Rows[i]
		p := s.Processor(r.Proc)
		if p == nil {
			s.Processors = append(s.Processors, d.processor(r.Proc))
			p = &s.Processors[len(s.Processors)-1]
			s.Sources["processors."+p.Name] = from
		}
		extend(p, &r.Op)
	}
	s.Control = s.Processors[0].Name
	for i := range s.Processors {
		p := &s.Processors[i]
		slices.Sort(p.Kinds)
		slices.Sort(p.Schemes)
		at := "processors." + p.Name
		if p.DynamicRows {
			s.Sources[at+".dynamic_rows"] = "assumed: the table has operators on a KV cache, which must not see rows " +
				"beyond a call's"
		}
		for path, told := range map[string]bool{".tile": d.Tile != capability.Tile{}, ".launch_us": d.LaunchUS != 0,
			".bandwidth_gbps": d.BandwidthGBps != 0} {
			if told {
				s.Sources[at+path] = "assumed: given to hetc import"
			}
		}
	}
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("import: describe the processors of %q: %w", t.File, err)
	}
	return s, nil
}

// processor begins the description of one. A processor called cpu, gpu or npu is of that kind.
func (d *Description) processor(name string) socs.Processor {
	kind := d.Kind
	if slices.Contains([]string{socs.KindCPU, socs.KindGPU, socs.KindNPU}, name) {
		kind = name
	}
	p := socs.Processor{
		Name: name, Kind: kind, Driver: socs.ImportedDriver, Select: name, LaunchUS: d.LaunchUS,
		BandwidthGBps: d.BandwidthGBps,
	}
	p.Tile, p.Layouts = d.Tile, map[string]string{}
	return p
}

// extend adds to a processor what executing an operator shows: kinds, cache types, schemes and
// forms.
func extend(p *socs.Processor, o *op.Op) {
	if !slices.Contains(p.Kinds, o.Kind) {
		p.Kinds = append(p.Kinds, o.Kind)
	}
	if o.KV != "" && !slices.Contains(p.KV, o.KV) {
		p.KV = append(p.KV, o.KV)
	}
	if o.Kind.Has("kv") {
		p.DynamicRows = true // a cache must not see rows beyond a call's: without that it could do neither
	}
	if o.Kind == op.Embed || o.Scheme == "" {
		return
	}
	if !slices.Contains(p.Schemes, o.Scheme) {
		p.Schemes = append(p.Schemes, o.Scheme)
		p.Layouts[o.Scheme.Weight()] = "n32" // as simulated NPUs have them: no device of this processor packs weights
	}
	if class := o.Form.Class(); class != "" && !slices.Contains(p.Forms[o.Scheme], class) {
		if p.Forms == nil {
			p.Forms = map[op.Scheme][]op.Form{}
		}
		p.Forms[o.Scheme] = append(p.Forms[o.Scheme], class)
	}
}
