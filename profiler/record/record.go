// Package record knows the record format hetc.record/1: what one measurement is, how a file of
// them grows by whole lines so that a killed profile resumes, and which records belong together.
//
// A record is JSON lines: a Header first, then one Measurement, or the Facts of a compiler, per line. Only the last
// line may be cut off, by a kill while it was written; everything else that is odd is refused with its line.
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
	Schema      string `json:"schema"`
	SoC         string `json:"soc"`
	SoCDigest   string `json:"soc_digest"`            // of the SoC description
	Fingerprint string `json:"fingerprint,omitempty"` // of the machine; empty when simulated
	Simulated   bool   `json:"simulated,omitempty"`   // times come from a model, not a clock
	// tables that times were taken from: hetc measured none of these
	Imported    []Import    `json:"imported,omitempty"`
	Hetc        string      `json:"hetc"` // version that measured
	Seed        uint64      `json:"seed"` // order of requests and contents of buffers
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
	Kind   Kind   `json:"kind"`
	Proc   string `json:"proc"`             // processor of the SoC
	To     string `json:"to,omitempty"`     // Sync, Copy: the other processor
	Op     *op.Op `json:"op,omitempty"`     // Op, Launch, Load
	GLU    *op.Op `json:"glu,omitempty"`    // Op: the gated linear unit that the product ends with, in one graph with it
	Layout string `json:"layout,omitempty"` // of the operator's weight
	Bytes  int64  `json:"bytes,omitempty"`  // Bandwidth, Copy, Load: moved by one execution
	// weights and caches are where a model finds them, not where the last execution left them
	Cold bool `json:"cold,omitempty"`
	// cold: the bytes they were rotated through; 0: more than all caches hold
	Footprint  int64     `json:"footprint,omitempty"`
	Concurrent []Partner `json:"concurrent,omitempty"`
	HeldOut    bool      `json:"held_out,omitempty"` // for judging predictions: never fitted
	// visits before this one: a key may be sampled in several rounds, a line each
	Round int  `json:"round,omitempty"`
	Anew  bool `json:"anew,omitempty"` // it replaces the visits before it, which were flagged

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
	var out strings.Builder
	fmt.Fprintf(&out, "%s %s", m.Kind, m.Proc)
	if m.To != "" {
		fmt.Fprintf(&out, " to %s", m.To)
	}
	if m.Bytes != 0 {
		fmt.Fprintf(&out, " %dB", m.Bytes)
	}
	what(&out, m.Op, m.Layout, m.Cold)
	if m.GLU != nil {
		out.WriteString(" ends with " + m.GLU.Key())
	}
	if m.Footprint != 0 {
		fmt.Fprintf(&out, "/%d", m.Footprint)
	}
	for i, partner := range m.Concurrent {
		sep := " with "
		if i > 0 {
			sep = ", "
		}
		out.WriteString(sep)
		out.WriteString(partner.Proc)
		what(&out, partner.Op, partner.Layout, partner.Cold)
	}
	if m.HeldOut {
		out.WriteString(" held out")
	}
	return out.String()
}

// what writes the part of a key that says which operator is meant.
func what(out *strings.Builder, operator *op.Op, layout string, cold bool) {
	if operator != nil {
		out.WriteString(" ")
		out.WriteString(operator.Key())
	}
	if layout != "" {
		out.WriteString(" ")
		out.WriteString(layout)
	}
	if cold {
		out.WriteString(" cold")
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
	if !slices.Contains(kinds, m.Kind) {
		return fmt.Errorf("unknown kind of measurement %q", clip(string(m.Kind)))
	}
	err := m.validateWhat()
	if err == nil {
		err = m.validateConcurrent()
	}
	if err == nil {
		err = m.validateSamples()
	}
	if err != nil {
		return fmt.Errorf("measurement %q of %q: %v", m.Kind, clip(m.Proc), err)
	}
	return nil
}

// validateWhat looks at what is measured, by kind.
func (m *Measurement) validateWhat() error {
	if m.Proc == "" || len(m.Proc) > maxName || len(m.To) > maxName || len(m.Layout) > maxName {
		return fmt.Errorf("want a processor, and names of at most %d bytes", maxName)
	}
	withOp := m.Kind == Op || m.Kind == Launch || m.Kind == Load
	if withOp != (m.Op != nil) {
		return fmt.Errorf("an operator belongs to kinds op, launch and load, and to no other")
	}
	if m.Op != nil {
		if err := m.Op.Validate(); err != nil {
			return err
		}
	}
	if m.GLU != nil {
		if err := m.GLU.Validate(); err != nil {
			return err
		}
		if m.Kind != Op || !m.Op.GatedBy(m.GLU) {
			return fmt.Errorf("key \"glu\" belongs to a product whose results it takes")
		}
	}
	if (m.Kind == Sync) != (m.To != "") && m.Kind != Copy {
		return fmt.Errorf("key \"to\" belongs to kinds sync and copy")
	}
	withBytes := m.Kind == Bandwidth || m.Kind == Copy
	if m.Bytes < 0 || withBytes && m.Bytes == 0 {
		return fmt.Errorf("bytes = %d, want at least 1", m.Bytes)
	}
	return nil
}

// validateConcurrent looks at what runs beside it, and at the footprint.
func (m *Measurement) validateConcurrent() error {
	busy := map[string]bool{m.Proc: true}
	for _, partner := range m.Concurrent {
		if partner.Proc == "" || len(partner.Proc) > maxName || len(partner.Layout) > maxName || busy[partner.Proc] {
			return fmt.Errorf("concurrent processor %q, want another one each", clip(partner.Proc))
		}
		busy[partner.Proc] = true
		if partner.Op != nil {
			if err := partner.Op.Validate(); err != nil {
				return fmt.Errorf("concurrent: %v", err)
			}
		}
	}
	if m.Footprint < 0 || m.Footprint > 0 && !m.Cold {
		return fmt.Errorf("footprint = %d of a measurement with cold = %v", m.Footprint, m.Cold)
	}
	return nil
}

// validateSamples looks at the result.
func (m *Measurement) validateSamples() error {
	if m.Unit != "ns" {
		return fmt.Errorf("unit %q, want \"ns\"", clip(m.Unit))
	}
	if m.Loops < 1 {
		return fmt.Errorf("loops = %d, want at least 1", m.Loops)
	}
	if len(m.Samples) == 0 || len(m.Samples) > maxSamples {
		return fmt.Errorf("%d samples, want 1..%d", len(m.Samples), maxSamples)
	}
	// A wait or a launch may be free; work and traffic never are.
	zero := m.Kind == Sync || m.Kind == Launch || m.Kind == Copy
	for i, sample := range m.Samples {
		if !isTime(sample) || sample == 0 && !zero {
			return fmt.Errorf("sample %d is %g ns, want a positive finite time", i, sample)
		}
	}
	if !isTime(m.First) {
		return fmt.Errorf("first is %g ns, want a finite time", m.First)
	}
	for _, warning := range m.Warnings {
		if warning == "" || len(warning) > maxName {
			return fmt.Errorf("warning %q, want a short word", clip(warning))
		}
	}
	return nil
}

// isTime reports whether a number is finite and not below 0.
func isTime(value float64) bool { return value >= 0 && !math.IsInf(value, 0) }

// validate checks what every record needs: its SoC and, for measured times, its machine.
func (h *Header) validate() error {
	for name, value := range map[string]string{"soc": h.SoC, "soc_digest": h.SoCDigest} {
		if value == "" || len(value) > maxName {
			return fmt.Errorf("header: key %q is missing or longer than %d bytes", name, maxName)
		}
	}
	if h.Fingerprint == "" && !h.Simulated && len(h.Imported) == 0 {
		return fmt.Errorf("header: key \"fingerprint\" is missing; only a simulated or an imported record has none")
	}
	for _, table := range h.Imported {
		if table.File == "" || len(table.File) > maxText || len(table.SHA256) != 2*sha256.Size ||
			len(table.Source) > maxText {
			return fmt.Errorf("header: key \"imported\": want a file of at most %d bytes with its sha256 and source",
				maxText)
		}
	}
	return nil
}

// Compatible reports whether measurements under both headers may stand in one set: the same SoC,
// machine and kernels, and both simulated or both not.
func (h *Header) Compatible(other *Header) error {
	differ := func(what, own, theirs string) error {
		return diag.New(diag.ClassInput, "records do not belong together: %s %q and %q", what, own, theirs).
			WithCode("record.mixed").
			WithHint("profile each machine, and each change of its description or of hetc's kernels, into a file of " +
				"its own; a record that no longer applies may be deleted")
	}
	switch {
	case h.Simulated != other.Simulated:
		word := map[bool]string{true: "simulated", false: "measured"}
		return differ("times are", word[h.Simulated], word[other.Simulated])
	case h.Fingerprint != other.Fingerprint:
		return differ("machine fingerprints", h.Fingerprint, other.Fingerprint)
	case h.SoCDigest != other.SoCDigest:
		return differ("digests of SoC "+h.SoC, h.SoCDigest, other.SoCDigest)
	// no kernel of hetc made imported times
	case h.Environment.Kernels != other.Environment.Kernels && len(h.Imported)+len(other.Imported) == 0:
		return differ("kernel sets", h.Environment.Kernels, other.Environment.Kernels)
	}
	for _, name := range slices.Sorted(maps.Keys(h.Environment.Drivers)) {
		if mine, their := h.Environment.Drivers[name], other.Environment.Drivers[name]; their != "" && mine != their {
			return differ("libraries of driver "+name, mine, their)
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
func NewSet(header Header) *Set { return &Set{Header: header, byKey: map[string]int{}} }

// Add puts a measurement into the set. The samples of a key that was visited in several rounds become one
// measurement, and one that begins anew takes the place of those before it. The same round twice is refused, and a
// simulated flag that differs from the header's.
func (s *Set) Add(added *Measurement) error {
	if err := s.check(added); err != nil {
		return err
	}
	i, again := s.byKey[added.Key()]
	if !again {
		s.byKey[added.Key()] = len(s.all)
		s.all = append(s.all, added)
		return nil
	}
	old := s.all[i]
	if added.Anew {
		s.all[i] = added
		return nil
	}
	// a further round: the samples and warnings of both
	all := *added
	all.Anew = old.Anew
	all.First = old.First
	all.Samples = slices.Concat(old.Samples, added.Samples)
	all.Warnings = nil
	for _, warning := range []string{Noisy, FewSamples, Drifted} {
		if (slices.Contains(old.Warnings, warning) || slices.Contains(added.Warnings, warning)) &&
			(warning != FewSamples || len(all.Samples) < fewSamples) {
			all.Warnings = append(all.Warnings, warning)
		}
	}
	s.all[i] = &all
	return nil
}

// fewSamples is what FewSamples counts to.
const fewSamples = 10

// Rounds returns how often the key was visited.
func (s *Set) Rounds(key string) int {
	if known := s.Lookup(key); known != nil {
		return known.Round + 1
	}
	return 0
}

// check reports why a measurement cannot be added.
func (s *Set) check(added *Measurement) error {
	if err := added.Validate(); err != nil {
		return err
	}
	if added.Simulated != s.Header.Simulated {
		return fmt.Errorf("measurement %q: simulated = %v, the header says %v", added.Key(), added.Simulated,
			s.Header.Simulated)
	}
	switch visits := s.Rounds(added.Key()); {
	case added.Round < visits:
		return fmt.Errorf("measurement %q, round %d is there twice", added.Key(), added.Round)
	case added.Round > visits && visits > 0: // the first one may already be several rounds together
		return fmt.Errorf("measurement %q, round %d comes before round %d", added.Key(), added.Round, visits)
	}
	if len(s.all) >= maxMeasurements {
		return fmt.Errorf("more than %d measurements", maxMeasurements)
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

// Len returns the number of measurements.
func (s *Set) Len() int { return len(s.all) }

// All returns the measurements ordered by key, whatever the order they were taken in.
func (s *Set) All() []*Measurement {
	out := slices.Clone(s.all)
	sort.Slice(out, func(i, j int) bool { return out[i].Key() < out[j].Key() })
	return out
}

// HeldOut returns the part of the set that predictions are judged by, Training the part they are fitted to.
func (s *Set) HeldOut() *Set { return s.part(true) }

// Training returns the set without what was held out.
func (s *Set) Training() *Set { return s.part(false) }

// part returns the set of what is held out, or of what is not.
func (s *Set) part(held bool) *Set {
	out := NewSet(s.Header)
	for _, what := range s.all {
		if what.HeldOut == held {
			if err := out.Add(what); err != nil {
				panic("BUG: a set holds a measurement it would refuse: " + err.Error())
			}
		}
	}
	return out
}

// Digest identifies header and measurements: hex SHA-256 of their lines ordered by key. A profile
// that was interrupted and resumed has the same digest as the file it wrote, not as another run.
func (s *Set) Digest() (string, error) {
	hash := sha256.New()
	line, err := encode(&s.Header)
	if err != nil {
		return "", err
	}
	hash.Write(line)
	for _, what := range s.All() {
		if line, err = encode(what); err != nil {
			return "", err
		}
		hash.Write(line)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// encode returns v as one line of JSON.
func encode(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return out.Bytes(), nil
}

// clip shortens text of a file for a message.
func clip(text string) string {
	if len(text) > 80 {
		return strings.ToValidUTF8(text[:80], "") + "..."
	}
	return text
}
