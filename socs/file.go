package socs

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
)

//go:embed catalog/*.yaml
var catalog embed.FS

// maxInherit bounds a chain of inherit entries.
const maxInherit = 8

// Catalog lists the names of the embedded SoCs, ascending.
func Catalog() []string {
	files, err := fs.Glob(catalog, "catalog/*.yaml")
	if err != nil || len(files) == 0 {
		panic("BUG: the SoC catalog is empty")
	}
	out := make([]string, len(files))
	for i, f := range files {
		out[i] = strings.TrimSuffix(filepath.Base(f), ".yaml")
	}
	sort.Strings(out)
	return out
}

// Open reads a SoC from the catalog by name, else from a file, and validates it. A word that is
// neither is an error that names the nearest catalog entry.
func Open(nameOrFile string) (*SoC, error) {
	if data, err := catalog.ReadFile("catalog/" + nameOrFile + ".yaml"); err == nil {
		return Parse(nameOrFile, data)
	}
	if _, err := os.Stat(nameOrFile); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, diag.New(diag.ClassInput, "open SoC %q: neither a file nor a catalog name: %w", nameOrFile, fs.ErrNotExist).
				WithHint("%s", decode.DidYouMean(nameOrFile, Catalog()))
		}
		return nil, diag.New(diag.ClassIO, "open SoC: %w", err)
	}
	d, err := decode.ReadFile(nameOrFile)
	if err != nil {
		return nil, err
	}
	return load(d, filepath.Dir(nameOrFile))
}

// Parse reads and validates a SoC from the bytes of a file; name is shown in errors and a relative
// inherit entry is resolved against its directory.
func Parse(name string, data []byte) (*SoC, error) {
	d, err := decode.Parse(name, data)
	if err != nil {
		return nil, err
	}
	return load(d, filepath.Dir(name))
}

func load(d *decode.Document, dir string) (*SoC, error) {
	var s SoC
	if err := d.Into(Schema, &s); err != nil {
		return nil, err
	}
	if s.Inherit != "" {
		merged, err := inherit(d, dir, &s)
		if err != nil {
			return nil, err
		}
		s = *merged
	}
	s.Schema = Schema
	if err := s.Validate(); err != nil {
		return nil, located(d, err)
	}
	return &s, nil
}

// inherit lays the document over everything it inherits, as plain values.
func inherit(d *decode.Document, dir string, s *SoC) (*SoC, error) {
	var chain []map[string]any
	name, from := d.Name(), s.Inherit
	for {
		var m map[string]any
		if err := d.Into("", &m); err != nil {
			return nil, err
		}
		delete(m, "inherit")
		chain = append(chain, m)
		if from == "" {
			break
		}
		if len(chain) > maxInherit {
			return nil, diag.New(diag.ClassInput, "SoC %q inherits through more than %d files", name, maxInherit).WithHint("does the chain return to itself?")
		}
		next, nextDir, err := openParent(from, dir)
		if err != nil {
			return nil, fmt.Errorf("%s inherits %q: %w", name, from, err)
		}
		var parent SoC
		if err := next.Into(Schema, &parent); err != nil {
			return nil, err
		}
		d, dir, from = next, nextDir, parent.Inherit
	}
	merged := chain[len(chain)-1]
	for i := len(chain) - 2; i >= 0; i-- {
		merged = merge(merged, chain[i]).(map[string]any)
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

func openParent(from, dir string) (*decode.Document, string, error) {
	if data, err := catalog.ReadFile("catalog/" + from + ".yaml"); err == nil {
		d, err := decode.Parse(from, data)
		return d, "", err
	}
	path := from
	if !filepath.IsAbs(path) {
		path = filepath.Join(dir, path)
	}
	d, err := decode.ReadFile(path)
	if err != nil && errors.Is(err, fs.ErrNotExist) {
		return nil, "", diag.New(diag.ClassInput, "neither a file nor a catalog name").WithHint("%s", decode.DidYouMean(from, Catalog()))
	}
	return d, filepath.Dir(path), err
}

// merge lays over upon base: mappings key by key, lists of identified mappings by identity, anything
// else is replaced.
func merge(base, over any) any {
	switch o := over.(type) {
	case map[string]any:
		b, ok := base.(map[string]any)
		if !ok {
			return over
		}
		for k, v := range o {
			if old, ok := b[k]; ok {
				b[k] = merge(old, v)
			} else {
				b[k] = v
			}
		}
		return b
	case []any:
		b, ok := base.([]any)
		if !ok {
			return over
		}
		at := map[string]int{}
		for i, e := range b {
			id := identity(e)
			if id == "" {
				return over
			}
			at[id] = i
		}
		out := append([]any(nil), b...)
		for _, e := range o {
			id := identity(e)
			if id == "" {
				return over
			}
			if i, ok := at[id]; ok {
				out[i] = merge(out[i], e)
			} else {
				out = append(out, e)
			}
		}
		return out
	}
	return over
}

// identity is what tells an element of a list from the others: its name, its ends, its processors.
func identity(e any) string {
	m, ok := e.(map[string]any)
	if !ok {
		return ""
	}
	if n, ok := m["name"].(string); ok {
		return n
	}
	if from, ok := m["from"].(string); ok {
		return fmt.Sprintf("%s>%v", from, m["to"])
	}
	if list, ok := m["processors"].([]any); ok {
		set := make([]string, len(list))
		for i, p := range list {
			set[i] = fmt.Sprint(p)
		}
		sort.Strings(set)
		return strings.Join(set, "+")
	}
	return ""
}

// located prefixes data paths with the file.
func located(d *decode.Document, err error) error {
	put := func(x *diag.Diagnostic) { x.Path = d.Name() + ": " + x.Path }
	switch e := err.(type) {
	case *diag.Diagnostic:
		put(e)
	case diag.List:
		for _, x := range e {
			put(x)
		}
	}
	return err
}

// Digest is the identity of the SoC: hex SHA-256 of its canonical JSON, sources included.
func (s *SoC) Digest() (string, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return "", fmt.Errorf("digest of SoC %q: %w", s.Name, err)
	}
	sum := sha256.Sum256(bytes.TrimSuffix(buf.Bytes(), []byte("\n")))
	return hex.EncodeToString(sum[:]), nil
}

// Write validates s and stores it as YAML at path, replacing the file as a whole or not at all.
func Write(path string, s *SoC) error {
	if err := s.Validate(); err != nil {
		return fmt.Errorf("write SoC: %w", err)
	}
	text, err := decode.YAML(s)
	if err != nil {
		return fmt.Errorf("write SoC: %w", err)
	}
	return wholefile.Write(path, text)
}
