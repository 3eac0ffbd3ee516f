// Package catalog knows how models and SoCs are listed, shown and written.
package catalog

import (
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir/op"
)

// firstSentence returns the beginning of a text up to its first full stop.
func firstSentence(text string) string {
	if first, _, more := strings.Cut(text, ". "); more {
		return first + "."
	}
	return text
}

// writableModel reports why no model can be written as the directory or .gguf file out, before minutes are
// spent on it.
func writableModel(out string) error {
	if strings.HasSuffix(out, ".gguf") {
		return wholefile.Writable(out)
	}
	return wholefile.WritableDirectory(out)
}

// ElementTypes are those that matrices can be exported as.
var ElementTypes = []string{"f32", "f16", "bf16", "q8_0", "q4_0"}

// elementType reads --type, an error of class ClassUsage for one that matrices cannot be exported as.
func elementType(name string) (op.Type, error) {
	if !slices.Contains(ElementTypes, name) {
		return "", diag.New(diag.ClassUsage, "flag --type: got %q", name).
			WithHint("%s", diag.DidYouMean(name, ElementTypes))
	}
	return op.Type(name), nil
}
