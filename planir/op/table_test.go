package op

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// Every row of the tables answers every question, and only about fields that there are. Who adds an operator kind or a
// scheme is told here what is missing; what executes a kind is asked by the conformance suite of the drivers.
func TestRowsAnswerEveryQuestion(t *testing.T) {
	for i := range kindTable {
		r := &kindTable[i]
		missing := func(question string, isMissing bool) {
			if isMissing {
				t.Errorf("kind.go: the row of %q does not say %s", r.kind, question)
			}
		}
		missing("what it computes (does)", !strings.HasSuffix(r.doc, "."))
		missing("its operands (sig)", r.signature == nil)
		missing("its memory traffic (bytes)", r.bytes == nil)
		missing("where its time lies on its curves (scaling.extent)", r.scaling.extent == nil)
		missing("which operator lies there (scaling.at)", r.scaling.at == nil)
		missing("what tells its curves apart (scaling.pattern)", r.scaling.pattern == nil)
		if slices.Contains(r.optional, "act") || slices.Contains(r.optional, "scheme") {
			missing("a key of its own (key)", r.key == nil)
		}
		for _, name := range slices.Concat(r.required, r.optional) {
			if _, ok := fields[name]; !ok {
				t.Errorf("kind.go: the row of %q names field %q, which Op does not have", r.kind, name)
			}
		}
		operator, ok := examples[r.kind]
		if !ok {
			t.Errorf("op_test.go: no example of %q", r.kind)
			continue
		}
		operands := operator.Sig()
		for _, role := range operands.W {
			if spec := operator.WeightSpec(role, TilesLayout); spec.K < 1 || spec.N < 1 {
				t.Errorf("kind.go: the row of %q does not say the shape of its weight %q (shape)", r.kind, role)
			}
		}
		if r.columns != nil && len(r.columns) > len(operands.In) {
			t.Errorf("kind.go: the row of %q says columns of %d operands, it has %d", r.kind, len(r.columns),
				len(operands.In))
		}
		pattern := operator.Pattern()
		for _, name := range fieldNames {
			if fields[name].isSet(&pattern) && !r.mayHave(name) {
				t.Errorf("kind.go: the curves of %q are told apart by %q, which means nothing to it", r.kind, name)
			}
		}
		if again := pattern.Scaled(operator.Extent()); again.Key() != operator.Key() || again.Validate() != nil {
			t.Errorf("kind.go: %s lies on the curves of %s (%v)", operator.Key(), again.Key(), again.Validate())
		}
	}
}

func TestSchemesAnswerEveryQuestion(t *testing.T) {
	var activations, weights []string
	for _, r := range activationTable {
		activations = append(activations, r.name)
		if r.does == "" {
			t.Errorf("scheme.go: activations %q have no sentence (does)", r.name)
		}
	}
	for _, r := range weightTable {
		weights = append(weights, r.name)
		if r.does == "" || r.bits == 0 {
			t.Errorf("scheme.go: weights %q have no sentence (does) or no bits", r.name)
		}
	}
	for _, r := range schemeTable {
		switch scheme := r.scheme; {
		case !slices.Contains(activations, scheme.Activation()):
			t.Errorf("scheme.go: scheme %q has activations without a row", scheme)
		case !slices.Contains(weights, scheme.Weight()):
			t.Errorf("scheme.go: scheme %q has weights without a row", scheme)
		case !slices.Contains(r.drivers, "host"):
			t.Errorf("scheme.go: scheme %q is not executed by host, which is the reference for all others", scheme)
		case r.twin != "" && (r.twin.Weight() != scheme.Weight() || r.twin.QuantisedRows() != scheme.QuantisedRows()):
			t.Errorf("scheme.go: scheme %q has other operands than its twin %q", scheme, r.twin)
		}
	}
}

// docs/operators.md is what the tables say. HETC_UPDATE=1 writes it.
func TestReference(t *testing.T) {
	const path = "../../docs/operators.md"
	want := []byte(reference())
	if os.Getenv("HETC_UPDATE") == "1" {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what the tables of kinds and schemes say (%v): HETC_UPDATE=1 writes it", path, err)
	}
}

func reference() string {
	var text strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&text, format+"\n", args...) }
	code := func(list []string) string {
		if len(list) == 0 {
			return ""
		}
		return "`" + strings.Join(list, "` `") + "`"
	}
	line("# Operators and schemes\n\nWritten from the tables in `planir/op` (`HETC_UPDATE=1 go test ./planir/op -run " +
		"TestReference`). M is the number of tokens; shapes are those of a " +
		"fan of 1 unless they name it.\n\n## Operators\n\n| kind | what it computes | needs | takes | divided by " +
		"|\n| --- | --- | --- | --- | --- |")
	for i := range kindTable {
		r := &kindTable[i]
		var axes []string
		if r.rowsFault == "" {
			axes = append(axes, "rows")
		}
		if r.columns != nil {
			axes = append(axes, "cols")
		}
		if r.axis != "" {
			axes = append(axes, string(r.axis))
		}
		line("| `%s` | %s | %s | %s | %s |", r.kind, r.doc, code(r.required), code(r.optional),
			strings.Join(axes, ", "))
	}
	line("\n## Activations\n\n| name | values |\n| --- | --- |")
	for _, r := range activationTable {
		line("| `%s` | %s |", r.name, r.does)
	}
	line("\n## Weights\n\n| name | values | bits a value, scales included |\n| --- | --- | --- |")
	for _, r := range weightTable {
		line("| `%s` | %s | %v |", r.name, r.does, float64(WeightBytes(r.name, 1<<20, 1)/(1<<10))*8/(1<<10))
	}
	line("\n## Schemes\n\n`sim` executes what its SoC lists. Experts take the schemes whose results are not " +
		"rounded.\n\n| scheme | executed by | experts | result divided along k |\n| --- | --- | --- | --- |")
	for _, r := range schemeTable {
		yes := map[bool]string{true: "yes", false: "no"}
		line("| `%s` | %s | %s | %s |", r.scheme, strings.Join(r.drivers, ", "), yes[r.scheme.Experts()],
			yes[!r.scheme.RoundsResults()])
	}
	return text.String()
}
