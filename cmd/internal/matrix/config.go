// Package matrix knows how a matrix of models, SoCs and workloads becomes plans and bundles, each made at
// most once. Read Run (build.go) first; steps.go has the steps of one combination, each with its key in the cache;
// inputs.go and costs.go have the files and the costs that the steps start from.
package matrix

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/child"
	"github.com/hetc/hetc/internal/decode"
	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/unit"
	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/socs"
)

// Schema identifies the format of the configuration.
const Schema = "hetc.build/1"

// maxCells bounds the matrix.
const maxCells = 1 << 14

// Config is what is to be built: every model on every SoC for every workload.
type Config struct {
	Models    []modelEntry    `yaml:"models" decode:"required"`
	SoCs      []socEntry      `yaml:"socs" decode:"required"`
	Workloads []workloadEntry `yaml:"workloads"` // none: the default one
	Exclude   []exclusion     `yaml:"exclude"`
	Key       string          `yaml:"key"`      // signs the bundles; none: the environment's
	Sign      signing         `yaml:"sign"`     // default: required where key or bundle is there, else optional
	Output    string          `yaml:"output"`   // directory; default "out"
	Outlines  string          `yaml:"outlines"` // directory of planir.Outline texts; none: they are not written
	Bundle    *bundleOptions  `yaml:"bundle"`

	dir string // paths are relative to it
}

// signing says whether bundles are wanted.
type signing string

const (
	signRequired signing = "required" // without a key nothing is built
	signOptional signing = "optional" // without a key there are plans only, and a warning
	signNever    signing = "never"    // plans only
)

// modelEntry is a model of the matrix.
type modelEntry struct {
	Model       string `yaml:"model" decode:"required"` // file, directory or catalog name
	Calibration string `yaml:"calibration"`             // of hetc calibrate
	Name        string `yaml:"name"`
}

// socEntry is a SoC, or the device of one that is a target: what hetc solve and hetc emit take as --soc or --target.
type socEntry struct {
	SoC           string   `yaml:"soc"`    // file or catalog name
	Target        string   `yaml:"target"` // likewise, with target data
	Record        string   `yaml:"record"`
	Facts         string   `yaml:"facts"`          // of a target: record with compiler facts; default: the record's
	Only          []string `yaml:"only"`           // processors that execute what they can
	AllowFallback bool     `yaml:"allow_fallback"` // of a target: as emit's
	Twin          bool     `yaml:"twin"`           // of a target: also write the twin for the vendor's emulator
	Name          string   `yaml:"name"`
}

// source returns the file or catalog name, and the key that gave it.
func (e *socEntry) source() (value, key string) {
	if e.Target != "" {
		return e.Target, "target"
	}
	return e.SoC, "soc"
}

// workloadEntry is a workload of the matrix.
type workloadEntry struct {
	Workload string `yaml:"workload"` // file; none: the default workload
	Name     string `yaml:"name"`
}

// exclusion leaves out cells by their names; a part that is left out matches all.
type exclusion struct {
	Model    string `yaml:"model"`
	SoC      string `yaml:"soc"`
	Workload string `yaml:"workload"`
}

// bundleOptions are those of hetc emit.
type bundleOptions struct {
	WithReference     bool        `yaml:"with_reference" json:"with_reference"`
	Product           string      `yaml:"product" json:"product"`
	Version           string      `yaml:"version" json:"version"`
	SecurityVersion   int64       `yaml:"security_version" json:"security_version"`
	KeyringGeneration int64       `yaml:"keyring_generation" json:"keyring_generation"`
	NotAfter          unit.Moment `yaml:"not_after" json:"not_after"`
}

// newBundleOptions returns the defaults of hetc emit.
func newBundleOptions() *bundleOptions {
	return &bundleOptions{Product: "hetc", Version: "0", KeyringGeneration: 1}
}

// stated returns the options as emit has them.
func (o *bundleOptions) stated() *emit.Options {
	return &emit.Options{Product: o.Product, Version: o.Version, SecurityVersion: o.SecurityVersion,
		Generation: o.KeyringGeneration, NotAfter: int64(o.NotAfter), Reference: o.WithReference}
}

// UnmarshalNode reads the options that are there over the defaults.
func (o *bundleOptions) UnmarshalNode(n *decode.Node) error {
	type plain bundleOptions
	*o = *newBundleOptions()
	return n.Decode((*plain)(o))
}

// entry reads "- NAME" as "- {key: NAME}".
func entry[T any](n *decode.Node, v *T, short *string) error {
	if n.IsMapping() {
		return n.Decode(v)
	}
	return n.Decode(short)
}

// UnmarshalNode takes a model by itself for {model: NAME}; likewise the SoCs and workloads below.
func (e *modelEntry) UnmarshalNode(n *decode.Node) error {
	type plain modelEntry
	return entry(n, (*plain)(e), &e.Model)
}

// UnmarshalNode takes a SoC by itself for {soc: NAME}; targets have no short form.
func (e *socEntry) UnmarshalNode(n *decode.Node) error {
	type plain socEntry
	return entry(n, (*plain)(e), &e.SoC)
}

// UnmarshalNode takes a workload by itself for {workload: FILE}.
func (e *workloadEntry) UnmarshalNode(n *decode.Node) error {
	type plain workloadEntry
	return entry(n, (*plain)(e), &e.Workload)
}

// ReadConfig reads a configuration; paths in it are relative to its directory. Mistakes are of class
// ClassInput, with their line.
func ReadConfig(file string) (*Config, error) {
	document, err := decode.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseConfig(document, filepath.Dir(file))
}

// ParseConfig is ReadConfig of bytes; name is shown in errors, and its directory is that of the paths.
func ParseConfig(name string, data []byte) (*Config, error) {
	document, err := decode.Parse(name, data)
	if err != nil {
		return nil, err
	}
	return parseConfig(document, filepath.Dir(name))
}

// parseConfig reads a configuration whose paths are relative to dir, and fills in what follows from the rest.
func parseConfig(document *decode.Document, dir string) (*Config, error) {
	config := &Config{dir: dir}
	if err := document.Into(Schema, config); err != nil {
		return nil, err
	}

	// a user who gives bundle options or a key wants signed bundles
	if config.Sign == "" {
		config.Sign = signOptional
		if config.Bundle != nil || config.Key != "" {
			config.Sign = signRequired
		}
	}

	if config.Bundle == nil {
		config.Bundle = newBundleOptions()
	}
	if config.Workloads == nil {
		config.Workloads = []workloadEntry{{}}
	}
	if config.Output == "" {
		config.Output = "out"
	}
	if err := config.validate(document); err != nil {
		return nil, err
	}
	return config, nil
}

// findings collects what is wrong with a configuration, with the place in its document.
type findings struct {
	document *decode.Document
	list     diag.List
}

// fail notes what is wrong with the value at a path of keys and indices.
func (f *findings) fail(at []any, format string, args ...any) *diag.Diagnostic {
	finding := diag.New(diag.ClassInput, format, args...).WithCode("build.value")
	finding.Path = f.document.At(at...)
	f.list = append(f.list, finding)
	return finding
}

// at is fail for one place.
func (f *findings) at(at ...any) func(string, ...any) *diag.Diagnostic {
	return func(format string, args ...any) *diag.Diagnostic { return f.fail(at, format, args...) }
}

// names are the names of the entries of one list. They become parts of paths, on file systems that ignore case too.
type names struct {
	list string
	seen map[string]bool // in lower case
}

// take checks the name of an entry, and makes one of what the entry is from where it has none. key is that of from,
// "" where from may be empty.
func (n *names) take(found *findings, index int, name *string, from, key string) {
	fail := found.at(n.list, index)
	if from == "" && key != "" {
		fail("%s is empty", key)
		return
	}

	if *name == "" {
		*name = nameOf(from)
		if !goodName.MatchString(*name) {
			fail("%q gives the name %q, want letters, digits, '.', '_' and '-'", from, *name).
				WithHint("give it one: {%s: %s, name: NAME}", key, from)
			return
		}
	} else if !goodName.MatchString(*name) {
		fail("name %q, want at most 100 letters, digits, '.', '_' and '-', not beginning with a '.'", *name)
		return
	}

	lower := strings.ToLower(*name)
	if n.seen[lower] {
		fail("name %q is there twice", *name).WithHint("results are named by it: give each entry a name of its own")
	}
	n.seen[lower] = true
}

// validate gives every entry its name and reports everything that makes no sense.
func (c *Config) validate(document *decode.Document) error {
	found := &findings{document: document}
	c.nameEntries(found)
	if !slices.Contains([]signing{signRequired, signOptional, signNever}, c.Sign) {
		found.at("sign")("sign %q, want required, optional or never", c.Sign)
	}
	if c.Sign == signNever && c.Key != "" {
		found.at("sign")("sign: never, and key %q would sign", c.Key).WithHint("leave one of them out")
	}
	if err := c.Bundle.stated().CheckStated(); err != nil {
		found.at("bundle")("%w", err)
	}
	c.checkSize(found)
	if len(found.list) == 0 {
		for i, exclusion := range c.Exclude {
			c.checkExclusion(exclusion, found.at("exclude", i))
		}
	}

	found.list.Sort()
	return found.list.Err()
}

// nameEntries gives every model, SoC and workload its name.
func (c *Config) nameEntries(found *findings) {
	models := names{"models", map[string]bool{}}
	for i := range c.Models {
		models.take(found, i, &c.Models[i].Name, c.Models[i].Model, "model")
	}
	socs := names{"socs", map[string]bool{}}
	for i := range c.SoCs {
		value, key := c.SoCs[i].source()
		socs.take(found, i, &c.SoCs[i].Name, value, key)
		c.SoCs[i].validate(found.at("socs", i))
	}

	// a twin is written beside its bundle as NAME.twin, which no workload may be called then
	twins := slices.ContainsFunc(c.SoCs, func(e socEntry) bool { return e.Twin })
	workloads := names{"workloads", map[string]bool{}}
	for i := range c.Workloads {
		entry := &c.Workloads[i]
		if entry.Workload == "" && entry.Name == "" {
			entry.Name = "default"
		}
		workloads.take(found, i, &entry.Name, entry.Workload, "")
		if twins && strings.HasSuffix(strings.ToLower(entry.Name), ".twin") {
			found.at("workloads", i)("workload %q: twins of bundles have names that end so", entry.Name).
				WithHint("give it another name")
		}
	}
}

// checkSize refuses a matrix without cells, and one of too many.
func (c *Config) checkSize(found *findings) {
	for list, count := range map[string]int{"models": len(c.Models), "socs": len(c.SoCs),
		"workloads": len(c.Workloads)} {
		if count == 0 {
			found.at(list)("%s is empty, so there is nothing to build", list)
		}
	}

	models, socs, workloads := len(c.Models), len(c.SoCs), len(c.Workloads)
	cells := 1
	for _, count := range []int{models, socs, workloads} {
		// The factors are bounded, so that the product cannot overflow.
		if cells *= min(count, maxCells+1); cells > maxCells || count > maxCells {
			found.at()("%d models, %d SoCs and %d workloads make more than %d plans", models, socs, workloads, maxCells)
			return
		}
	}
}

// validate refuses an entry that names two SoCs, or asks a SoC that is no target for what only a target has.
func (e *socEntry) validate(fail func(string, ...any) *diag.Diagnostic) {
	switch {
	case e.SoC != "" && e.Target != "":
		fail("soc %q and target %q in one entry, want one of them", e.SoC, e.Target).
			WithHint("make two entries of it, the second with a name: of its own")
	case e.Target == "" && (e.Facts != "" || e.AllowFallback || e.Twin):
		fail("facts, allow_fallback and twin are for the device of a SoC, and soc %q is none", e.SoC).
			WithHint("write target: %s instead of soc: %s", e.SoC, e.SoC)
	}
}

// checkExclusion refuses what excludes nothing: it is a mistake in a name.
func (c *Config) checkExclusion(excluded exclusion, fail func(string, ...any) *diag.Diagnostic) {
	if excluded == (exclusion{}) {
		fail("an empty exclusion would exclude everything").
			WithHint("say which: {model: NAME, soc: NAME, workload: NAME}, each of them may be left out")
		return
	}

	var models, socs, workloads []string
	for _, entry := range c.Models {
		models = append(models, entry.Name)
	}
	for _, entry := range c.SoCs {
		socs = append(socs, entry.Name)
	}
	for _, entry := range c.Workloads {
		workloads = append(workloads, entry.Name)
	}

	for _, part := range []struct {
		key, pattern string
		names        []string
	}{{"model", excluded.Model, models}, {"soc", excluded.SoC, socs}, {"workload", excluded.Workload, workloads}} {
		if _, err := path.Match(part.pattern, ""); err != nil {
			fail("%s: pattern %q: %w", part.key, part.pattern, err)
		} else if !slices.ContainsFunc(part.names, func(n string) bool { return match(part.pattern, n) }) {
			fail("%s %q excludes nothing: no %s has that name", part.key, part.pattern, part.key).
				WithHint("%s", diag.DidYouMean(part.pattern, part.names))
		}
	}
}

// goodName is what names of entries look like: they become parts of paths on any file system.
var goodName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$`)

// nameOf returns the name of an entry that brings none: the last part of its path without the ending of a file.
func nameOf(from string) string {
	if from == "" {
		return ""
	}
	base := filepath.Base(filepath.FromSlash(from))
	switch ext := filepath.Ext(base); ext {
	case ".yaml", ".yml", ".json", ".gguf":
		base = strings.TrimSuffix(base, ext)
	}
	return base
}

// match matches a name with a pattern; an empty pattern matches all.
func match(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	ok, err := path.Match(pattern, name)
	return ok && err == nil
}

// excluded reports whether a cell is left out.
func (c *Config) excluded(model, soc, workload string) bool {
	return slices.ContainsFunc(c.Exclude, func(x exclusion) bool {
		return match(x.Model, model) && match(x.SoC, soc) && match(x.Workload, workload)
	})
}

// inside returns a path of the configuration, seen from here.
func (c *Config) inside(p string) string {
	if p == "" || filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(c.dir, filepath.FromSlash(p))
}

// find returns what an entry refers to: a path beside the configuration, or a name of the catalog. A SoC is never a
// folder, so that outlines, which are sorted into folders by SoC, may lie beside the configuration.
func (c *Config) find(what, value string, catalog []string) (string, error) {
	there := func(path string) bool {
		info, err := os.Stat(path)
		return err == nil && (what == "model" || !info.IsDir())
	}
	file := c.inside(value)

	// A file beside the configuration wins over the catalog's entry of the same name.
	if !slices.Contains(catalog, value) || there(file) {
		return file, nil
	}

	// What is called like the catalog's entry in the working directory is not meant.
	if there(value) {
		return "", diag.New(diag.ClassInput, "%s %q names a catalog entry, but the working directory has a file %q",
			what, value, value).
			WithHint("run hetc in another directory")
	}

	return value, nil
}

// SigningKey returns the key that signs the bundles: the file's, else the environment's. It is nil where none is
// wanted, and where there is none and none is required.
func (c *Config) SigningKey() (*emit.PrivateKey, error) {
	if c.Sign == signNever {
		return nil, nil
	}
	set, filled := child.HasSigningKey()
	file, fileSet := os.LookupEnv(emit.EnvSigningKeyFile)

	// the first place that names a key decides
	if c.Key != "" || filled || file != "" {
		return emit.LoadSigningKey(c.inside(c.Key))
	}
	if c.Sign == signOptional {
		return nil, nil
	}

	// A variable that is set and empty is a secret that this job was not given: the error says so.
	empty := ""
	if fileSet {
		empty = emit.EnvSigningKeyFile
	} else if set {
		empty = emit.EnvSigningKey
	}

	if empty != "" {
		empty = fmt.Sprintf(" (%s is set and empty: this job may not see the secret)", empty)
	}
	return nil, diag.New(diag.ClassInput, "build: bundles are wanted, and there is no key to sign them%s", empty).
		WithHint("write key: FILE, or set %s or %s; for plans alone write sign: never", emit.EnvSigningKey,
			emit.EnvSigningKeyFile)
}

// openModel opens a model by file, directory or catalog name.
func (c *Config) openModel(e modelEntry) (*models.Model, error) {
	path, err := c.find("model", e.Model, models.CatalogNames())
	if err != nil {
		return nil, err
	}
	return models.Open(path)
}

// openSoC opens a SoC or a target.
func (c *Config) openSoC(e socEntry) (*socs.SoC, error) {
	value, key := e.source()
	path, err := c.find(key, value, socs.Catalog())
	if err != nil {
		return nil, err
	}
	if e.Target != "" {
		return socs.OpenTarget(path)
	}
	return socs.Open(path)
}

// selected reports whether a pattern SOC/MODEL/WORKLOAD, whose later parts may be left out, matches.
func selected(pattern string, parts ...string) bool {
	for i, p := range strings.Split(pattern, "/") {
		if p != "" && (i >= len(parts) || !match(p, parts[i])) {
			return false
		}
	}
	return true
}

// checkPattern refuses an --only that is not up to three patterns.
func checkPattern(pattern string) error {
	for p := range strings.SplitSeq(pattern, "/") {
		if _, err := path.Match(p, ""); err != nil {
			return diag.New(diag.ClassUsage, "--only %q: %w", pattern, err).
				WithHint("want SOC/MODEL/WORKLOAD, each with * for anything, or a prefix")
		}
	}
	if strings.Count(pattern, "/") > 2 {
		return diag.New(diag.ClassUsage, "--only %q: more than three parts", pattern).
			WithHint("want SOC/MODEL/WORKLOAD, each with * for anything, or a prefix")
	}
	return nil
}

// cellName returns how messages and --only name a cell: as its files lie in the output.
func cellName(soc, model, workload string) string {
	return fmt.Sprintf("%s/%s/%s", soc, model, workload)
}
