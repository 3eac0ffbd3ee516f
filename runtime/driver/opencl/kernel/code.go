package kernel

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/planir/op"
)

// Code is an artifact of the driver: a graph, and the sources of the programs that execute it. What is signed is what
// is built.
type Code struct {
	Version  int       `json:"version"`
	Graph    op.Graph  `json:"graph"`
	Programs []Program `json:"programs"`
}

// Program is one variant of a family. Several variants of a family stand in the order in which they are preferred.
type Program struct {
	Family  string `json:"family"`
	Variant string `json:"variant"`
	Rows    int    `json:"rows,omitempty"` // of a product: that an item computes
	Source  string `json:"source"`
}

// maxCode bounds an artifact in bytes.
const maxCode = 4 << 20

// Use is a family of kernels that a node needs, and the variant that the node's form names; "" where it names none.
type Use struct{ Family, Variant string }

// Uses are the distinct uses of a graph's nodes, in the order of the first. A form names the variant of the product,
// not of the kernels that prepare it.
func Uses(graph *op.Graph) (list []Use) {
	for i := range graph.Nodes {
		operator := &graph.Nodes[i].Op
		families := FamiliesOf(operator)
		for j, family := range families {
			use := Use{Family: family}
			if j == len(families)-1 {
				use.Variant = operator.Form.Kernel()
			}
			if !slices.Contains(list, use) {
				list = append(list, use)
			}
		}
	}
	return list
}

// Compile makes the artifact of a graph. Products whose form names a variant have that one. For the others choose
// returns the variant that a family is to have; "" takes all of them, of which the driver chooses.
func Compile(graph op.Graph, choose func(family string) string) (*Code, error) {
	out := &Code{Version: Version, Graph: graph, Programs: []Program{}}
	for i := range graph.Nodes {
		if operator := &graph.Nodes[i].Op; len(FamiliesOf(operator)) == 0 {
			return nil, diag.New(diag.ClassInput, "node %d (%s %s%s) has no kernels in OpenCL", i, operator.Kind,
				operator.Scheme, operator.KV)
		}
	}
	wanted := map[string][]string{} // variants by family; "" asks for all
	for _, use := range Uses(&graph) {
		variant := use.Variant
		if variant == "" {
			variant = choose(use.Family)
		}
		if _, known := Find(use.Family, variant); variant != "" && !known {
			return nil, diag.New(diag.ClassInput, "kernels %q have no variant %q", use.Family, variant).
				WithHint("variants: %s", VariantNames(use.Family))
		}
		wanted[use.Family] = append(wanted[use.Family], variant)
	}
	for _, family := range needed(&graph) {
		names := wanted[family]
		for _, variant := range Variants(family) {
			if !slices.Contains(names, variant.Name) && !slices.Contains(names, "") {
				continue
			}
			if err := out.add(family, &variant); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// add appends the programs of a variant: of a product a second one, for the few rows that remain.
func (c *Code) add(name string, v *Variant) error {
	rows := []int{v.Rows}
	if v.Few > 0 {
		rows = append(rows, 1)
	}
	for _, count := range rows {
		source, err := Source(name, v, count)
		if err != nil {
			return err
		}
		c.Programs = append(c.Programs, Program{Family: name, Variant: v.Name, Rows: count, Source: source})
	}
	return nil
}

// VariantNames are the variants of a family, for messages.
func VariantNames(family string) (text string) {
	for i, variant := range Variants(family) {
		if i > 0 {
			text += ", "
		}
		text += variant.Name
	}
	return text
}

// Encode is the canonical form.
func (c *Code) Encode() ([]byte, error) { return json.Marshal(c) }

// Parse decodes an artifact in canonical form; its graph is valid.
func Parse(data []byte) (*Code, error) {
	if len(data) > maxCode {
		return nil, diag.New(diag.ClassInput, "parse artifact: %d bytes, want at most %d", len(data), maxCode)
	}
	code := &Code{}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(code); err != nil {
		return nil, diag.New(diag.ClassInput, "parse artifact: %w", err)
	}
	canonical, err := code.Encode()
	if err != nil || !bytes.Equal(canonical, data) {
		return nil, diag.New(diag.ClassInput, "parse artifact: not in canonical form").
			WithHint("compile the bundle again")
	}
	if code.Version != Version {
		return nil, diag.New(diag.ClassInput, "parse artifact: kernels of version %d, want %d", code.Version, Version).
			WithHint("compile the bundle again")
	}
	if err := code.Graph.Validate(); err != nil {
		return nil, diag.New(diag.ClassInput, "parse artifact: %w", err)
	}
	return code, nil
}

// Choose is the first variant of a family that the artifact carries and that suits the device; where none does, the
// first that it can execute. The error says what the device lacks.
func (c *Code) Choose(family string, f *Features) (Variant, error) {
	var fallback *Variant
	lacks := ""
	for _, program := range c.Programs {
		if program.Family != family {
			continue
		}
		variant, ok := Find(family, program.Variant)
		if !ok {
			return Variant{}, diag.New(diag.ClassInput, "kernels %q have no variant %q", family, program.Variant)
		}
		if variant.Suits(f) {
			return variant, nil
		}
		if missing := variant.Lacks(f); missing != "" {
			lacks = program.Variant + " needs " + missing
		} else if fallback == nil {
			fallback = &variant
		}
	}
	if fallback != nil {
		return *fallback, nil
	}
	if lacks == "" {
		lacks = "the artifact carries none"
	}
	return Variant{}, diag.New(diag.ClassInput, "kernels %q: no variant for this device: %s", family, lacks)
}

// Find is the source of a variant of a family whose items compute that many rows, "" where there is none.
func (c *Code) Find(family, variant string, rows int) string {
	for _, program := range c.Programs {
		if program.Family == family && program.Variant == variant && program.Rows == rows {
			return program.Source
		}
	}
	return ""
}
