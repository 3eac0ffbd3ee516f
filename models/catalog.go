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

// entrySchema identifies the format of catalog files.
const entrySchema = "hetc.model/1"

// CatalogNames lists the catalog entries in alphabetical order.
func CatalogNames() []string {
	files, err := fs.Glob(catalogFiles, "catalog/*.yaml")
	if err != nil {
		panic("BUG: glob of the catalog: " + err.Error())
	}
	out := make([]string, len(files))
	for i, file := range files {
		out[i] = strings.TrimSuffix(path.Base(file), ".yaml")
	}
	return out
}

// openCatalog returns the entry of that name; ok reports whether there is one.
func openCatalog(name string) (model *Model, ok bool, err error) {
	file := "catalog/" + name + ".yaml"
	data, err := fs.ReadFile(catalogFiles, file)
	if err != nil {
		return nil, false, nil
	}
	model, err = parseEntry(file, data)
	if err == nil && model.Name != name {
		err = diag.New(diag.ClassInternal, "name %q, want %q", model.Name, name).At("%s", file)
	}
	return model, true, err
}

// parseEntry reads a catalog file into a model with a graph and no tensors. Errors say where in the
// file.
func parseEntry(file string, data []byte) (*Model, error) {
	doc, err := decode.Parse(file, data)
	if err != nil {
		return nil, err
	}
	var published entry
	if err := doc.Into(entrySchema, &published); err != nil {
		return nil, err
	}
	model, err := newConfig(published.Config, func(key string) string { return doc.At("config", key) }).model()
	if err != nil {
		return nil, err
	}
	model.Name, model.Source, model.config = published.Name, published.Source, published.Config
	model.graph = decoderGraph(model)
	return model, nil
}
