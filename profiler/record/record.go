// Package record knows the record format hetc.record/1: what one measurement is, how a file of
// them grows by whole lines so that a killed profile resumes, and which records belong together.
//
// A record is JSON lines: a Header first, then one Measurement, or the Facts of a compiler, per line. Only the last line may
// be cut off, by a kill while it was written; everything else that is odd is refused with its line.
package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// Schema names the format.
const Schema = "hetc.record/1"

// Kind is what was measured.
type Kind string

const (
	Op        Kind = "op"        // one execution of an operator
	Bandwidth Kind = "bandwidth" // one pass over Bytes of memory, reading
	Sync      Kind = "sync"      // from setting a flag on Proc to seeing it on To
	Copy      Kind = "copy"      // copying Bytes
	Launch    Kind = "launch"    // one execution of an operator too small to take time itself
	Load      Kind = "load"      // loading an operator with its weights (Bytes), once per model start
)

var kinds = []Kind{Op, Bandwidth, Sync, Copy, Launch, Load}

// Warnings of a measurement.
const (
	Noisy      = "noisy"       // sampling stopped before the interval was narrow
	FewSamples = "few-samples" // fewer than ten samples, for lack of budget
	Drifted    = "drift"       // the samples, or the sentinel around them, moved while it ran
)

// Header is the first line of a record: which machine it is about.
type Header struct {
	Schema      string      `json:"schema"`
	SoC         string      `json:"soc"`
	SoCDigest   string      `json:"soc_digest"`            // of the SoC description
	Fingerprint string      `json:"fingerprint,omitempty"` // of the machine; empty when simulated
	Simulated   bool        `json:"simulated,omitempty"`   // times come from a model, not a clock
	Imported    []Import    `json:"imported,omitempty"`    // tables that times were taken from: hetc measured none of these
	Hetc        string      `json:"hetc"`                  // version that measured
	Seed        uint64      `json:"seed"`                  // order of requests and contents of buffers
	Environment Environment `json:"environment"`
}

// Import is a table of another program whose times are in a record.
type Import struct {
	File   string `json:"file"`   // its name
	SHA256 string `json:"sha256"` // of its bytes, hex
	Source string `json:"source"` // who measured what, with which tool
}

// ImportedCompiler is the compiler of facts that a table states: that an operator could not be executed.
const ImportedCompiler = "imported"

// Environment is what times depend on besides the SoC.
type Environment struct {
	OS           string            `json:"os"`
	Arch         string            `json:"arch"`
	CPU          string            `json:"cpu,omitempty"`           // model name
	Features     []string          `json:"features,omitempty"`      // of the CPU, sorted
	FrequencyMHz float64           `json:"frequency_mhz,omitempty"` // when the record was begun, where readable
	Governor     string            `json:"governor,omitempty"`
	Kernels      string            `json:"kernels,omitempty"` // kernel set of the host driver
	Drivers      map[string]string `json:"drivers,omitempty"` // driver to library version
}

// Partner is a processor that was kept busy during a measurement, and with what.
type Partner struct {
	Proc   string `json:"proc"`
	Op     *op.Op `json:"op,omitempty"` // nil: reading memory
	Layout string `json:"layout,omitempty"`
	Cold   bool   `json:"cold,omitempty"`
}

// Measurement is the samples of one thing.
type Measurement struct {
	Kind       Kind      `json:"kind"`
	Proc       string    `json:"proc"`                // processor of the SoC
	To         string    `json:"to,omitempty"`        // Sync, Copy: the other processor
	Op         *op.Op    `json:"op,omitempty"`        // Op, Launch, Load
	Layout     string    `json:"layout,omitempty"`    // of the operator's weight
	Bytes      int64     `json:"bytes,omitempty"`     // Bandwidth, Copy, Load: moved by one execution
	Cold       bool      `json:"cold,omitempty"`      // weights and caches are where a model finds them, not where the last execution left them
	Footprint  int64     `json:"footprint,omitempty"` // cold: the bytes they were rotated through; 0: more than all caches hold
	Concurrent []Partner `json:"concurrent,omitempty"`
	HeldOut    bool      `json:"held_out,omitempty"` // for judging predictions: never fitted
	Round      int       `json:"round,omitempty"`    // visits before this one: a key may be sampled in several rounds, a line each
	Anew       bool      `json:"anew,omitempty"`     // it replaces the visits before it, which were flagged

	Unit      string    `json:"unit"`                // "ns"
	First     float64   `json:"first,omitempty"`     // first execution, kept apart
	Loops     int       `json:"loops"`               // executions per sample; samples are per execution
	Samples   []float64 `json:"samples"`             // ns per execution, in the order taken
	Warnings  []string  `json:"warnings,omitempty"`  // Noisy, FewSamples, Drifted
	Simulated bool      `json:"simulated,omitempty"` // as in the header
}

// Key identifies what was measured, apart from the result: two measurements with one key repeat
// each other.
func (m *Measurement) Key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", m.Kind, m.Proc)
	if m.To != "" {
		fmt.Fprintf(&b, " to %s", m.To)
	}
	if m.Bytes != 0 {
		fmt.Fprintf(&b, " %dB", m.Bytes)
	}
	what(&b, m.Op, m.Layout, m.Cold)
	if m.Footprint != 0 {
		fmt.Fprintf(&b, "/%d", m.Footprint)
	}
	for i, p := range m.Concurrent {
		sep := " with "
		if i > 0 {
			sep = ", "
		}
		b.WriteString(sep)
		b.WriteString(p.Proc)
		what(&b, p.Op, p.Layout, p.Cold)
	}
	if m.HeldOut {
		b.WriteString(" held out")
	}
	return b.String()
}

func what(b *strings.Builder, o *op.Op, layout string, cold bool) {
	if o != nil {
		b.WriteString(" ")
		b.WriteString(o.Key())
	}
	if layout != "" {
		b.WriteString(" ")
		b.WriteString(layout)
	}
	if cold {
		b.WriteString(" cold")
	}
}

// Bounds of a record.
const (
	maxLine         = 4 << 20
	maxSamples      = 100_000
	maxMeasurements = 1 << 20
	maxName         = 200
)

// Validate reports the first thing that makes m no measurement.
func (m *Measurement) Validate() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("measurement %q of %q: %s", m.Kind, clip(m.Proc), fmt.Sprintf(format, args...))
	}
	if !slices.Contains(kinds, m.Kind) {
		return fmt.Errorf("unknown kind of measurement %q", clip(string(m.Kind)))
	}
	if m.Proc == "" || len(m.Proc) > maxName || len(m.To) > maxName || len(m.Layout) > maxName {
		return bad("want a processor, and names of at most %d bytes", maxName)
	}
	withOp := m.Kind == Op || m.Kind == Launch || m.Kind == Load
	if withOp != (m.Op != nil) {
		return bad("an operator belongs to kinds op, launch and load, and to no other")
	}
	if m.Op != nil {
		if err := m.Op.Validate(); err != nil {
			return bad("%v", err)
		}
	}
	if (m.Kind == Sync) != (m.To != "") && m.Kind != Copy {
		return bad("key \"to\" belongs to kinds sync and copy")
	}
	if withBytes := m.Kind == Bandwidth || m.Kind == Copy; m.Bytes < 0 || withBytes && m.Bytes == 0 {
		return bad("bytes = %d, want at least 1", m.Bytes)
	}
	busy := map[string]bool{m.Proc: true}
	for _, p := range m.Concurrent {
		if p.Proc == "" || len(p.Proc) > maxName || len(p.Layout) > maxName || busy[p.Proc] {
			return bad("concurrent processor %q, want another one each", clip(p.Proc))
		}
		busy[p.Proc] = true
		if p.Op != nil {
			if err := p.Op.Validate(); err != nil {
				return bad("concurrent: %v", err)
			}
		}
	}
	if m.Footprint < 0 || m.Footprint > 0 && !m.Cold {
		return bad("footprint = %d of a measurement with cold = %v", m.Footprint, m.Cold)
	}
	if m.Unit != "ns" {
		return bad("unit %q, want \"ns\"", clip(m.Unit))
	}
	if m.Loops < 1 {
		return bad("loops = %d, want at least 1", m.Loops)
	}
	if len(m.Samples) == 0 || len(m.Samples) > maxSamples {
		return bad("%d samples, want 1..%d", len(m.Samples), maxSamples)
	}
	// A wait or a launch may be free; work and traffic never are.
	zero := m.Kind == Sync || m.Kind == Launch || m.Kind == Copy
	for i, x := range m.Samples {
		if math.IsNaN(x) || math.IsInf(x, 0) || x < 0 || x == 0 && !zero {
			return bad("sample %d is %g ns, want a positive finite time", i, x)
		}
	}
	if math.IsNaN(m.First) || math.IsInf(m.First, 0) || m.First < 0 {
		return bad("first is %g ns, want a finite time", m.First)
	}
	for _, w := range m.Warnings {
		if w == "" || len(w) > maxName {
			return bad("warning %q, want a short word", clip(w))
		}
	}
	return nil
}

func (h *Header) validate() error {
	for name, v := range map[string]string{"soc": h.SoC, "soc_digest": h.SoCDigest} {
		if v == "" || len(v) > maxName {
			return fmt.Errorf("header: key %q is missing or longer than %d bytes", name, maxName)
		}
	}
	if h.Fingerprint == "" && !h.Simulated && len(h.Imported) == 0 {
		return fmt.Errorf("header: key \"fingerprint\" is missing; only a simulated or an imported record has none")
	}
	for _, x := range h.Imported {
		if x.File == "" || len(x.File) > maxText || len(x.SHA256) != 2*sha256.Size || len(x.Source) > maxText {
			return fmt.Errorf("header: key \"imported\": want a file of at most %d bytes with its sha256 and source", maxText)
		}
	}
	return nil
}

// Compatible reports whether measurements under both headers may stand in one set: the same SoC,
// machine and kernels, and both simulated or both not.
func (h *Header) Compatible(other *Header) error {
	differ := func(what, a, b string) error {
		return diag.New(diag.ClassInput, "records do not belong together: %s %q and %q", what, a, b).
			WithCode("record.mixed").
			WithHint("profile each machine, and each change of its description or of hetc's kernels, into a file of its own; a record that no longer applies may be deleted")
	}
	switch {
	case h.Simulated != other.Simulated:
		word := map[bool]string{true: "simulated", false: "measured"}
		return differ("times are", word[h.Simulated], word[other.Simulated])
	case h.Fingerprint != other.Fingerprint:
		return differ("machine fingerprints", h.Fingerprint, other.Fingerprint)
	case h.SoCDigest != other.SoCDigest:
		return differ("digests of SoC "+h.SoC, h.SoCDigest, other.SoCDigest)
	case h.Environment.Kernels != other.Environment.Kernels && len(h.Imported)+len(other.Imported) == 0: // no kernel of hetc made imported times
		return differ("kernel sets", h.Environment.Kernels, other.Environment.Kernels)
	}
	for _, name := range slices.Sorted(maps.Keys(h.Environment.Drivers)) {
		if a, b := h.Environment.Drivers[name], other.Environment.Drivers[name]; b != "" && a != b {
			return differ("libraries of driver "+name, a, b)
		}
	}
	return nil
}

// Set is the measurements of one machine, each key once.
type Set struct {
	Header    Header
	Truncated bool // the file's last line was cut off and is not in the set
	all       []*Measurement
	byKey     map[string]int
	facts     []*Facts
	factsAt   map[string]int // by key
}

// NewSet returns an empty set.
func NewSet(h Header) *Set { return &Set{Header: h, byKey: map[string]int{}} }

// Add puts m into the set. The samples of a key that was visited in several rounds become one
// measurement, and one that begins anew takes the place of those before it. The same round twice is refused, and a
// simulated flag that differs from the header's.
func (s *Set) Add(m *Measurement) error {
	if err := s.check(m); err != nil {
		return err
	}
	i, again := s.byKey[m.Key()]
	if !again {
		s.byKey[m.Key()] = len(s.all)
		s.all = append(s.all, m)
		return nil
	}
	old := s.all[i]
	if m.Anew {
		s.all[i] = m
		return nil
	}
	all := *m
	all.Anew = old.Anew
	all.First = old.First
	all.Samples = slices.Concat(old.Samples, m.Samples)
	all.Warnings = nil
	for _, w := range []string{Noisy, FewSamples, Drifted} {
		if (slices.Contains(old.Warnings, w) || slices.Contains(m.Warnings, w)) && (w != FewSamples || len(all.Samples) < fewSamples) {
			all.Warnings = append(all.Warnings, w)
		}
	}
	s.all[i] = &all
	return nil
}

// fewSamples is what FewSamples counts to.
const fewSamples = 10

// Rounds is how often the key was visited.
func (s *Set) Rounds(key string) int {
	if m := s.Lookup(key); m != nil {
		return m.Round + 1
	}
	return 0
}

func (s *Set) check(m *Measurement) error {
	if err := m.Validate(); err != nil {
		return err
	}
	if m.Simulated != s.Header.Simulated {
		return fmt.Errorf("measurement %q: simulated = %v, the header says %v", m.Key(), m.Simulated, s.Header.Simulated)
	}
	switch n := s.Rounds(m.Key()); {
	case m.Round < n:
		return fmt.Errorf("measurement %q, round %d is there twice", m.Key(), m.Round)
	case m.Round > n && n > 0: // the first one may already be several rounds together
		return fmt.Errorf("measurement %q, round %d comes before round %d", m.Key(), m.Round, n)
	}
	if len(s.all) >= maxMeasurements {
		return fmt.Errorf("more than %d measurements", maxMeasurements)
	}
	return nil
}

// Merge adds the measurements and compiler facts of other, which must be Compatible; keys already present stay.
func (s *Set) Merge(other *Set) error {
	if err := s.Header.Compatible(&other.Header); err != nil {
		return err
	}
	for _, x := range other.Header.Imported {
		if !slices.Contains(s.Header.Imported, x) {
			s.Header.Imported = append(slices.Clone(s.Header.Imported), x)
		}
	}
	for _, m := range other.all {
		if s.Has(m.Key()) {
			continue
		}
		if err := s.Add(m); err != nil {
			return err
		}
	}
	for _, f := range other.facts {
		if s.LookupFacts(f.Key()) != nil {
			continue
		}
		if err := s.AddFacts(f); err != nil {
			return err
		}
	}
	return nil
}

// Has reports whether the key was measured.
func (s *Set) Has(key string) bool { _, ok := s.byKey[key]; return ok }

// Lookup returns the measurement of a key, nil when there is none.
func (s *Set) Lookup(key string) *Measurement {
	if i, ok := s.byKey[key]; ok {
		return s.all[i]
	}
	return nil
}

// Len is the number of measurements.
func (s *Set) Len() int { return len(s.all) }

// All returns the measurements ordered by key, whatever the order they were taken in.
func (s *Set) All() []*Measurement {
	out := slices.Clone(s.all)
	sort.Slice(out, func(i, j int) bool { return out[i].Key() < out[j].Key() })
	return out
}

// HeldOut is the part of the set that predictions are judged by, Training the part they are fitted to.
func (s *Set) HeldOut() *Set { return s.part(true) }

// Training is the set without what was held out.
func (s *Set) Training() *Set { return s.part(false) }

func (s *Set) part(held bool) *Set {
	out := NewSet(s.Header)
	for _, m := range s.all {
		if m.HeldOut == held {
			if err := out.Add(m); err != nil {
				panic("BUG: a set holds a measurement it would refuse: " + err.Error())
			}
		}
	}
	return out
}

// Digest identifies header and measurements: hex SHA-256 of their lines ordered by key. A profile
// that was interrupted and resumed has the same digest as the file it wrote, not as another run.
func (s *Set) Digest() (string, error) {
	h := sha256.New()
	line, err := encode(&s.Header)
	if err != nil {
		return "", err
	}
	h.Write(line)
	for _, m := range s.All() {
		if line, err = encode(m); err != nil {
			return "", err
		}
		h.Write(line)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// encode returns v as one line of JSON.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return b.Bytes(), nil
}

func clip(s string) string {
	if len(s) > 80 {
		return strings.ToValidUTF8(s[:80], "") + "..."
	}
	return s
}
