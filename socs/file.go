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
	"path/filepath"
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
	catalog := "the catalog has " + strings.Join(names, ", ")
	if len(others) == 0 {
		return catalog
	}
	hint := strings.Join(others, "; ")
	if strings.HasSuffix(hint, "?") {
		return hint + " " + catalog
	}
	return hint + "; " + catalog
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
