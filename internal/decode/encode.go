package decode

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxInline is how many plain values a list may have to be written on one line.
const maxInline = 16

// YAML returns v as YAML text that File reads back: fields in the order of their struct, map keys
// sorted, short lists on one line. Types need yaml tags. Infinite values and NaN are refused,
// because no reader here accepts them.
func YAML(v any) ([]byte, error) {
	var root yaml.Node
	if err := root.Encode(v); err != nil {
		return nil, fmt.Errorf("encode yaml: %w", err)
	}
	if err := tidy(&root, ""); err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(2)
	if err := enc.Encode(&root); err != nil {
		return nil, fmt.Errorf("encode yaml: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("encode yaml: %w", err)
	}
	return buf.Bytes(), nil
}

func tidy(n *yaml.Node, path string) error {
	switch n.Kind {
	case yaml.ScalarNode:
		if n.ShortTag() == "!!float" {
			x, err := strconv.ParseFloat(n.Value, 64)
			if err != nil || math.IsInf(x, 0) || math.IsNaN(x) {
				return fmt.Errorf("encode yaml: %s is %s, want a finite number", at(path), strings.TrimPrefix(n.Value, "."))
			}
			n.Value, n.Tag = plain(x, n.Value), ""
		}
	case yaml.SequenceNode:
		inline := len(n.Content) <= maxInline
		for i, c := range n.Content {
			if err := tidy(c, fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
			inline = inline && c.Kind == yaml.ScalarNode && len(c.Value) <= 40 && !strings.Contains(c.Value, "\n")
		}
		if inline {
			n.Style = yaml.FlowStyle
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			if err := tidy(n.Content[i+1], join(path, n.Content[i].Value)); err != nil {
				return err
			}
		}
	}
	return nil
}

// plain writes numbers of everyday size without an exponent.
func plain(x float64, text string) string {
	if a := math.Abs(x); strings.ContainsAny(text, "eE") && a >= 1e-6 && a < 1e15 {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return text
}
