package record

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// CompilerFacts is the kind of the lines that are Facts: nothing was measured for them.
const CompilerFacts Kind = "compiler_facts"

// Facts are what the compiler of a device said about a graph that it made without the device. They are sizes and
// limits. No time of the device is in them, and none may be computed from them.
type Facts struct {
	Kind Kind   `json:"kind"` // CompilerFacts
	Proc string `json:"proc"` // processor of the SoC
	Op   *op.Op `json:"op"`   // the graph: an operator with its number of rows
	// ascending: of graphs that share the operator's weights in one binary, Op.M the first of them; nil: one graph
	Rows     []int             `json:"rows,omitempty"`
	Compiler string            `json:"compiler"`          // name and versions; of a graph that it refused the name
	Options  map[string]string `json:"options"`           // that it was given
	Refused  string            `json:"refused,omitempty"` // why there is no such graph

	Bytes int64 `json:"bytes,omitempty"` // of the binary, weights included
	// the buffer in main memory for what does not fit the processor's own; of several graphs the largest
	SpillBytes int64   `json:"spill_bytes"`
	VTCMBytes  int64   `json:"vtcm_bytes,omitempty"` // of the processor's own memory that the compiler planned with
	Arch       int64   `json:"arch,omitempty"`       // instruction set that it compiled for
	CompileMS  float64 `json:"compile_ms,omitempty"` // that the compiler took, on the machine where it ran
}

// maxFactRows bounds the graphs of one binary.
const maxFactRows = 64

// Key identifies the graphs, but not what was reported about them.
func (f *Facts) Key() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%s %s", f.Kind, f.Proc)
	if f.Op != nil {
		out.WriteString(" " + f.Op.Key())
	}
	// Alone and with others in one binary, a graph is another one: it shares weights.
	if f.Rows != nil {
		fmt.Fprintf(&out, " rows %v", f.Rows)
	}
	return out.String()
}

// validate returns the first reason why f is not valid.
func (f *Facts) validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("compiler facts of %q: %s", clip(f.Proc), fmt.Sprintf(format, args...))
	}
	switch {
	case f.Kind != CompilerFacts:
		return fmt.Errorf("compiler facts of kind %q, want %q", clip(string(f.Kind)), CompilerFacts)
	case f.Proc == "" || len(f.Proc) > maxName:
		return bad("want a processor, of at most %d bytes", maxName)
	case f.Compiler == "" || len(f.Compiler) > maxName:
		return bad("want a compiler, of at most %d bytes", maxName)
	case f.Op == nil:
		return bad("key \"op\" is missing")
	case len(f.Options) > maxName:
		return bad("%d options, want at most %d", len(f.Options), maxName)
	case len(f.Refused) > maxText:
		return bad("a refusal of %d bytes, want at most %d", len(f.Refused), maxText)
	}
	if err := f.validateGraph(); err != nil {
		return bad("%v", err)
	}
	sizes := map[string]int64{"bytes": f.Bytes, "spill_bytes": f.SpillBytes, "vtcm_bytes": f.VTCMBytes, "arch": f.Arch}
	for what, count := range sizes {
		if count < 0 {
			return bad("%s = %d, want at least 0", what, count)
		}
	}
	if (f.Bytes == 0) != (f.Refused != "") {
		return bad("bytes = %d and refused = %q: want a size, or why there is none", f.Bytes, clip(f.Refused))
	}
	if !isTime(f.CompileMS) {
		return bad("compile_ms = %g, want a finite time", f.CompileMS)
	}
	return nil
}

// validateGraph looks at what the compiler was asked.
func (f *Facts) validateGraph() error {
	if err := f.Op.Validate(); err != nil {
		return err
	}
	for name, value := range f.Options {
		if name == "" || len(name) > maxName || len(value) > maxName {
			return fmt.Errorf("option %q = %q, want at most %d bytes", clip(name), clip(value), maxName)
		}
	}
	if count := len(f.Rows); f.Rows != nil && (count < 2 || count > maxFactRows) {
		return fmt.Errorf("%d numbers of rows in one binary, want 2..%d", count, maxFactRows)
	}
	for i, rows := range f.Rows {
		if i == 0 && rows != f.Op.M || i > 0 && rows <= f.Rows[i-1] {
			return fmt.Errorf("rows %v, want ascending numbers, the first of them the operator's %d", f.Rows, f.Op.M)
		}
	}
	return nil
}

// maxText bounds why a compiler refused a graph.
const maxText = 2000

// AddFacts puts facts into the set. All of a set are of one compiler with the same options for each processor; the same
// graphs twice are refused.
func (s *Set) AddFacts(facts *Facts) error {
	if err := s.checkFacts(facts); err != nil {
		return err
	}
	if s.factsAt == nil {
		s.factsAt = map[string]int{}
	}
	s.factsAt[facts.Key()] = len(s.facts)
	s.facts = append(s.facts, facts)
	return nil
}

// checkFacts refuses facts that are there already, or are another compiler's or other options' for the processor.
func (s *Set) checkFacts(facts *Facts) error {
	if err := facts.validate(); err != nil {
		return err
	}
	if s.LookupFacts(facts.Key()) != nil {
		return fmt.Errorf("%q is there twice", facts.Key())
	}
	if len(s.facts) >= maxMeasurements {
		return fmt.Errorf("more than %d compiler facts", maxMeasurements)
	}
	for _, known := range s.facts {
		if known.Proc != facts.Proc {
			continue
		}
		// A refusal names the compiler without its versions, so only answers are compared by it.
		answered := known.Refused == "" && facts.Refused == ""
		if answered && known.Compiler != facts.Compiler || !maps.Equal(known.Options, facts.Options) {
			return diag.New(diag.ClassInput, "facts of compiler %q with %v beside those of %q with %v",
				clip(facts.Compiler), facts.Options, clip(known.Compiler), known.Options).
				WithCode("record.mixed").WithHint("write what each compiler says into a record of its own")
		}
		if answered || facts.Refused != "" {
			break // the others were compared with this one
		}
	}
	return nil
}

// LookupFacts returns the facts of a key, nil when there are none.
func (s *Set) LookupFacts(key string) *Facts {
	if i, ok := s.factsAt[key]; ok {
		return s.facts[i]
	}
	return nil
}

// Facts returns the compiler facts ordered by key.
func (s *Set) Facts() []*Facts {
	out := slices.Clone(s.facts)
	sort.Slice(out, func(i, j int) bool { return out[i].Key() < out[j].Key() })
	return out
}

// FactsDigest identifies the compiler facts apart from the times that compiling took: hex SHA-256 of their lines
// ordered by key; "" when there are none. Set.Digest leaves them out: measurements, and what is fitted to them, do not
// depend on them.
func (s *Set) FactsDigest() (string, error) {
	if len(s.facts) == 0 {
		return "", nil
	}
	hash := sha256.New()
	for _, facts := range s.Facts() {
		timeless := *facts
		// How long compiling took says something about this machine, nothing about the graphs.
		timeless.CompileMS = 0
		line, err := encode(&timeless)
		if err != nil {
			return "", err
		}
		hash.Write(line)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// AppendFacts adds facts as Append does a measurement.
func (w *Writer) AppendFacts(facts *Facts) error {
	if err := w.set.checkFacts(facts); err != nil {
		return diag.New(diag.ClassInput, "append to record %q: %w", w.f.Name(), err)
	}
	line, err := encode(facts)
	if err != nil {
		return err
	}
	if err := w.write(line); err != nil {
		return err
	}
	return w.set.AddFacts(facts)
}
