package socs

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
)

//go:embed catalog/*.yaml
var catalog embed.FS

// Bounds of a file, far above any real one and checked before anything is built from it.
const (
	maxFile    = 1 << 19 // bytes
	maxInherit = 8       // files a SoC inherits from, one through the other
)

// Catalog lists the names of the embedded SoCs, ascending.
func Catalog() []string {
	files, err := fs.Glob(catalog, "catalog/*.yaml")
	if err != nil || len(files) == 0 {
		panic("BUG: the SoC catalog is empty")
	}
	out := make([]string, len(files))
	for i, name := range files {
		out[i] = strings.TrimSuffix(filepath.Base(name), ".yaml")
	}
	sort.Strings(out)
	return out
}

// Open reads a SoC from the catalog by name, else from a file, and validates it. A word that is
// neither is an error that names the nearest catalog entries and lists all.
func Open(nameOrFile string) (*SoC, error) {
	if data, ok := entry(nameOrFile); ok {
		doc, err := decode.Parse(nameOrFile, data)
		if err != nil {
			return nil, err
		}
		return load(doc, "")
	}
	data, err := wholefile.Read(nameOrFile, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, diag.New(diag.ClassInput, "open SoC %q: neither a file nor a catalog name: %w", nameOrFile,
			fs.ErrNotExist).
			WithHint("%s", suggest(nameOrFile, diag.HintsOf(err)...))
	}
	if err != nil {
		return nil, err
	}
	doc, err := decode.Parse(nameOrFile, data)
	if err != nil {
		return nil, err
	}
	return load(doc, filepath.Dir(nameOrFile))
}

// Parse reads and validates a SoC from the bytes of a file of at most 512 KiB; name is shown in errors
// and a relative inherit entry is resolved against its directory.
func Parse(name string, data []byte) (*SoC, error) {
	if len(data) > maxFile {
		return nil, tooLarge(name)
	}
	doc, err := decode.Parse(name, data)
	if err != nil {
		return nil, err
	}
	return load(doc, filepath.Dir(name))
}

// entry returns the text of a catalog entry.
func entry(name string) ([]byte, bool) {
	data, err := catalog.ReadFile("catalog/" + name + ".yaml")
	return data, err == nil
}

// tooLarge refuses a file by its size.
func tooLarge(name string) error {
	return diag.New(diag.ClassInput, "read %q: more than %d bytes, no SoC is that large", name, maxFile)
}

// suggest returns the hint for a name that the catalog does not have: the entries that contain the word,
// later generations first, or the nearest one, or what others suggest; then the whole catalog.
func suggest(word string, others ...string) string {
	names := Catalog()
	var near []string
	if len(word) >= 2 {
		for _, name := range names {
			if strings.Contains(name, strings.ToLower(word)) {
				near = append([]string{strconv.Quote(name)}, near...)
			}
		}
	}
	if nearest := diag.Nearest(word, names); nearest != "" && len(near) == 0 {
		near = []string{strconv.Quote(nearest)}
	}
	if len(near) > 0 {
		others = []string{"did you mean " + strings.Join(near, " or ") + "?"}
	}
	return strings.Join(append(others, "the catalog has "+strings.Join(names, ", ")), " ")
}

// load reads a document with what it inherits, and validates the whole.
func load(doc *decode.Document, dir string) (*SoC, error) {
	var soc SoC
	if err := doc.Into(Schema, &soc); err != nil {
		return nil, err
	}
	if soc.Inherit != "" {
		merged, err := inherit(doc, dir, &soc)
		if err != nil {
			return nil, err
		}
		soc = *merged
	}
	soc.Schema = Schema
	if err := soc.Validate(); err != nil {
		return nil, located(doc, err)
	}
	return &soc, nil
}

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
	switch x := m.(type) {
	case map[string]string:
		maps.Copy(out, x)
	case map[string]any:
		for key, value := range x {
			out[key] = fmt.Sprint(value)
		}
	}
	return out
}

// merge lays over upon base: mappings key by key, lists of identified mappings by identity, anything
// else is replaced. An element with a source of its own is replaced too: the source speaks of its value.
func merge(base, over any) any {
	// Mappings are merged key by key, lists of named elements by name. Any other value is replaced, like a list in
	// which an element has no name: there is no telling which ones correspond.
	switch o := over.(type) {
	case map[string]any:
		below, ok := base.(map[string]any)
		if !ok {
			return over
		}
		for key, value := range o {
			if old, ok := below[key]; ok {
				below[key] = merge(old, value)
			} else {
				below[key] = value
			}
		}
		return below
	case []any:
		below, ok := base.([]any)
		if !ok {
			return over
		}
		at := map[string]int{}
		for i, elem := range below {
			id := identity(elem)
			if id == "" {
				return over
			}
			at[id] = i
		}
		out := append([]any(nil), below...)
		for _, elem := range o {
			id := identity(elem)
			if id == "" {
				return over
			}
			// An element that states where it comes from is replaced as a whole, or values of two origins would stand
			// under one.
			if i, ok := at[id]; ok && !statesSource(out[i]) {
				out[i] = merge(out[i], elem)
			} else if ok {
				out[i] = elem
			} else {
				out = append(out, elem)
			}
		}
		return out
	}
	return over
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

// located prefixes data paths with the file.
func located(d *decode.Document, err error) error {
	put := func(x *diag.Diagnostic) { x.Path = d.Name() + ": " + x.Path }
	switch e := err.(type) {
	case *diag.Diagnostic:
		put(e)
	case diag.List:
		for _, diagnostic := range e {
			put(diagnostic)
		}
	}
	return err
}

// Digest returns the identity of the SoC: hex SHA-256 of its canonical JSON, sources included.
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
