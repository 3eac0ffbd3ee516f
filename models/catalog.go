package models

import (
	"embed"
	"io/fs"
	"path"
	"strings"

	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
)

//go:embed catalog/*.yaml
var catalogFiles embed.FS

// entry is a catalog file: the config.json of a published model, and where it is published.
type entry struct {
	Name   string         `yaml:"name" decode:"required"`
	Source string         `yaml:"source" decode:"required"`
	Config map[string]any `yaml:"config" decode:"required"`
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
	doc, err := decode.Parse(file, data)
	if err != nil {
		return nil, err
	}
	var e entry
	if err := doc.Into(entrySchema, &e); err != nil {
		return nil, err
	}
	m, err := newConfig(e.Config, func(key string) string { return doc.At("config", key) }).model()
	if err != nil {
		return nil, err
	}
	m.Name, m.Source, m.config = e.Name, e.Source, e.Config
	m.graph = decoderGraph(m)
	return m, nil
}
