package matrix

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/emit"
	"github.com/hetc/hetc/internal/diag"
)

// Entries without a name are named by what they refer to, and cells are those that no exclusion matches.
func TestConfigNames(t *testing.T) {
	config, err := ParseConfig("ci/hetc.yaml", []byte(`schema: hetc.build/1
models: [tinyllama-1.1b, {model: ../models/Tiny/}, {model: x/y.gguf}, {model: z, name: other}]
socs: [snapdragon-8gen3, {soc: socs/host.yaml, record: r.jsonl}]
workloads: [chat.yaml, {name: plain}]
exclude: [{model: y, soc: snap*}, {workload: plain, soc: host}]
key: k.key
`))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range config.Models {
		names = append(names, entry.Name)
	}
	for _, entry := range config.SoCs {
		names = append(names, entry.Name)
	}
	for _, entry := range config.Workloads {
		names = append(names, entry.Name)
	}
	want := []string{"tinyllama-1.1b", "Tiny", "y", "other", "snapdragon-8gen3", "host", "chat", "plain"}
	if !slices.Equal(names, want) {
		t.Errorf("names %q, want %q", names, want)
	}

	run := &build{o: Options{Config: config}}
	cells, err := run.cells()
	if err != nil {
		t.Fatal(err)
	}
	const all, ofSnapdragon, ofHost = 2 * 4 * 2, 2, 4 // cells, and those that each exclusion leaves out
	if len(cells) != all-ofSnapdragon-ofHost {
		t.Errorf("%d cells, want 10 of 16", len(cells))
	}
	for _, cell := range cells {
		if cell.Model == "y" && cell.SoC == "snapdragon-8gen3" || cell.Workload == "plain" && cell.SoC == "host" {
			t.Errorf("%s is excluded", cell.Name())
		}
	}
}

// Paths are relative to the configuration, and bundles have the options of hetc emit.
func TestConfigDefaults(t *testing.T) {
	config, err := ParseConfig("ci/hetc.yaml", []byte("schema: hetc.build/1\nmodels: [a]\nsocs: [b]\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := config.inside(config.Output), filepath.Join("ci", "out"); got != want {
		t.Errorf("output %q, want %q", got, want)
	}
	absolute, err := filepath.Abs("x")
	if err != nil {
		t.Fatal(err)
	}
	if got := config.inside(absolute); got != absolute {
		t.Errorf("%q became %q", absolute, got)
	}
	if *config.Bundle != *newBundleOptions() {
		t.Errorf("bundle options %+v, want %+v", *config.Bundle, *newBundleOptions())
	}
}

// Mistakes in a configuration are errors of input that say what is wanted.
func TestConfigRefuses(t *testing.T) {
	const head = "schema: hetc.build/1\n"
	longName := strings.Repeat("x", 101)
	many := func(prefix string) string {
		names := make([]string, 200)
		for i := range names {
			names[i] = fmt.Sprint(prefix, i)
		}
		return strings.Join(names, ", ")
	}
	for what, test := range map[string]struct{ text, want string }{
		"empty":           {"", "document"},
		"no schema":       {"models: [a]\nsocs: [b]\n", `"schema" is missing`},
		"other schema":    {"schema: hetc.soc/1\n", "hetc.build/1"},
		"no models":       {head + "socs: [b]\n", `"models" is missing`},
		"no socs":         {head + "models: [b]\n", `"socs" is missing`},
		"empty models":    {head + "models: []\nsocs: [b]\n", "models is empty"},
		"empty workloads": {head + "models: [a]\nsocs: [b]\nworkloads: []\n", "workloads is empty"},
		"a list":          {head + "models: [[a]]\nsocs: [b]\n", "list"},
		"a number":        {head + "models: 3\nsocs: [b]\n", "want a list"},

		"unknown key":          {head + "models: [a]\nsocs: [b]\nouput: x\n", `did you mean "output"`},
		"unknown key of entry": {head + "models: [{model: a, nmae: b}]\nsocs: [b]\n", `did you mean "name"`},
		"empty model":          {head + "models: [\"\"]\nsocs: [b]\n", "model is empty"},
		"model without model":  {head + "models: [{name: b}]\nsocs: [b]\n", `"model" is missing`},
		"bundle key": {
			text: head + "models: [tiny]\nsocs: [b]\nbundle: {prodct: x}\n",
			want: `did you mean "product"`,
		},

		"twice":         {head + "models: [a, x/a]\nsocs: [b]\n", `name "a" is there twice`},
		"twice by case": {head + "models: [a, {model: b, name: A}]\nsocs: [b]\n", "twice"},
		"path as name":  {head + "models: [{model: a, name: ../b}]\nsocs: [b]\n", `name "../b"`},
		"hidden name":   {head + "models: [{model: a, name: .b}]\nsocs: [b]\n", `name ".b"`},
		"long name":     {head + "models: [{model: a, name: " + longName + "}]\nsocs: [b]\n", "at most 100"},
		"dot":           {head + "models: [.]\nsocs: [b]\n", "give it one"},
		"dots":          {head + "models: [../..]\nsocs: [b]\n", "give it one"},
		"root":          {head + "models: [/]\nsocs: [b]\n", "give it one"},
		"space":         {head + "models: [\"a b\"]\nsocs: [b]\n", "give it one"},

		"excludes nothing": {
			text: head + "models: [tiny]\nsocs: [b]\nexclude: [{model: tniy}]\n",
			want: `did you mean "tiny"`,
		},
		"excludes all": {
			text: head + "models: [tiny]\nsocs: [b]\nexclude: [{}]\n",
			want: "would exclude everything",
		},
		"bad pattern": {head + "models: [tiny]\nsocs: [b]\nexclude: [{model: \"[\"}]\n", "pattern"},
		"too many":    {head + "models: [" + many("m") + "]\nsocs: [" + many("s") + "]\n", "more than 16384"},
	} {
		_, err := ParseConfig("hetc.yaml", []byte(test.text))
		text := fmt.Sprint(err) + strings.Join(diag.HintsOf(err), " ")
		if diag.ClassOf(err) != diag.ClassInput || !strings.Contains(text, test.want) {
			t.Errorf("%s: %v, want an input error with %q", what, text, test.want)
		}
	}
}

// What is accepted has names that are safe as parts of paths, each once.
func FuzzParseConfig(f *testing.F) {
	f.Add("schema: hetc.build/1\nmodels: [a, {model: ../b, name: c}]\nsocs: [{soc: s, record: r}]\n" +
		"workloads: [w.yaml]\nexclude: [{model: a}]\nkey: k\noutput: o\nbundle: {product: p}\n")
	f.Add("schema: hetc.build/1\nmodels: [\"a/../..\"]\nsocs: [\"\\\\\"]\n")
	f.Add(`{"schema": "hetc.build/1", "models": ["x.gguf"], "socs": ["y"], "workloads": [{}]}`)
	f.Add("schema: hetc.build/1\nmodels: &x [a]\nsocs: *x\n")
	f.Fuzz(func(t *testing.T, text string) {
		config, err := ParseConfig("hetc.yaml", []byte(text))
		if err != nil {
			if diag.ClassOf(err) != diag.ClassInput {
				t.Fatalf("class %v: %v", diag.ClassOf(err), err)
			}
			return
		}
		run := &build{o: Options{Config: config}, out: "out"}
		cells, err := run.cells()
		if err != nil {
			return // everything is excluded
		}
		seen := map[string]bool{}
		for _, cell := range cells {
			file := cell.Plan.File
			lower := strings.ToLower(file)
			if seen[lower] {
				t.Fatalf("%q is there twice", file)
			}
			seen[lower] = true
			parts := strings.Split(filepath.ToSlash(file), "/")
			if len(parts) != 4 || filepath.Clean(file) != file {
				t.Fatalf("file %q", file)
			}
		}
	})
}

// A pattern selects cells by their SoC, model and workload, of which the later ones may be left out.
func TestSelected(t *testing.T) {
	for _, test := range []struct {
		pattern string
		want    bool
	}{
		{"", true},
		{"snap*", true},
		{"snapdragon", true},
		{"snapdragon/", true},
		{"snap", false},
		{"snapdragon/tiny", true},
		{"*/tiny", true},
		{"*/tin", false},
		{"*/*/chat", true},
		{"*/*/c?at", true},
		{"snapdragon/tiny/chat", true},
		{"snapdragon/tiny/long", false},
		{"//chat", true},
		{"tiny", false},
		{"*/tiny/*/x", false},
	} {
		if got := selected(test.pattern, "snapdragon", "tiny", "chat"); got != test.want {
			t.Errorf("%q selects: %v, want %v", test.pattern, got, test.want)
		}
	}
	for _, bad := range []string{"[", "a/[/b", "a/b/c/d"} {
		if err := checkPattern(bad); diag.ClassOf(err) != diag.ClassUsage {
			t.Errorf("%q: %v, want a usage error", bad, err)
		}
	}
}

// What happens without a key follows from what the file asks for.
func TestSigning(t *testing.T) {
	const base = "schema: hetc.build/1\nmodels: [tinyllama-1.1b]\nsocs: [apple-m2-ultra]\n"
	for _, test := range []struct {
		more string
		want signing
	}{
		{"", signOptional},
		{"bundle: {product: p}\n", signRequired},
		{"bundle: {}\n", signRequired},
		{"key: k.key\n", signRequired},
		{"bundle: {product: p}\nsign: optional\n", signOptional},
		{"sign: never\n", signNever},
	} {
		config, err := ParseConfig("hetc.yaml", []byte(base+test.more))
		if err != nil {
			t.Errorf("%q: %v", test.more, err)
			continue
		}
		if config.Sign != test.want {
			t.Errorf("%q: sign is %q, want %q", test.more, config.Sign, test.want)
		}
		if config.Bundle.Version != "0" || config.Bundle.KeyringGeneration != 1 {
			t.Errorf("%q: bundle options %+v lost their defaults", test.more, *config.Bundle)
		}
	}

	t.Setenv(emit.EnvSigningKey, "")
	t.Setenv(emit.EnvSigningKeyFile, "")
	for sign, fails := range map[signing]bool{signRequired: true, signOptional: false, signNever: false} {
		key, err := (&Config{Sign: sign}).SigningKey()
		if key != nil || (err != nil) != fails {
			t.Errorf("sign %s without a key: %v, %v", sign, key, err)
		}
	}
}
