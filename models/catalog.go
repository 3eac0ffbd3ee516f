package models

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hetc/hetc/internal/diag"
)

//go:embed catalog/*.yaml
var catalogFiles embed.FS

// entry is a catalog file: the config.json of a published model, and where it is published.
type entry struct {
	Schema string         `yaml:"schema"`
	Name   string         `yaml:"name"`
	Source string         `yaml:"source"`
	Config map[string]any `yaml:"config"`
}

const entrySchema = "hetc.model/1"

// CatalogNames lists the catalog entries in alphabetical order.
func CatalogNames() []string {
	files, err := fs.Glob(catalogFiles, "catalog/*.yaml")
	if err != nil {
		panic("BUG: glob of the catalog: " + err.Error())
	}
	out := make([]string, len(files))
	for i, f := range files {
		out[i] = strings.TrimSuffix(path.Base(f), ".yaml")
	}
	return out
}

// openCatalog returns the entry of that name; ok reports whether there is one.
func openCatalog(name string) (m *Model, ok bool, err error) {
	file := "catalog/" + name + ".yaml"
	data, err := fs.ReadFile(catalogFiles, file)
	if err != nil {
		return nil, false, nil
	}
	m, err = parseEntry(file, data)
	if err == nil && m.Name != name {
		err = diag.New(diag.ClassInternal, "name %q, want %q", m.Name, name).At("%s", file)
	}
	return m, true, err
}

func parseEntry(file string, data []byte) (*Model, error) {
	var e entry
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&e); err != nil {
		return nil, diag.New(diag.ClassInput, "read model: %w", err).At("%s", file)
	}
	if e.Schema != entrySchema || e.Name == "" || e.Source == "" {
		return nil, diag.New(diag.ClassInput, "read model: schema %q, name %q, source %q: want schema %q and the others not empty", e.Schema, e.Name, e.Source, entrySchema).At("%s", file)
	}
	config, err := json.Marshal(e.Config)
	if err != nil {
		return nil, diag.New(diag.ClassInput, "read model: config: %w", err).At("%s", file)
	}
	m, arch, err := parseConfig(file+": config", config)
	if err != nil {
		return nil, fmt.Errorf("read model: %w", err)
	}
	m.Name, m.Source, m.config = e.Name, e.Source, e.Config
	m.graph = arch.graph(m)
	return m, nil
}
