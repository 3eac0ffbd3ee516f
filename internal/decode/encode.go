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
func YAML(into any) ([]byte, error) {
	var root yaml.Node
	if err := root.Encode(into); err != nil {
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

// tidy gives a node the form that YAML promises. path is where it stands, for messages.
func tidy(node *yaml.Node, path string) error {
	switch node.Kind {
	case yaml.ScalarNode:
		if node.ShortTag() == "!!float" {
			return tidyFloat(node, path)
		}
	case yaml.SequenceNode:
		inline := len(node.Content) <= maxInline
		for i, item := range node.Content {
			if err := tidy(item, fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
			short := item.Kind == yaml.ScalarNode && len(item.Value) <= 40
			inline = inline && short && !strings.Contains(item.Value, "\n")
		}
		if inline {
			node.Style = yaml.FlowStyle
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if err := tidy(node.Content[i+1], join(path, node.Content[i].Value)); err != nil {
				return err
			}
		}
	}
	return nil
}

// tidyFloat writes a number as plain does, and leaves its tag to the reader.
func tidyFloat(node *yaml.Node, path string) error {
	number, err := strconv.ParseFloat(node.Value, 64)
	if err != nil || math.IsInf(number, 0) || math.IsNaN(number) {
		return fmt.Errorf("encode yaml: %s is %s, want a finite number", at(path), strings.TrimPrefix(node.Value, "."))
	}
	node.Value, node.Tag = plain(number, node.Value), ""
	return nil
}

// plain writes numbers of everyday size without an exponent.
func plain(number float64, text string) string {
	if size := math.Abs(number); strings.ContainsAny(text, "eE") && size >= 1e-6 && size < 1e15 {
		return strconv.FormatFloat(number, 'f', -1, 64)
	}
	return text
}
