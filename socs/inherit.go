package socs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
)

// How a file is laid over what it inherits: inherit follows the chain of files, overlay lays one upon the next with the
// sources of its values, and merge does so for values.

// inherit lays the document over everything it inherits, as plain values.
func inherit(doc *decode.Document, dir string, s *SoC) (*SoC, error) {
	// the file itself first, then what it inherits
	var chain []map[string]any
	name, from := doc.Name(), s.Inherit
	trail := []string{filepath.Clean(name)}
	for {
		var m map[string]any
		if err := doc.Into("", &m); err != nil {
			return nil, err
		}
		delete(m, "inherit")
		chain = append(chain, m)
		if from == "" {
			break
		}
		next, nextDir, err := openParent(from, dir)
		if err != nil {
			return nil, fmt.Errorf("%s inherits %q: %w", doc.Name(), clip(from), err)
		}
		trail = append(trail, filepath.Clean(next.Name()))
		if slices.Contains(trail[:len(trail)-1], trail[len(trail)-1]) {
			return nil, diag.New(diag.ClassInput, "SoC %q inherits from itself: %s", name, strings.Join(trail, " > "))
		}
		if len(chain) > maxInherit { // also what a circle of links to one file comes to
			return nil, diag.New(diag.ClassInput, "SoC %q inherits through more than %d files", name,
				maxInherit).WithHint("does the chain return to itself?")
		}
		var parent SoC
		if err := next.Into(Schema, &parent); err != nil {
			return nil, err
		}
		doc, dir, from = next, nextDir, parent.Inherit
	}
	// lay each file over what it inherits, from the root of the chain on
	merged := chain[len(chain)-1]
	for i := len(chain) - 2; i >= 0; i-- {
		merged = overlay(merged, chain[i])
	}
	text, err := decode.YAML(merged)
	if err != nil {
		return nil, fmt.Errorf("merge SoC %q with what it inherits: %w", name, err)
	}
	var out SoC
	if err := decode.Bytes(name+" with what it inherits", text, Schema, &out); err != nil {
		return nil, err
	}
	return &out, nil
}

// openParent opens what an inherit entry of a file in dir names: a catalog entry, else a regular file
// in dir or below it. dir is "" for a catalog entry, which inherits from the catalog only.
func openParent(from, dir string) (*decode.Document, string, error) {
	if len(from) > maxText {
		return nil, "", diag.New(diag.ClassInput, "a name of %d bytes, want at most %d", len(from), maxText)
	}
	if data, ok := entry(from); ok {
		doc, err := decode.Parse(from, data)
		return doc, "", err
	}
	unknown := func() error {
		return diag.New(diag.ClassInput, "neither a file nor a catalog name: %w", fs.ErrNotExist).WithHint("%s",
			suggest(from))
	}
	// a catalog entry has no folder to look in
	if dir == "" {
		return nil, "", unknown()
	}
	if !filepath.IsLocal(from) {
		return nil, "", diag.New(diag.ClassInput, "the path leaves the directory of the file").
			WithHint("name a catalog entry, or a file in the same directory or below it")
	}
	root, err := os.OpenRoot(dir) // follows no symbolic link out of dir
	if err != nil {
		return nil, "", diag.New(diag.ClassIO, "%w", err)
	}
	defer root.Close()
	info, err := root.Stat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", unknown()
	}
	if err != nil {
		return nil, "", diag.New(diag.ClassIO, "%w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, "", diag.New(diag.ClassInput, "not a regular file")
	}
	file, err := root.Open(from)
	if err != nil {
		return nil, "", diag.New(diag.ClassIO, "%w", err)
	}
	defer file.Close()
	path := filepath.Join(dir, from)
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, "", diag.New(diag.ClassIO, "%w", err)
	}
	if len(data) > maxFile {
		return nil, "", tooLarge(path)
	}
	doc, err := decode.Parse(path, data)
	return doc, filepath.Dir(path), err
}

// unsourced is the source of a value that replaces an inherited one without saying where it comes from.
const unsourced = "assumed: replaces an inherited value without a source"

// overlay lays over upon base, sources included: a value that over states has over's source or
// none, whatever base said about the value it replaces; any other keeps base's, however broad
// the paths are that over's sources name.
func overlay(base, over map[string]any) map[string]any {
	before, stated := leaves(base), leaves(over)
	from, own := texts(base["sources"]), texts(over["sources"])
	all := maps.Clone(from)
	maps.Copy(all, own)
	merged := merge(base, over).(map[string]any)
	for path, value := range leaves(merged) {
		text, _ := source(from, path)
		if _, ok := stated[path]; ok {
			if mine, ok := source(own, path); ok {
				text = mine
			} else if text != "" && before[path] != value {
				text = unsourced
			}
		} else if mine, ok := own[path]; ok {
			text = mine
		}
		if have, _ := source(all, path); text != "" && have != text {
			all[path] = text
		}
	}
	if len(all) > 0 {
		merged["sources"] = all
	}
	return merged
}

// texts returns a decoded mapping of texts.
func texts(m any) map[string]string {
	out := map[string]string{}
	switch mapping := m.(type) {
	case map[string]string:
		maps.Copy(out, mapping)
	case map[string]any:
		for key, value := range mapping {
			out[key] = fmt.Sprint(value)
		}
	}
	return out
}

// merge lays over upon base. Mappings are merged key by key, lists of identified elements by identity. Anything else is
// replaced, like a list in which an element has no identity: there is no telling which elements correspond.
func merge(base, over any) any {
	switch over := over.(type) {
	case map[string]any:
		below, ok := base.(map[string]any)
		if !ok {
			return over
		}
		for key, value := range over {
			if old, ok := below[key]; ok {
				below[key] = merge(old, value)
			} else {
				below[key] = value
			}
		}
		return below
	case []any:
		if below, ok := base.([]any); ok {
			return mergeLists(below, over)
		}
	}
	return over
}

// mergeLists is merge for lists. An element that states where it comes from is replaced as a whole, or values of two
// origins would stand under one source.
func mergeLists(base, over []any) []any {
	at := map[string]int{}
	for i, elem := range base {
		id := identity(elem)
		if id == "" {
			return over
		}
		at[id] = i
	}
	out := slices.Clone(base)
	for _, elem := range over {
		id := identity(elem)
		if id == "" {
			return over
		}
		i, known := at[id]
		switch {
		case !known:
			out = append(out, elem)
		case statesSource(out[i]):
			out[i] = elem
		default:
			out[i] = merge(out[i], elem)
		}
	}
	return out
}

// statesSource reports whether an element states its own source.
func statesSource(e any) bool {
	fields, _ := e.(map[string]any)
	_, ok := fields["source"]
	return ok
}

// identity returns what tells an element of a list from the others: its name, its ends, its processors. What
// is longer than names can be has none, so that paths stay short.
func identity(e any) string {
	fields, ok := e.(map[string]any)
	if !ok {
		return ""
	}
	id, most := "", maxName
	if name, ok := fields["name"].(string); ok {
		id = name
	} else if from, ok := fields["from"].(string); ok {
		id, most = fmt.Sprintf("%s>%v", from, fields["to"]), 2*maxName+1
	} else if list, ok := fields["processors"].([]any); ok {
		set := make([]string, len(list))
		for i, elem := range list {
			set[i] = fmt.Sprint(elem)
		}
		sort.Strings(set)
		id, most = strings.Join(set, "+"), maxProcessors*(maxName+1)
	}
	if len(id) > most {
		return ""
	}
	return id
}
