package decode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
)

type size int64

func (s *size) UnmarshalText(b []byte) error {
	if _, err := fmt.Sscanf(string(b), "%dKiB", (*int64)(s)); err != nil {
		return fmt.Errorf("size %q, want like 4KiB", b)
	}
	*s <<= 10
	return nil
}

// sourced is a number with or without its source.
type sourced struct {
	Value  float64
	Source string
}

func (s *sourced) UnmarshalNode(n *Node) error {
	if !n.IsMapping() {
		return n.Decode(&s.Value)
	}
	var x struct {
		Value  float64 `decode:"required"`
		Source string
	}
	if err := n.Decode(&x); err != nil {
		return err
	}
	if x.Source == "" {
		return n.Errorf("value without a source")
	}
	*s = sourced(x)
	return nil
}

type common struct {
	Note string `yaml:"note"`
}

type proc struct {
	Kind    string            `yaml:"kind" decode:"required"`
	Cores   []int             `yaml:"cores,omitempty"`
	Memory  size              `yaml:"memory,omitempty"`
	Peak    *float64          `yaml:"peak_gops,omitempty"`
	Options map[string]string `yaml:"options,omitempty"`
	Bw      sourced           `yaml:"bandwidth_gbps,omitempty"`
	Flag    bool              `json:"flag"`
	Small   uint8             `yaml:"small"`
	common  `yaml:",inline"`
	_       int // an unexported field is no key
}

type soc struct {
	Name  string          `yaml:"name"`
	Procs map[string]proc `yaml:"processors"`
	Pair  [2]int          `yaml:"pair"`
	Any   any             `yaml:"any"`
}

const good = `# a comment
schema: hetc.soc/1
name: 8gen3
pair: [1, 0x10]
any: {a: [1, 2.5, true, null, x], b: 1e3}
processors:
  gpu:
    kind: gpu
    cores: [0, 1]
    memory: 4KiB
    peak_gops: 1_000
    options: {sel: 0, name: "yes"}
    bandwidth_gbps: {value: 51.2, source: table 1}
    flag: true
    note: n
  cpu: {kind: cpu, bandwidth_gbps: 3}
`

func TestGood(t *testing.T) {
	peak := 1000.0
	want := soc{Name: "8gen3", Pair: [2]int{1, 16},
		Any: map[string]any{"a": []any{int64(1), 2.5, true, nil, "x"}, "b": 1000.0},
		Procs: map[string]proc{
			"gpu": {Kind: "gpu", Cores: []int{0, 1}, Memory: 4096, Peak: &peak, Options: map[string]string{"sel": "0", "name": "yes"},
				Bw: sourced{51.2, "table 1"}, Flag: true, common: common{"n"}},
			"cpu": {Kind: "cpu", Bw: sourced{Value: 3}},
		}}
	var got soc
	if err := Bytes("soc.yaml", []byte(good), "hetc.soc/1", &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}

	const js = "{\"schema\": \"hetc.soc/1\",\n\t\"name\": \"8gen3\", \"pair\": [1, 16], \"processors\": {\"cpu\": {\"kind\": \"cpu\"}}}\n"
	got = soc{}
	if err := Bytes("-", []byte(js), "hetc.soc/1", &got); err != nil {
		t.Fatal(err)
	}
	if got.Name != "8gen3" || got.Procs["cpu"].Kind != "cpu" {
		t.Errorf("JSON: got %+v", got)
	}
}

func TestAnchorsAreExpanded(t *testing.T) {
	var got soc
	err := Bytes("f", []byte("processors:\n  a: &x {kind: cpu}\n  b: *x\n"), "", &got)
	if err != nil || got.Procs["b"].Kind != "cpu" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestMistakes gives one bad document per line: the position and words of its error, and its hint.
func TestMistakes(t *testing.T) {
	head := "schema: hetc.soc/1\n"
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	bomb := "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c <= 'i'; c++ {
		bomb += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	tests := []struct{ name, doc, want, hint string }{
		{"unknown key", head + "nmae: x\n", `f:2: decode.unknown-key: unknown key "nmae"`, `did you mean "name"?`},
		{"unknown, nothing near", head + "zzzzzz: x\n", `f:2: decode.unknown-key: unknown key "zzzzzz"`, "want one of any, name, pair, processors"},
		{"unknown inside", head + "processors:\n  gpu:\n    kind: gpu\n    core: [1]\n", `f:5: decode.unknown-key: unknown key "core" in processors.gpu`, `did you mean "cores"?`},
		{"schema inside", head + "processors:\n  gpu: {kind: g, schema: x}\n", `f:3: decode.unknown-key: unknown key "schema" in processors.gpu`, ""},
		{"missing key", head + "processors:\n  gpu: {note: x}\n", `f:3: decode.missing-key: key "kind" is missing in processors.gpu`, ""},
		{"duplicate", head + "name: a\nname: b\n", `f:3: decode.syntax: key "name" appears twice, first in line 2`, "remove one of them"},
		{"no schema", "name: x\n", `f:1: decode.schema: key "schema" is missing, want "hetc.soc/1"`, `add "schema: hetc.soc/1" as the first line if this is such a file`},
		{"other schema", "schema: hetc.plan/1\n", `f:1: decode.schema: schema is "hetc.plan/1", want "hetc.soc/1"`, "this is a plan file, not a soc file"},
		{"misspelt schema", "schema: hetc.sco/1\n", `f:1: decode.schema: schema is "hetc.sco/1", want "hetc.soc/1"`, `did you mean "hetc.soc/1"?`},
		{"newer schema", "schema: hetc.soc/2\n", `f:1: decode.schema: schema is "hetc.soc/2", want "hetc.soc/1"`, "the file is from a newer hetc: update hetc"},
		{"odd version", "schema: hetc.soc/x\n", `f:1: decode.schema: schema is "hetc.soc/x", want "hetc.soc/1"`, "this hetc reads version 1: make the file again"},
		{"schema is a list", "schema: [1]\n", `f:1: decode.schema: schema is a list, want "hetc.soc/1"`, ""},
		{"not a mapping", "- 1\n", `f:1: decode.schema: document is a list, want a mapping with "schema: hetc.soc/1"`, ""},
		{"number for list", head + "processors: {a: {kind: x, cores: 3}}\n", `f:2: decode.type: processors.a.cores is a number 3, want a list`, ""},
		{"text in list", head + "processors:\n  a:\n    kind: x\n    cores: [0, one]\n", `f:5: decode.type: processors.a.cores[1] is a text "one", want a whole number of at most 64 bits`, ""},
		{"fraction", head + "pair: [1, 1.5]\n", `f:2: decode.type: pair[1] is a number 1.5, want a whole number of at most 64 bits`, ""},
		{"octal", head + "pair: [1, 010]\n", `f:2: decode.type: pair[1] is a number 010, want a whole number of at most 64 bits`, ""},
		{"short array", head + "pair: [1]\n", `f:2: decode.type: pair is a list, want a list of 2`, ""},
		{"overflow", head + "processors: {a: {kind: x, small: 256}}\n", `f:2: decode.type: processors.a.small is a number 256, want a whole number from 0 of at most 8 bits`, ""},
		{"negative", head + "processors: {a: {kind: x, small: -1}}\n", `f:2: decode.type: processors.a.small is a number -1, want a whole number from 0 of at most 8 bits`, ""},
		{"NaN", head + "processors: {a: {kind: x, peak_gops: .nan}}\n", `f:2: decode.type: processors.a.peak_gops is a number .nan, want a finite number`, ""},
		{"infinity", head + "processors: {a: {kind: x, peak_gops: .inf}}\n", `f:2: decode.type: processors.a.peak_gops is a number .inf, want a finite number`, ""},
		{"huge number", head + "processors: {a: {kind: x, peak_gops: 1e999}}\n", `f:2: decode.type: processors.a.peak_gops is a`, ""},
		{"truth for text", head + "name: true\n", `f:2: decode.type: name is a truth value true, want text`, "put it in quotes"},
		{"nothing for text", head + "name:\n", `f:2: decode.type: name is empty, want text`, ""},
		{"text for truth", head + "processors: {a: {kind: x, flag: yes}}\n", `f:2: decode.type: processors.a.flag is a text "yes", want true or false`, ""},
		{"own text type", head + "processors: {a: {kind: x, memory: 4 MiB}}\n", `f:2: decode.value: processors.a.memory: size "4 MiB", want like 4KiB`, ""},
		{"own text type, list", head + "processors: {a: {kind: x, memory: [4]}}\n", `f:2: decode.type: processors.a.memory is a list, want a single value`, ""},
		{"own node type", head + "processors:\n  a:\n    kind: x\n    bandwidth_gbps: {value: 1}\n", `f:5: decode.value: value without a source`, ""},
		{"own node type, inside", head + "processors:\n  a:\n    kind: x\n    bandwidth_gbps: {valu: 1}\n", `f:5: decode.unknown-key: unknown key "valu"`, `did you mean "value"?`},
		{"empty", "", "f:1: decode.syntax: document is empty", ""},
		{"comment only", "# x\n", "f:1: decode.syntax: document is empty", ""},
		{"two documents", head + "---\nname: x\n", "f:3: decode.syntax: more than one document", "keep one document per file"},
		{"bad indent", head + "a:\n  b: 1\n c: 2\n", "f:3: decode.syntax: not valid YAML: did not find expected key", ""},
		{"tab", head + "a:\n\tb: 1\n", "decode.syntax: not valid YAML: found character that cannot start any token", ""},
		{"unterminated", head + "a: [1, 2\n", "decode.syntax: not valid YAML:", ""},
		{"merge", "a: &x {b: 1}\nc:\n  <<: *x\n", "f:3: decode.syntax: merge keys (<<) are not supported", "write the keys out"},
		{"tag", "a: !!binary aGk=\n", `f:1: decode.syntax: tag "!!binary" is not supported`, ""},
		{"own tag", "a: !x {b: 1}\n", `f:1: decode.syntax: tag "!x" is not supported`, ""},
		{"list as key", "? [a, b]\n: 1\n", `f:1: decode.syntax: a key must be a word, got a list`, ""},
		{"cycle", "a: &a [*a]\n", `f:1: decode.syntax: alias "a" contains itself`, ""},
		{"deep", "a: " + deep, "f:1: decode.syntax: nested deeper than 64 levels", ""},
		{"deep JSON", `{"a": ` + deep + "}", "f:1: decode.syntax: nested deeper than 64 levels", ""},
		{"alias bomb", bomb, "decode.syntax: more than 1048576 values", ""},
		{"not UTF-8", "a: 1\nb: \xff\n", "f:2: decode.syntax: not valid UTF-8", ""},
		{"a bundle", "\x89HETB\r\n\x1a\x01", `f:1: decode.syntax: document is a bundle, want YAML or JSON`, "give the file that the bundle was made from; hetc inspect shows what a bundle holds"},
		{"a public key", "-----BEGIN PUBLIC KEY-----\nMCow\n", `f:1: decode.syntax: document is a public key or certificate, want YAML or JSON`, "keys go with --key (NAME.key) and --trust (NAME.pub)"},
		{"JSON duplicate", "{\"name\": \"a\",\n\"name\": \"b\"}", `f:2: decode.syntax: key "name" appears twice, first in line 1`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var v soc
			err := Bytes("f", []byte(tt.doc), "hetc.soc/1", &v)
			if err == nil {
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %s\nwant %s", err, tt.want)
			}
			if got := strings.Join(diag.HintsOf(err), "|"); tt.hint != "" && got != tt.hint {
				t.Errorf("hint %q, want %q", got, tt.hint)
			}
			if c := diag.ClassOf(err); c != diag.ClassInput {
				t.Errorf("class %d, want %d", c, diag.ClassInput)
			}
		})
	}
}

// A private key that is given in place of another file appears in no message.
func TestPrivateKeysAreNotQuoted(t *testing.T) {
	for _, label := range []string{"PRIVATE KEY", "EC PRIVATE KEY", "HETC DEV PRIVATE KEY"} {
		for _, name := range []string{"f", "f.json"} {
			text := "-----BEGIN " + label + "-----\nSECRET\n-----END " + label + "-----\n"
			var v soc
			err := Bytes(name, []byte(text), "hetc.soc/1", &v)
			if want := name + ":1: decode.syntax: document is a private key, want YAML or JSON"; err == nil || err.Error() != want {
				t.Errorf("%s: got %v, want %s", label, err, want)
			}
		}
	}
}

func TestBadJSONHasALine(t *testing.T) {
	err := Bytes("x.json", []byte("{\"a\": 1,\n\"b\": }\n"), "", &map[string]any{})
	if err == nil || !strings.Contains(err.Error(), "x.json:2: decode.syntax: not valid JSON: invalid character") {
		t.Errorf("got %v", err)
	}
}

func TestEveryMistakeIsReported(t *testing.T) {
	doc := "schema: hetc.soc/1\nname: [x]\npair: 3\nbad: 1\n"
	var v soc
	err := Bytes("f", []byte(doc), "hetc.soc/1", &v)
	var l diag.List
	if !errors.As(err, &l) || len(l) != 3 {
		t.Fatalf("got %v, want three diagnostics", err)
	}
	many := "schema: hetc.soc/1\n"
	for i := range 1000 {
		many += fmt.Sprintf("bad%d: 1\n", i)
	}
	err = Bytes("f", []byte(many), "hetc.soc/1", &v)
	if !errors.As(err, &l) || len(l) != maxErrors {
		t.Errorf("got %d diagnostics, want %d", len(l), maxErrors)
	}
}

func TestAt(t *testing.T) {
	d, err := Parse("f", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path []any
		want string
	}{
		{nil, "f:2"},
		{[]any{"name"}, "f:3"},
		{[]any{"processors", "gpu"}, "f:7"},
		{[]any{"processors", "gpu", "cores", 1}, "f:9"},
		{[]any{"processors", "gpu", "nothing", "here"}, "f:7"},
	} {
		if got := d.At(tt.path...); got != tt.want {
			t.Errorf("At(%v) = %s, want %s", tt.path, got, tt.want)
		}
	}
	if d.Schema() != "hetc.soc/1" {
		t.Errorf("schema %q", d.Schema())
	}
}

func TestParseJSONCountsFromTheGivenLine(t *testing.T) {
	d, err := ParseJSON("r.jsonl", 17, []byte(`{"zzz": 1}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseJSON("r", 3, []byte("a: 1")); err == nil {
		t.Error("YAML is accepted as JSON")
	}
	if err := d.Into("", &common{}); err == nil || !strings.HasPrefix(err.Error(), "r.jsonl:17: ") {
		t.Errorf("got %v", err)
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	err := File(filepath.Join(dir, "none.yaml"), "", &common{})
	if !errors.Is(err, os.ErrNotExist) || diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("missing file: %v, class %d", err, diag.ClassOf(err))
	}
	err = File(dir, "", &common{})
	if err == nil || diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("directory: %v, class %d", err, diag.ClassOf(err))
	}
	big := filepath.Join(dir, "big.yaml")
	if err := os.WriteFile(big, make([]byte, maxBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := File(big, "", &common{}); err == nil || !strings.Contains(err.Error(), "larger than 16 MiB") {
		t.Errorf("large file: %v", err)
	}
}

type written struct {
	Name   string             `yaml:"name"`
	Rate   float64            `yaml:"rate"`
	Cores  []int              `yaml:"cores,omitempty"`
	Nested []map[string]int64 `yaml:"nested,omitempty"`
	Map    map[string]float64 `yaml:"map,omitempty"`
	Texts  []string           `yaml:"texts,omitempty"`
}

func TestWrite(t *testing.T) {
	b, err := YAML(written{Name: "yes", Rate: 4.2e9, Cores: []int{0, 1}, Nested: []map[string]int64{{"b": 1, "a": 2}}, Map: map[string]float64{"z": 1e-9, "y": 1e300}, Texts: []string{"a: b"}})
	if err != nil {
		t.Fatal(err)
	}
	want := "name: \"yes\"\nrate: 4200000000\ncores: [0, 1]\nnested:\n  - a: 2\n    b: 1\nmap:\n  \"y\": 1e+300\n  z: 1e-09\ntexts: ['a: b']\n"
	if string(b) != want {
		t.Errorf("got\n%s\nwant\n%s", b, want)
	}
	nan := 0.0
	if _, err := YAML(written{Rate: nan / nan}); err == nil || !strings.Contains(err.Error(), "rate is nan, want a finite number") {
		t.Errorf("NaN: %v", err)
	}
}

// TestWrittenIsReadBack writes random values and reads them again.
func TestWrittenIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := written{
			Name:  rapid.String().Filter(func(s string) bool { return !strings.ContainsRune(s, 0xFFFD) }).Draw(t, "name"),
			Rate:  rapid.Float64().Draw(t, "rate"),
			Cores: rapid.SliceOf(rapid.Int()).Draw(t, "cores"),
			Texts: rapid.SliceOf(rapid.StringMatching(`[ -~]{0,50}`)).Draw(t, "texts"),
			Map:   rapid.MapOf(rapid.StringMatching(`[ -~]{0,10}`), rapid.Float64()).Draw(t, "map"),
		}
		b, err := YAML(v)
		if err != nil {
			t.Fatal(err)
		}
		var got written
		if err := Bytes("f", b, "", &got); err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		if len(v.Cores) == 0 {
			v.Cores, got.Cores = nil, nil
		}
		if len(v.Texts) == 0 {
			v.Texts, got.Texts = nil, nil
		}
		if len(v.Map) == 0 {
			v.Map, got.Map = nil, nil
		}
		if !reflect.DeepEqual(got, v) {
			t.Fatalf("got %+v\nwant %+v\n%s", got, v, b)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Add([]byte(`{"a": [1, 2.5e3, "x", null, true], "b": {"c": -1}}`))
	f.Add([]byte("a: &x [1]\nb: *x\n? c\n: |\n  text\n"))
	f.Add([]byte("--- !!map {a: 'x', \"b\": 2020-01-01}\n...\n"))
	f.Add([]byte("\xef\xbb\xbfa: 1"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Parse("f", b)
		if err != nil {
			if diag.ClassOf(err) != diag.ClassInput {
				t.Fatalf("class %d: %v", diag.ClassOf(err), err)
			}
			return
		}
		var s soc
		_ = d.Into("hetc.soc/1", &s)
		var v any
		if d.Into("", &v) != nil {
			return
		}
		text, err := YAML(v)
		if err != nil {
			t.Fatalf("accepted but not writable: %v", err)
		}
		var again any
		if err := Bytes("again", text, "", &again); err != nil {
			t.Fatalf("written but not readable: %v\n%s", err, text)
		}
		// A whole float reads back as an integer, so texts are compared.
		if twice, err := YAML(again); err != nil || string(twice) != string(text) {
			t.Fatalf("got  %s\nwant %s\n%v", twice, text, err)
		}
	})
}
