package gguf

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/wholefile"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/tokenizer"
)

var tokenizers = []string{"gpt2", "llama3", "qwen2", "sentencepiece"}

func readJSON(t *testing.T, data []byte) any {
	t.Helper()
	var value any
	if err := json.Unmarshal(data, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// reference is what the tokenizers of testdata make of texts.
type reference struct {
	Texts   []string
	IDs     map[string][][]int32
	Decoded map[string][]*string // null: the text itself
}

func readReference(t *testing.T) reference {
	t.Helper()
	var want reference
	if err := json.Unmarshal(readFile(t, "testdata/ids.json"), &want); err != nil {
		t.Fatal(err)
	}
	if len(want.Texts) < 100 {
		t.Fatalf("%d texts, want 100", len(want.Texts))
	}
	return want
}

func checkIDs(t *testing.T, r reference, name string, tok, config []byte) {
	t.Helper()
	made, err := tokenizer.New(tok, config, -1)
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range r.Texts {
		ids, err := made.Encode(text)
		if err != nil || !slices.Equal(ids, r.IDs[name][i]) {
			t.Errorf("%q: got ids %v (%v), want %v", text, ids, err, r.IDs[name][i])
		}
		want := text
		if r.Decoded[name][i] != nil {
			want = *r.Decoded[name][i]
		}
		if got := made.DecodeSpecial(r.IDs[name][i]); got != want {
			t.Errorf("%q: decoded %q, want %q", text, got, want)
		}
	}
}

// A tokenizer taken from a file is the one that was put in, part by part, and gives its ids.
func TestTokenizersAreTheOriginals(t *testing.T) {
	reference := readReference(t)
	for _, name := range tokenizers {
		t.Run(name, func(t *testing.T) {
			f := open(t, "testdata/"+name+".gguf")
			tok, config, err := f.Tokenizer()
			if err != nil {
				t.Fatal(err)
			}
			got, want := readJSON(t, tok).(object), readJSON(t, readFile(t, "testdata/"+name+".json")).(object)
			for key := range want {
				if !reflect.DeepEqual(got[key], want[key]) {
					t.Errorf("%s: got %.300v\nwant %.300v", key, got[key], want[key])
				}
			}
			checkIDs(t, reference, name, tok, config)
		})
	}
	_, config, err := open(t, "testdata/llama3.gguf").Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(
		string(config)); got != `{"add_bos_token":true,"bos_token":"<|begin_of_text|>","chat_template":"{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",`+
		`"clean_up_tokenization_spaces":false,"eos_token":"<|eot_id|>","tokenizer_class":"PreTrainedTokenizerFast"}` {
		t.Errorf("got %s", got)
	}
}

// A tokenizer that is exported and read again gives the same ids; so does one without scores, whose
// merges then count in the order of the ids.
func TestTokenizersRoundTrip(t *testing.T) {
	reference := readReference(t)
	for _, name := range tokenizers {
		t.Run(name, func(t *testing.T) {
			original := readFile(t, "testdata/"+name+".json")
			end := map[string]string{"sentencepiece": "</s>", "llama3": "<|eot_id|>"}[name]
			config := []byte(`{"add_eos_token":` + fmt.Sprint(end != "") + `,"eos_token":{"content":"` + end + `"},
				"chat_template":[{"name":"default","template":"A"},{"name":"tools","template":"B"}]}`)
			file := exportedTokenizer(t, original, config, 1000)
			tok, got, err := file.Tokenizer()
			if err != nil {
				t.Fatal(err)
			}
			checkIDs(t, reference, name, tok, got)
			c := readJSON(t, got).(object)
			if fmt.Sprint(c["chat_template"]) != "[map[name:default template:A] map[name:tools template:B]]" {
				t.Errorf("got templates %v", c["chat_template"])
			}
			if _, ok := file.Value("tokenizer.ggml.merges"); ok != (name != "sentencepiece") {
				t.Errorf("merges are stored: %v", ok)
			}
			if n, _ := file.Value("tokenizer.ggml.tokens"); len(n.([]string)) != 1000 {
				t.Errorf("got %d tokens, want as many as the embedding has rows", len(n.([]string)))
			}
		})
	}
}

// exportedTokenizer is a file that holds a tokenizer for a vocabulary of size tokens and nothing else.
func exportedTokenizer(t *testing.T, tok, config []byte, size int, more ...keyValue) *File {
	t.Helper()
	v, err := exportVocab(tok, config, size)
	if err != nil {
		t.Fatal(err)
	}
	templates, err := exportTemplates(&Directory{TokenizerConfig: config})
	if err != nil {
		t.Fatal(err)
	}
	meta := slices.Concat(v.metadata(), templates, more)
	for _, test := range []struct {
		key string
		id  int
	}{{"tokenizer.ggml.bos_token_id", v.bos}, {"tokenizer.ggml.eos_token_id", v.eos}} {
		if test.id >= 0 {
			meta = append(meta, keyValue{test.key, uint32(test.id)})
		}
	}
	return written(t, func(w io.Writer) error { return writeFile(context.Background(), w, meta, nil) })
}

// A whole model carries its tokenizer, and the configuration's tokens win.
func TestExportedModelHasItsTokenizer(t *testing.T) {
	d := directory(&architectures[0])
	d.Tokenizer, d.TokenizerConfig, d.ChatTemplate = readFile(t, "testdata/llama3.json"),
		[]byte(`{"bos_token":"<|begin_of_text|>","chat_template":"other"}`), "T"
	tensors := d.Tensor
	d.Config["vocab_size"] = int64(322)
	d.Tensor = func(name string) (Matrix, error) {
		if name == "model.embed_tokens.weight" || name == "lm_head.weight" {
			return rows{[]int{322, tHidden}, make([]float32, 322*tHidden)}, nil
		}
		return tensors(name)
	}
	file := written(t, func(w io.Writer) error { return Export(context.Background(), w, d, op.F16) })
	tok, config, err := file.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	checkIDs(t, readReference(t), "llama3", tok, config)
	c := readJSON(t, config).(object)
	if c["chat_template"] != "T" || c["add_bos_token"] != true {
		t.Errorf("got %v", c)
	}
	if bos, _ := file.integer("tokenizer.ggml.bos_token_id"); bos != 1 {
		t.Errorf("got begin token %d, want the configuration's 1", bos)
	}
	d.Config["vocab_size"] = int64(100)
	if err := Export(context.Background(), io.Discard, d, op.F16); err == nil ||
		!strings.Contains(err.Error(), "but the model has 100") {
		t.Errorf("a vocabulary that is too small: got %v", err)
	}
}

// Merges that do not follow from scores travel with the file.
func TestUnusualMergesAreKept(t *testing.T) {
	doc := readJSON(t, readFile(t, "testdata/sentencepiece.json")).(object)
	model := doc["model"].(object)
	merges := model["merges"].([]any)
	slices.Reverse(merges)
	tok, err := marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	f := exportedTokenizer(t, tok, nil, 420)
	again, _, err := f.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	if got := readJSON(t, again).(object)["model"].(object)["merges"]; !reflect.DeepEqual(got, any(merges)) {
		t.Error("other merges")
	}
}

func TestDerivedMerges(t *testing.T) {
	tokens := []string{"<s>", "a", "b", "c", "ab", "bc", "abc", "<pad>", "é", "éa"}
	types := []int{tokenControl, 1, 1, 1, 1, 1, 1, tokenUnused, 1, 1}
	for name, test := range map[string]struct {
		scores []float32
		want   string
	}{
		"scores":    {[]float32{0, -9, -9, -9, -2, -1, -3, 0, -9, -4}, "[[b c] [a b] [ab c] [a bc] [é a]]"},
		"no scores": {nil, "[[a b] [b c] [a bc] [ab c] [é a]]"},
		"all alike": {slices.Repeat([]float32{-1000}, 10), "[[a b] [b c] [a bc] [ab c] [é a]]"},
		"a tie":     {[]float32{0, -9, -9, -9, -1, -1, -3, 0, -9, -1}, "[[a b] [b c] [é a] [ab c] [a bc]]"},
	} {
		got, err := derivedMerges(tokens, types, test.scores)
		if err != nil || fmt.Sprint(got) != test.want {
			t.Errorf("%s: got %v, %v, want %s", name, got, err, test.want)
		}
	}
	long := strings.Repeat("x", maxTokenBytes)
	many := slices.Repeat([]string{long}, 1+maxMergeWork/maxTokenBytes/maxTokenBytes)
	var ladder []string // every prefix of a run is a token, so every cut of every one is a merge
	for n := range 1500 {
		ladder = append(ladder, strings.Repeat("x", n+1))
	}
	if _, err := derivedMerges(ladder, slices.Repeat([]int{tokenNormal}, len(ladder)),
		nil); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("a million merges of %d tokens: got %v", len(ladder), err)
	}
	if _, err := derivedMerges(many, slices.Repeat([]int{tokenNormal}, len(many)),
		nil); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("%d tokens of %d bytes: got %v", len(many), len(long), err)
	}
}

func TestTokenizersThatAreNotSupportedAreRefused(t *testing.T) {
	const p = "tokenizer.ggml."
	write := func(name string, change func(map[string]any)) (*File, string) {
		from := open(t, "testdata/"+name+".gguf")
		values := map[string]any{}
		for _, k := range from.Keys() {
			values[k], _ = from.Value(k)
		}
		change(values)
		var meta []keyValue
		for _, k := range append(from.Keys(), p+"more") {
			if v, ok := values[k]; ok {
				meta = append(meta, keyValue{k, v})
			}
		}
		path := filepath.Join(t.TempDir(), "x.gguf")
		if err := wholefile.Stream(path,
			func(w io.Writer) error { return writeFile(context.Background(), w, meta, nil) }); err != nil {
			t.Fatal(err)
		}
		return open(t, path), path
	}
	set := func(key string, value any) func(map[string]any) {
		return func(m map[string]any) {
			if value == nil {
				delete(m, p+key)
			} else {
				m[p+key] = value
			}
		}
	}
	for name, test := range map[string]struct {
		from   string
		change func(map[string]any)
		want   string
	}{
		"unigram": {"gpt2", set("model", "t5"),
			`"tokenizer.ggml.model": "t5" (Unigram) is not supported; supported: gpt2 (byte-level BPE), llama (SentencePiece BPE)`},
		"wordpiece": {"gpt2", set("model", "bert"), "(WordPiece) is not supported"},
		"rwkv":      {"gpt2", set("model", "rwkv"), "(RWKV) is not supported"},
		"another":   {"gpt2", set("model", "plamo2"), `"plamo2" is not supported`},
		"splitting": {"gpt2", set("pre", "deepseek-coder"),
			`"tokenizer.ggml.pre": "deepseek-coder" is not supported; supported: gpt-2, phi-2, olmo`},
		"no splitting": {"gpt2", set("pre", nil), `"tokenizer.ggml.pre": missing`},
		"default":      {"gpt2", set("pre", "default"), `"tokenizer.ggml.pre": missing`},
		"no merges":    {"gpt2", set("merges", nil), `"tokenizer.ggml.merges": missing`},
		"a merge":      {"gpt2", set("merges", []string{"ab"}), `merge 0 is "ab", want two tokens`},
		"half a merge": {"gpt2", set("merges", []string{"a "}), `merge 0 is "a "`},
		"foreign merge": {"gpt2", set("merges", []string{"a 東京"}),
			`merge 0: "a", "東京" or both together are no token`},
		"merged to none": {"gpt2", set("merges", []string{"q z"}), `merge 0: "q", "z" or both together are no token`},
		"merges":         {"gpt2", set("merges", []int32{1}), "want a list of at most 1048576 strings"},
		"no tokens":      {"gpt2", set("tokens", nil), `"tokenizer.ggml.tokens": got <nil>`},
		"token numbers":  {"gpt2", set("tokens", []int32{1}), `"tokenizer.ggml.tokens": got [1]`},
		"no token":       {"gpt2", set("tokens", []string{}), "want a list of 1 to"},
		"types":          {"gpt2", set("token_type", []int32{1}), "got 1 integers, want 306"},
		"text types":     {"gpt2", set("token_type", []string{"a"}), "got 0 integers, want 306"},
		"a token twice": {"gpt2", func(m map[string]any) { l := m[p+"tokens"].([]string); l[5] = l[4] },
			"tokens 4 and 5 are both"},
		"token not UTF-8": {"gpt2", func(m map[string]any) { m[p+"tokens"].([]string)[5] = "\xff" },
			"token 5: 1 bytes, want valid UTF-8"},
		"long token": {"gpt2",
			func(m map[string]any) { m[p+"tokens"].([]string)[5] = strings.Repeat("x", maxTokenBytes+1) },
			"token 5: 4097 bytes"},
		"long special": {"gpt2", func(m map[string]any) { m[p+"tokens"].([]string)[300] = strings.Repeat("x", 300) },
			"recognised in text and has 300 bytes"},
		"template": {"gpt2", func(m map[string]any) { m["tokenizer.chat_template"] = "\xff" },
			`"tokenizer.chat_template": want a text`},
		"control codes": {"gpt2", func(m map[string]any) {
			for i := range 2500 {
				m[p+"tokens"] = append(m[p+"tokens"].([]string), fmt.Sprint(i)+strings.Repeat("\x01", maxTokenBytes-8))
			}
			m[p+"token_type"] = slices.Repeat([]int32{1}, 306+2500)
		}, "bytes in a tokenizer.json, want at most"},
		"scores":      {"sentencepiece", set("scores", []float32{1}), "got 1 scores, want 420"},
		"text scores": {"sentencepiece", set("scores", []string{"a"}), "want a list of numbers"},
		"NaN scores": {"sentencepiece", func(m map[string]any) { l := m[p+"scores"].([]float32); l[9] = l[9] / 0 * 0 },
			"score 9 is not a number"},
		"byte's name": {"sentencepiece", func(m map[string]any) { m[p+"token_type"].([]int32)[300] = tokenByte },
			"token 300 is a byte, but named"},
	} {
		f, _ := write(test.from, test.change)
		_, _, err := f.Tokenizer()
		if err == nil || !strings.Contains(err.Error(), test.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v\nwant %q", name, err, test.want)
		}
	}
	// What a file leaves out is assumed as other readers do.
	file, _ := write("sentencepiece", func(m map[string]any) {
		for _, k := range []string{"token_type", "bos_token_id", "eos_token_id", "unknown_token_id"} {
			delete(m, p+k)
		}
	})
	tok, config, err := file.Tokenizer()
	if err != nil {
		t.Fatal(err)
	}
	if c := readJSON(t, config).(object); c["bos_token"] != "<s>" || c["eos_token"] != "</s>" ||
		c["unk_token"] != "<unk>" || c["add_bos_token"] != true {
		t.Errorf("got %v", c)
	}
	if n := len(readJSON(t, tok).(object)["added_tokens"].([]any)); n != 3 {
		t.Errorf("%d added tokens, want 3", n)
	}
	file, _ = write("gpt2", func(m map[string]any) {
		m[p+"tokens"].([]string)[7] = ""
		delete(m, "tokenizer.chat_template")
		m[p+"add_space_prefix"] = true
	})
	if tok, config, err := file.Tokenizer(); err != nil || !strings.Contains(string(tok), "[EMPTY_7]") ||
		strings.Contains(string(config), "chat_template") {
		t.Errorf("an empty token: %v", err)
	}
}

func TestExportRefusesTokenizersWithoutAForm(t *testing.T) {
	change := func(name string, edit func(doc object)) []byte {
		doc := readJSON(t, readFile(t, "testdata/"+name+".json")).(object)
		edit(doc)
		data, err := marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	part := func(key string, v any) func(object) { return func(doc object) { doc[key] = v } }
	model := func(key string, v any) func(object) { return func(doc object) { doc["model"].(object)[key] = v } }
	added := func(key string, v any) func(object) {
		return func(doc object) { doc["added_tokens"].([]any)[0].(object)[key] = v }
	}
	split := func(regex, behavior string) object {
		return sequence("pretokenizers", object{"type": "Split", "pattern": object{"Regex": regex},
			"behavior": behavior, "invert": false}, byteLevel(false, true, false))
	}
	prepend := object{"type": "Prepend", "prepend": "▁"}
	metaspace := func(scheme string) func(object) {
		return func(doc object) {
			doc["normalizer"] = nil
			doc["pre_tokenizer"] = object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme,
				"split": false}
		}
	}
	for name, test := range map[string]struct {
		tok  []byte
		want string
	}{
		"kind":    {change("gpt2", model("type", "WordPiece")), `model: "WordPiece" is not supported`},
		"dropout": {change("gpt2", model("dropout", 0.1)), "dropout"},
		"prefix":  {change("gpt2", model("continuing_subword_prefix", "##")), "prefixes"},
		"normalizer": {change("gpt2", part("normalizer", object{"type": "Lowercase"})),
			"normalizer: Lowercase is not supported"},
		"pattern": {change("gpt2", part("pre_tokenizer", split("x+", "Isolated"))),
			"has no name in GGUF; those that have: gpt-2"},
		"behaviour": {change("gpt2", part("pre_tokenizer", split(patternGPT2, "Removed"))),
			"this sequence of 2 steps is not supported"},
		"no regex":     {change("gpt2", part("pre_tokenizer", split("", "Isolated"))), "without a regular expression"},
		"whole words":  {change("llama3", model("ignore_merges", true)), ""},
		"NFC in Llama": {change("llama3", part("normalizer", object{"type": "NFC"})), "has no name in GGUF"},
		"metaspace": {change("sentencepiece", part("pre_tokenizer", object{"type": "Metaspace", "replacement": "▁",
			"split": true})), "Metaspace is not supported; supported: ByteLevel, Metaspace without split"},
		"first blank": {change("sentencepiece", metaspace("first")), `prepend_scheme "first" is not supported`},
		"one blank":   {change("sentencepiece", metaspace("always")), `prepend_scheme "always" is not supported`},
		"two blanks": {change("sentencepiece",
			part("normalizer", object{"type": "Sequence", "normalizers": []any{prepend, prepend}})),
			"Prepend is not supported"},
		"whole texts": {change("sentencepiece", model("ignore_merges", true)),
			"ignore_merges is not supported of SentencePiece"},
		"no fallback": {change("sentencepiece", model("byte_fallback", false)),
			"neither byte-level nor SentencePiece"},
		"lstrip": {change("gpt2", added("lstrip", true)),
			`token "<|endoftext|>": single_word, lstrip and rstrip`},
		"id outside":  {change("gpt2", added("id", 5000)), "token 5000, but the model has 1000"},
		"id taken":    {change("gpt2", added("id", 5)), "token 5 is both"},
		"blank merge": {change("gpt2", model("merges", []any{[]any{"a b", "c"}})), "contains a blank"},
		"merge":       {change("gpt2", model("merges", []any{[]any{"a"}})), "merges: got 1 parts"},
		"post": {change("gpt2", part("post_processor", object{"type": "RobertaProcessing"})),
			"RobertaProcessing is not supported"},
		"foreign token": {change("llama3", func(doc object) {
			doc["post_processor"] = object{"type": "TemplateProcessing",
				"single": []any{object{"SpecialToken": object{"id": "no such"}}, object{"Sequence": object{"id": "A"}}}}
		}), "other tokens than the begin and the end token"},
		"not JSON": {[]byte("{"), "tokenizer.json:"},
	} {
		_, err := exportVocab(test.tok, nil, 1000)
		if test.want == "" && err == nil {
			continue
		}
		if err == nil || !strings.Contains(err.Error(), test.want) || diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("%s: got %v\nwant %q", name, err, test.want)
		}
	}
	for _, config := range []string{"{", `{"chat_template":1}`} {
		_, err := exportVocab(readFile(t, "testdata/gpt2.json"), []byte(config), 1000)
		if err == nil {
			_, err = exportTemplates(&Directory{TokenizerConfig: []byte(config)})
		}
		if diag.ClassOf(err) != diag.ClassInput {
			t.Errorf("tokenizer_config.json %s: got %v", config, err)
		}
	}
	// Forms that mean the same as another.
	for name, tok := range map[string][]byte{
		"original":   readFile(t, "testdata/gpt2.json"),
		"as a Split": change("gpt2", part("pre_tokenizer", split(patternGPT2, "Isolated"))),
	} {
		v, err := exportVocab(tok, nil, 1000)
		if err != nil || v.split != &splittings[0] {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, edit := range map[string]func(object){
		"Metaspace behind a Prepend": func(doc object) {
			doc["pre_tokenizer"] = object{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
				"split": false}
		},
		"blanks split": func(doc object) {
			doc["pre_tokenizer"] = object{"type": "Split", "pattern": object{"String": " "},
				"behavior": "MergedWithPrevious"}
		},
		"old merges": func(doc object) {
			m := doc["model"].(object)
			for i, p := range m["merges"].([]any) {
				m["merges"].([]any)[i] = fmt.Sprint(p.([]any)[0], " ", p.([]any)[1])
			}
		},
	} {
		v, err := exportVocab(change("sentencepiece", edit), nil, 420)
		if err != nil || v.split != nil || !v.prefix || v.merges != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, edit := range map[string]func(object){
		"Replace":   part("normalizer", object{"type": "Replace", "pattern": object{"String": " "}, "content": "▁"}),
		"Metaspace": metaspace("never"),
	} {
		bare, err := exportVocab(change("sentencepiece", edit), nil, 420)
		if err != nil || bare.prefix {
			t.Errorf("%s without a prefix: %v", name, err)
		}
	}
}
