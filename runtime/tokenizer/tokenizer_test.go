package tokenizer

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/hetc/hetc/internal/require"

	"pgregory.net/rapid"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/models/safetensors"
)

const tinyDir = "../../testdata/models/tiny-llama-kjv"

// read is a file of the demo model.
func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(tinyDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// tiny is the demo model's tokenizer.
func tiny(t testing.TB) Tokenizer {
	t.Helper()
	tok, err := New(read(t, "tokenizer.json"), read(t, "tokenizer_config.json"), 1)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// vectors are what PyPI tokenizers makes of the same tokenizer.json.
type vectors struct {
	Valid struct {
		IDs    int    `json:"ids"`
		SHA256 string `json:"sha256"`
	} `json:"valid.txt"`
	Vectors []struct {
		Text    string  `json:"text"`
		IDs     []int32 `json:"ids"`
		Decoded string  `json:"decoded"`
		Plain   string  `json:"decoded_without_special"`
	} `json:"vectors"`
}

// The demo tokenizer gives the ids and the texts that PyPI tokenizers gives.
func TestVectors(t *testing.T) {
	tok := tiny(t)
	var v vectors
	if err := json.Unmarshal(read(t, "tokenizer_vectors.json"), &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Vectors) < 60 {
		t.Fatalf("got %d vectors", len(v.Vectors))
	}
	for _, c := range v.Vectors {
		ids, err := tok.Encode(c.Text)
		if err != nil || !slices.Equal(ids, c.IDs) {
			t.Errorf("%q:\n got %v, %v\nwant %v", c.Text, ids, err, c.IDs)
		}
		if got := tok.DecodeSpecial(c.IDs); got != c.Decoded {
			t.Errorf("%v: got %q, want %q", c.IDs, got, c.Decoded)
		}
		if got := tok.Decode(c.IDs); got != c.Plain {
			t.Errorf("%v without special tokens: got %q, want %q", c.IDs, got, c.Plain)
		}
	}

	ids, err := tok.Encode(string(read(t, "valid.txt")))
	if err != nil {
		t.Fatal(err)
	}
	h := sha256.New()
	if err := binary.Write(h, binary.LittleEndian, ids); err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(h.Sum(nil)); len(ids) != v.Valid.IDs || got != v.Valid.SHA256 {
		t.Errorf("valid.txt: got %d ids with digest %s, want %d with %s", len(ids), got, v.Valid.IDs, v.Valid.SHA256)
	}
	if tok.Decode(ids) != string(read(t, "valid.txt")) {
		t.Error("valid.txt does not survive")
	}
}

// The prompts of the stored logits have the ids that were stored with them, begin token included.
func TestPromptsOfTheReference(t *testing.T) {
	tok := tiny(t)
	ref, err := safetensors.Open(filepath.Join(tinyDir, "reference.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Close()
	for i, text := range []string{
		"In the beginning God created",
		"And Moses said unto the children of Israel,",
		"Blessed are they that mourn: for they shall be",
		string(read(t, "valid.txt")),
	} {
		x, ok := ref.Tensor(fmt.Sprintf("ids_%d", i))
		if !ok {
			t.Fatal("no ids")
		}
		want := make([]int32, len(x.Data)/4)
		for j := range want {
			want[j] = int32(binary.LittleEndian.Uint32(x.Data[4*j:]))
		}

		got, err := tok.Prompt(text)

		if err != nil || !slices.Equal(got[:min(len(got), len(want))], want) {
			t.Errorf("prompt %d: got %v, %v, want %v", i, got[:min(len(got), 20)], err, want)
		}
	}
	if got := tok.Special(); !slices.Equal(got, []int32{0, 1, 2}) || tok.VocabSize() != 2048 {
		t.Errorf("special %v, size %d", got, tok.VocabSize())
	}
}

// edit changes one part of the demo tokenizer; path is the keys down to it.
func edit(t testing.TB, value any, path ...string) []byte {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal(read(t, "tokenizer.json"), &doc); err != nil {
		t.Fatal(err)
	}
	at := doc
	for _, key := range path[:len(path)-1] {
		at = at[key].(map[string]any)
	}
	at[path[len(path)-1]] = value
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// object is a part of a tokenizer.json.
func object(text string) json.RawMessage { return json.RawMessage(text) }

// templateForm is a template with a token, whose ids are to be filled in, in front of the text, and more behind it.
const templateForm = `{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},` +
	`{"Sequence":{"id":"A","type_id":0}}%s],"pair":[],` +
	`"special_tokens":{"<s>":{"id":"<s>","ids":[%s],"tokens":["<s>"]}}}`

// template puts tokens in front of a text.
func template(ids string) json.RawMessage { return object(fmt.Sprintf(templateForm, "", ids)) }

// around puts tokens in front of a text and behind it.
func around(ids string) json.RawMessage {
	return object(fmt.Sprintf(templateForm, `,{"SpecialToken":{"id":"<s>","type_id":0}}`, ids))
}

// sequence is a post-processor of several steps.
func sequence(steps ...json.RawMessage) json.RawMessage {
	return object(fmt.Sprintf(`{"type":"Sequence","processors":[%s]}`, bytes.Join(rawTexts(steps), []byte(","))))
}

// rawTexts are parts as bytes.
func rawTexts(parts []json.RawMessage) (out [][]byte) {
	for _, part := range parts {
		out = append(out, part)
	}
	return out
}

// Which tokens begin and end a text is said by the post-processor, else by the configuration, else by the model.
func TestWhichTokensBeginAndEndAText(t *testing.T) {
	byteLevel := object(`{"type":"ByteLevel"}`)
	plain := edit(t, nil, "post_processor")
	with := func(processor json.RawMessage) []byte { return edit(t, processor, "post_processor") }
	for _, c := range []struct {
		name   string
		file   []byte
		config string
		bos    int
		want   []int32
	}{
		{
			name: "nobody says whether", file: plain, bos: 1, want: []int32{1},
			config: `{"bos_token":"<s>","eos_token":"</s>"}`,
		},
		{name: "nobody says anything", file: plain, config: `{}`, bos: 1},
		{name: "one token begins and ends", file: plain, config: `{"bos_token":"<s>","eos_token":"<s>"}`, bos: 1},
		{name: "a token that begins otherwise", file: plain, config: `{"bos_token":"</s>","eos_token":"<s>"}`, bos: 2},
		{name: "the model begins otherwise", file: plain, config: `{"bos_token":"<s>","eos_token":"</s>"}`, bos: 2},
		{name: "the model has no begin", file: plain, config: `{"bos_token":"<s>","eos_token":"</s>"}`, bos: -1},
		{name: "no config", file: plain, bos: 2},
		{name: "config forbids", file: plain, config: `{"add_bos_token":false}`, bos: 1},
		{name: "config forbids a template", file: with(template("1")), config: `{"add_bos_token":false}`, bos: 1},
		{
			name: "config demands its token", file: plain, bos: 2, want: []int32{1},
			config: `{"add_bos_token":true,"bos_token":{"content":"<s>"}}`,
		},
		{
			name: "config demands the model's", file: plain, bos: 2, want: []int32{2},
			config: `{"add_bos_token":true,"bos_token":null}`,
		},
		{
			name: "config demands, template once", file: with(template("1")), bos: 1, want: []int32{1},
			config: `{"add_bos_token":true,"bos_token":"</s>"}`,
		},
		{
			name: "config demands both", file: plain, bos: -1, want: []int32{1, 2},
			config: `{"add_bos_token":true,"add_eos_token":true,"bos_token":"<s>","eos_token":"</s>"}`,
		},
		{
			name: "config forbids the end", file: with(around("2")), bos: -1, want: []int32{2},
			config: `{"add_eos_token":false}`,
		},
		{name: "template", file: with(template("1")), config: `{}`, bos: -1, want: []int32{1}},
		{name: "template over model", file: with(template("2")), config: `{}`, bos: 1, want: []int32{2}},
		{name: "template of several", file: with(template("2,0")), config: `{}`, bos: 1, want: []int32{2, 0}},
		{name: "template around", file: with(around("2")), config: `{}`, bos: 1, want: []int32{2, 2}},
		{name: "template in a sequence", file: with(sequence(byteLevel, template("2"))), bos: -1, want: []int32{2}},
		{
			name: "template in deeper sequences", file: with(sequence(sequence(around("2")), byteLevel)), bos: -1,
			want: []int32{2, 2},
		},
		{name: "byte level, which adds nothing", file: with(byteLevel), bos: 1},
	} {
		var config []byte
		if c.config != "" {
			config = []byte(c.config)
		}
		tok, err := New(c.file, config, c.bos)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}

		got, err := tok.Prompt("")

		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, %v, want %v", c.name, got, err, c.want)
		}
	}
}

// refusedFile is a file that New refuses, and a part of the error.
type refusedFile struct {
	name string
	file []byte
	want string
}

// checkRefused wants every file refused with an input error that has a hint.
func checkRefused(t *testing.T, files []refusedFile) {
	t.Helper()
	for _, c := range files {
		_, err := New(c.file, nil, -1)
		checkRefusal(t, c.name, err, c.want)
	}
}

// checkRefusal wants an input error with a hint that mentions a text.
func checkRefusal(t *testing.T, name string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: got %v\nwant %q", name, err, want)
		return
	}
	if diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) == 0 {
		t.Errorf("%s: error %v of class %d with hints %q, want an input error with a hint", name, err,
			diag.ClassOf(err), diag.HintsOf(err))
	}
}

// typed is a part of a type.
func typed(name string) json.RawMessage { return object(fmt.Sprintf(`{"type":%q}`, name)) }

// A file that is no document, or none of this kind, is refused.
func TestRefusedDocuments(t *testing.T) {
	whole := read(t, "tokenizer.json")
	checkRefused(t, []refusedFile{
		{"empty", nil, "tokenizer.json: not valid JSON"},
		{"not JSON", []byte("x"), "tokenizer.json: not valid JSON"},
		{"cut off", whole[:9000], "tokenizer.json: not valid JSON"},
		{"too large", make([]byte, maxFileBytes+1), "want at most"},
		{"null", []byte("null"), "want an object"},
		{"a list", []byte("[1]"), "want an object"},
		{"nothing", []byte(" {} "), "no model"},
		{"two documents", append(slices.Clone(whole), '{'), "not valid JSON"},
		{"not UTF-8", []byte("{\"\xff\":1}"), "not valid JSON in UTF-8"},
		{"unknown key", edit(t, 1, "novelty"), `unknown field "novelty"`},
		{"key twice", []byte(`{"model":null,"model":null}`), `key "model" twice`},
		{
			"part too large", edit(t, strings.Repeat("x", maxPart), "normalizer"),
			"normalizer: 1048578 bytes, want at most 1048576",
		},
	})
}

// A vocabulary whose ids or tokens cannot be is refused.
func TestRefusedVocabularies(t *testing.T) {
	vocabulary := func() map[string]any {
		var doc struct {
			Model struct{ Vocab map[string]any }
		}
		if err := json.Unmarshal(read(t, "tokenizer.json"), &doc); err != nil {
			t.Fatal(err)
		}
		return doc.Model.Vocab
	}
	with := func(token string, id any) []byte {
		changed := vocabulary()
		changed[token] = id
		return edit(t, changed, "model", "vocab")
	}
	checkRefused(t, []refusedFile{
		{"huge id", with("!", 1<<30), "id 1073741824, want 0 to"},
		{"huger id", with("!", 1e30), "want a whole number"},
		{"negative id", with("!", -1), "id -1"},
		{"fraction", with("!", 0.5), "want a whole number"},
		{"a text for an id", with("!", "1"), "want a whole number"},
		{"same id", with("!", vocabulary()["\""]), "belongs to several tokens"},
		{"empty token", with("", 2048), "token 2048 has 0 bytes"},
		{"long token", with(strings.Repeat("x", 5000), 2048), "token 2048 has 5000 bytes"},
		{"token twice", []byte(`{"model":{"type":"BPE","vocab":{"a":1,"a":2},"merges":[]}}`), `token "a" twice`},
		{"vocab is a list", edit(t, []any{}, "model", "vocab"), "vocab: want an object"},
		{"no vocab", []byte(`{"model":{"type":"BPE","merges":[]}}`), "no vocab"},
	})
}

// A model of another kind, or with parts that are not supported, is refused by name.
func TestRefusedModels(t *testing.T) {
	checkRefused(t, []refusedFile{
		{"model is a text", edit(t, "BPE", "model"), "model: want an object"},
		{"unigram", edit(t, "Unigram", "model", "type"), "model: Unigram is not supported; supported: BPE"},
		{
			"a real unigram", []byte(`{"model":{"type":"Unigram","unk_id":0,"vocab":[["a",0.5]]}}`),
			"model: Unigram is not supported",
		},
		{
			"word pieces",
			[]byte(`{"model":{"type":"WordPiece","unk_token":"u","max_input_chars_per_word":9,"vocab":{}}}`),
			"model: WordPiece is not supported",
		},
		{
			"words", []byte(`{"model":{"type":"WordLevel","unk_token":"u","vocab":{}}}`),
			"model: WordLevel is not supported",
		},
		{"no type", []byte(`{"model":{"vocab":{}}}`), "model: something without a type"},
		{"dropout", edit(t, 0.1, "model", "dropout"), "dropout"},
		{"suffix", edit(t, "</w>", "model", "end_of_word_suffix"), "end_of_word_suffix"},
		{"prefix", edit(t, "##", "model", "continuing_subword_prefix"), "continuing_subword_prefix"},
		{"unknown key", edit(t, 1, "model", "novelty"), `model: unknown field "novelty"`},
		{"wrong type", edit(t, "yes", "model", "fuse_unk"), "model: fuse_unk"},
	})
}

// A list of merges that are no two tokens of the vocabulary is refused.
func TestRefusedMerges(t *testing.T) {
	with := func(list string) []byte { return edit(t, object(list), "model", "merges") }
	checkRefused(t, []refusedFile{
		{"an object", with(`{}`), "merges: want a list"},
		{"of strangers", with(`["a !?"]`), `"a" and "!?" do not merge to tokens`},
		{"of three", with(`["a b c"]`), "want two tokens"},
		{"of three parts", with(`[["a","b","c"]]`), "merge 0: more than 2 parts"},
		{"of one", with(`[["a"]]`), "want two tokens"},
		{"of nothing", with(`[" a"]`), "want two tokens"},
		{"of a number", with(`[1]`), "want a string"},
	})
}

// A normalizer that is not supported, or with arguments that cannot be, is refused.
func TestRefusedNormalizers(t *testing.T) {
	with := func(part string) []byte { return edit(t, object(part), "normalizer") }
	deep := `{"type":"NFC"}`
	for range 20 {
		deep = `{"type":"Sequence","normalizers":[` + deep + `]}`
	}
	long := `{"type":"Sequence","normalizers":[` + strings.Repeat(`{"type":"NFC"},`, 39) + `{"type":"NFC"}]}`
	checkRefused(t, []refusedFile{
		{"another one", with(`{"type":"Lowercase"}`), "normalizer: Lowercase is not supported; supported: NFC"},
		{
			"in a sequence", with(`{"type":"Sequence","normalizers":[{"type":"Precompiled"}]}`),
			"normalizer: Precompiled is not supported",
		},
		{"unknown key", with(`{"type":"NFC","novelty":1}`), `normalizer: json: unknown field "novelty"`},
		{"nameless", with(`{}`), "normalizer: something without a type"},
		{"deep sequences", with(deep), "more than 8 sequences"},
		{"long sequence", with(long), "more than 32 steps"},
		{"empty pattern", with(`{"type":"Replace","pattern":{"String":""},"content":"x"}`), "pattern of 0 bytes"},
		{
			"no pattern", with(`{"type":"Replace","pattern":{},"content":"x"}`),
			"want a pattern of type String or Regex",
		},
		{
			"long replacement",
			with(`{"type":"Replace","pattern":{"String":"a"},"content":"` + strings.Repeat("x", 300) + `"}`),
			"content: 300 bytes",
		},
	})
}

// A pre-tokenizer that is not supported, or with arguments that cannot be, is refused.
func TestRefusedPreTokenizers(t *testing.T) {
	with := func(part string) []byte { return edit(t, object(part), "pre_tokenizer") }
	checkRefused(t, []refusedFile{
		{
			"another one", with(`{"type":"BertPreTokenizer"}`),
			"pre_tokenizer: BertPreTokenizer is not supported; supported: ByteLevel",
		},
		{"no prefix space", with(`{"type":"ByteLevel"}`), "does not say add_prefix_space"},
		{"which digits", with(`{"type":"Digits"}`), "individual_digits of Digits is missing"},
		{
			"split behavior",
			with(`{"type":"Split","pattern":{"String":"a"},"behavior":"Vanish","invert":false}`), `behavior "Vanish"`,
		},
		{
			"split pattern",
			with(`{"type":"Split","pattern":{"Regex":"(?<=a)b"},"behavior":"Isolated","invert":false}`),
			`pattern "(?<=a)b": at byte 0: a group of kind "(?<=" is not supported`,
		},
		{
			"metaspace replacement", with(`{"type":"Metaspace","replacement":"ab"}`),
			`replacement "ab", want one character`,
		},
		{
			"metaspace scheme", with(`{"type":"Metaspace","replacement":"_","prepend_scheme":"often"}`),
			`prepend_scheme "often"`,
		},
		{
			"metaspace twice",
			with(`{"type":"Metaspace","replacement":"_","prepend_scheme":"first","add_prefix_space":false}`),
			"add_prefix_space is false",
		},
	})
}

// A decoder that is not supported, or whose steps come in an order that cannot be, is refused.
func TestRefusedDecoders(t *testing.T) {
	with := func(part string) []byte { return edit(t, object(part), "decoder") }
	checkRefused(t, []refusedFile{
		{"another one", with(`{"type":"WordPiece"}`), "decoder: WordPiece is not supported; supported: ByteFallback"},
		{"none", with(`null`), "decoder: nothing is not supported"},
		{"strip's end", with(`{"type":"Strip","content":" ","start":0,"stop":1}`), "stop of Strip is 1"},
		{
			"bytes after fuse", with(`{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"ByteFallback"}]}`),
			"ByteFallback after",
		},
		{
			"replace after fuse",
			with(`{"type":"Sequence","decoders":[{"type":"Fuse"},` +
				`{"type":"Replace","pattern":{"String":"ab"},"content":"x"}]}`),
			"Replace of more than a character",
		},
	})
}

// A post-processor that is not supported, or whose tokens cannot be, is refused.
func TestRefusedPostProcessors(t *testing.T) {
	with := func(part json.RawMessage) []byte { return edit(t, part, "post_processor") }
	pair := object(`{"type":"TemplateProcessing","single":[{"Sequence":{"id":"B","type_id":0}}]}`)
	checkRefused(t, []refusedFile{
		{
			"another one", with(typed("BertProcessing")),
			"post_processor: BertProcessing is not supported; supported: ByteLevel",
		},
		{"template id", with(template("5000")), "token 5000 begins or ends a text"},
		{"template negative", with(template("-1")), "token -1 begins or ends a text"},
		{"template no ids", with(template("")), "has no ids"},
		{"template no text", with(object(`{"type":"TemplateProcessing","single":[]}`)), "template without the text"},
		{"template of a pair", with(pair), "not special tokens around one text"},
	})
}

// An added token whose id or text cannot be is refused.
func TestRefusedAddedTokens(t *testing.T) {
	with := func(key string, value any) []byte {
		token := map[string]any{
			"id": 2048, "content": "<x>",
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false,
		}
		token[key] = value
		return edit(t, []any{token}, "added_tokens")
	}
	removing := `"normalizer":{"type":"Replace","pattern":{"String":"<x>"},"content":""}`
	vanishing := bytes.Replace(with("normalized", true), []byte(`"normalizer":null`), []byte(removing), 1)
	checkRefused(t, []refusedFile{
		{"empty", with("content", ""), "0 bytes, want 1 to 256"},
		{"long", with("content", strings.Repeat("x", 257)), "257 bytes, want 1 to 256"},
		{"huge id", with("id", 1<<30), "id 1073741824, but 2048 is the first that is free"},
		{"after a gap", with("id", 2050), "id 2050, but 2048 is the first that is free"},
		{"elsewhere", with("content", "!"), "id 2048, but 3 in the vocabulary"},
		{"on top", with("id", 3), "id 3, but 2048"},
		{"vanishes", vanishing, "nothing is left of it after normalisation"},
		{"unknown key", with("novelty", true), `unknown field "novelty"`},
	})
}

// A tokenizer_config.json that is no document, or wants tokens that are not there, is refused.
func TestRefusedConfigurations(t *testing.T) {
	for _, c := range []struct{ name, config, want string }{
		{"broken", "{", "tokenizer_config.json"},
		{"too large", strings.Repeat(" ", maxConfigBytes+1), "tokenizer_config.json: 8388609 bytes"},
		{"wants one", `{"add_bos_token":true}`, "add_bos_token is true, but there is no bos_token"},
		{
			"wants an end", `{"add_eos_token":true,"eos_token":null}`,
			"add_eos_token is true, but there is no eos_token",
		},
		{
			"wants another", `{"add_bos_token":true,"bos_token":"<begin>"}`,
			`bos_token "<begin>" is not in the vocabulary`,
		},
		{"of a wrong type", `{"add_bos_token":"yes"}`, "tokenizer_config.json: json: cannot unmarshal"},
	} {
		_, err := New(read(t, "tokenizer.json"), []byte(c.config), -1)
		checkRefusal(t, c.name, err, c.want)
	}
}

// ladder has merges that tie: pairs of one letter.
func ladder(t testing.TB, extra map[string]any) Tokenizer {
	t.Helper()
	vocab := map[string]int{}
	for _, r := range alphabet {
		vocab[string(r)] = len(vocab)
	}
	merges := []string{"a a", "aa a", "b c", "a b", "Ġ a", "Ċ Ċ", "Ġ Ġ"}
	for _, m := range merges {
		vocab[strings.ReplaceAll(m, " ", "")] = len(vocab)
	}
	model := map[string]any{"type": "BPE", "vocab": vocab, "merges": merges}
	maps.Copy(model, extra)
	doc := map[string]any{
		"model":         model,
		"pre_tokenizer": object(`{"type":"ByteLevel","add_prefix_space":false,"use_regex":true}`),
		"decoder":       typed("ByteLevel"),
		"added_tokens": []any{
			object(`{"id":263,"content":"<|x|>","special":true}`),
			object(`{"id":264,"content":"<|x|>!","special":false}`),
			object(`{"id":265,"content":"|x","special":true}`),
		},
	}
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := New(b, nil, -1)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// pieces are the texts of ids with slashes between them.
func pieces(tok Tokenizer, ids []int32) string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = tok.DecodeSpecial([]int32{id})
	}
	return strings.Join(out, "/")
}

// Texts are split into words first and merged within them: the leftmost of the lowest rank first. The longest added
// token counts.
func TestMergesAndSplitting(t *testing.T) {
	tok := ladder(t, nil)
	for _, c := range []struct{ text, want string }{
		{"a", "a"},
		{"aa", "aa"},
		{"aaa", "aaa"},
		{"aaaa", "aa/aa"},
		{"aaaaa", "aa/aaa"},
		{"aaaaaaa", "aa/aa/aaa"},
		{"abc", "a/bc"},
		{"aab", "aa/b"},
		{"ab", "ab"},
		{"xaay", "x/aa/y"},
		{"a\n\n\nb", "a/\n\n/\n/b"},
		{"a\n\n", "a/\n\n"},
		{"a   b", "a/  / /b"},
		{"a   a", "a/  / a"},
		{" a", " a"},
		{"\n a", "\n/ a"},
		{"<|x|>!<|x|>a|x", "<|x|>!/<|x|>/a/|x"},
	} {
		ids, err := tok.Encode(c.text)
		if got := pieces(tok, ids); err != nil || got != c.want {
			t.Errorf("%q: got %q, %v, want %q", c.text, got, err, c.want)
		}
	}
}

// Special tokens, and ids that are none, are left out of text.
func TestDecodeLeavesOut(t *testing.T) {
	if got := ladder(t, nil).Decode([]int32{264, 263, 265, 9999, -1, 299}); got != "<|x|>!" {
		t.Errorf("got %q, want the ordinary added token alone", got)
	}
}

// With ignore_merges, a word that is a token is that token.
func TestIgnoreMerges(t *testing.T) {
	tok := ladder(t, map[string]any{"ignore_merges": true, "merges": []string{}})
	ids, err := tok.Encode("aaa aaaa")
	if got := pieces(tok, ids); err != nil || got != "aaa/ /a/a/a/a" {
		t.Errorf("got %q, %v", got, err)
	}
}

// Merging gives what its rule gives, written down directly: merge the leftmost pair of the lowest rank until there is
// none.
func TestMergeIsTheRule(t *testing.T) {
	tok := tiny(t).(*pipeline).model
	slow := func(word string) []int32 {
		var ids []int32
		for i := range len(word) {
			ids = append(ids, tok.bytes[word[i]])
		}
		for {
			best := -1
			var lowest, joined int32
			for i := range len(ids) - 1 {
				if rank, id, ok := tok.merges.find(ids[i], ids[i+1]); ok && (best < 0 || rank < lowest) {
					best, lowest, joined = i, rank, id
				}
			}
			if best < 0 {
				return ids
			}
			ids = slices.Replace(ids, best, best+2, joined)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringOfN(rapid.RuneFrom([]rune("aeiosthn el. ,")), 1, 60, -1).Draw(t, "word")

		got, err := tok.merge(nil, word)

		if want := slow(word); err != nil || !slices.Equal(got, want) {
			t.Fatalf("%q: got %v, %v, want %v", word, got, err, want)
		}
	})
}

// The parts of a stream are valid UTF-8, and together the text of all ids.
func TestStreamNeverTakesBack(t *testing.T) {
	tok := tiny(t)
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfN(rapid.Int32Range(-1, 2050), 0, 40).Draw(t, "ids")
		if rapid.Bool().Draw(t, "text") {
			var err error
			if ids, err = tok.Encode(rapid.String().Draw(t, "string")); err != nil {
				t.Fatal(err)
			}
		}

		s, got := tok.Stream(), ""
		for _, id := range ids {
			part := s.Push(id)
			if !utf8.ValidString(part) {
				t.Fatalf("%q is not valid UTF-8", part)
			}
			got += part
		}
		got += s.Flush()

		if want := tok.Decode(ids); got != want {
			t.Fatalf("%v: stream %q, whole %q", ids, got, want)
		}
	})
}

// A character of several ids comes with the last of them.
func TestStreamWaitsForCharacters(t *testing.T) {
	tok := tiny(t)
	ids, err := tok.Encode("世")
	if err != nil || len(ids) < 2 {
		t.Fatalf("got %v, %v, want several ids", ids, err)
	}
	s := tok.Stream()
	for i, id := range ids {
		want := ""
		if i == len(ids)-1 {
			want = "世"
		}
		if got := s.Push(id); got != want {
			t.Errorf("after id %d: got %q, want %q", i, got, want)
		}
	}
}

// Invalid text has one U+FFFD for each longest piece that cannot become a character.
func TestInvalidBytes(t *testing.T) {
	for in, want := range map[string]string{
		"\xff":             "\ufffd",
		"\xff\xfe":         "\ufffd\ufffd",
		"a\xe4\xbdb":       "a\ufffdb",
		"\xe4\xbd":         "\ufffd",
		"\xf0\x9f\x98":     "\ufffd",
		"\xe4\xe4\xbd\xa0": "\ufffd你",
		"\xc0\x80":         "\ufffd\ufffd",
		"\xed\xa0\x80":     "\ufffd\ufffd\ufffd",
		"\ufffd":           "\ufffd",
	} {
		out, rest := appendValid(nil, []byte(in), true)
		if string(out) != want || len(rest) > 0 {
			t.Errorf("%q: got %q, %q, want %q", in, out, rest, want)
		}
	}

	tok := tiny(t)
	ids, err := tok.Encode("a\xff\xe4\xbd")
	if err != nil || tok.Decode(ids) != "a\ufffd\ufffd" {
		t.Errorf("got %q, %v", tok.Decode(ids), err)
	}
}

// Long texts survive in linear time, and longer ones are refused.
func TestLongInput(t *testing.T) {
	tok := tiny(t)
	if _, err := tok.Encode(strings.Repeat("a", maxText+1)); diag.ClassOf(err) != diag.ClassInput {
		t.Errorf("got %v, want a refusal", err)
	}

	// Quadratic work would take minutes here.
	long := strings.Repeat("ab", 1<<17) + strings.Repeat(" ", 1<<17) + strings.Repeat("<s", 1<<16)
	ids, err := tok.Encode(long)
	if err != nil || tok.Decode(ids) != long {
		t.Errorf("%d bytes do not survive: %v", len(long), err)
	}

	pieces, _ := kind(t, "llama2-legacy")
	word := strings.Repeat("abcdefgh", 1<<16)
	if ids, err := pieces.Encode(word); err != nil || pieces.Decode(ids) != word {
		t.Errorf("a word of %d bytes does not survive: %v", len(word), err)
	}
}

// A tokenizer may be used by several goroutines at once.
func TestConcurrentUse(t *testing.T) {
	tok := tiny(t)
	text := string(read(t, "valid.txt")[:20000])
	want, err := tok.Encode(text)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if got, err := tok.Encode(text); err != nil || !slices.Equal(got, want) {
				t.Errorf("concurrent use changes the result (%v)", err)
			}
		})
	}
	wg.Wait()
}

// fuzzedParts are parts of every kind, by the field that they stand in.
var fuzzedParts = map[string][]string{
	"normalizer": {
		`{"type":"NFC"}`,
		`{"type":"Sequence","normalizers":[{"type":"NFKD"},{"type":"Prepend","prepend":"b"}]}`,
		`{"type":"Replace","pattern":{"String":"a"},"content":"bb"}`,
	},
	"pre_tokenizer": {
		`{"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":true}`,
		`{"type":"Split","pattern":{"Regex":"\\s*a+(?!b)|[^a]{1,2}"},"behavior":"MergedWithNext","invert":true}`,
		`{"type":"Digits","individual_digits":false}`,
		`{"type":"Punctuation","behavior":"Contiguous"}`,
		`{"type":"WhitespaceSplit"}`,
		`{"type":"Whitespace"}`,
		`{"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":true,"use_regex":false},` +
			`{"type":"Split","pattern":{"String":"b"},"behavior":"Removed","invert":false}]}`,
	},
	"decoder": {
		`{"type":"Metaspace","replacement":"a","prepend_scheme":"always"}`,
		`{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Strip","content":"a","start":2,"stop":0}]}`,
	},
	"post_processor": {
		`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}},` +
			`{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"x","type_id":0}}],"pair":[],` +
			`"special_tokens":{"x":{"id":"x","ids":[1,2],"tokens":["b"]}}}`,
	},
	"added_tokens": {
		`[{"id":5,"content":"<x>","single_word":true,"lstrip":true,"rstrip":true,"normalized":true,"special":true},` +
			`{"id":6,"content":"a b","single_word":false,"lstrip":true,"rstrip":true,"normalized":false,` +
			`"special":false}]`,
	},
}

// addTokenizers adds files of every kind, around vocabularies that are small enough to be worth changing.
func addTokenizers(f *testing.F) {
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},`+
		`"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"decoder":{"type":"ByteLevel"}}`),
		[]byte(`{"add_bos_token":true,"bos_token":"a"}`), "ab")
	f.Add([]byte(`{"model":{"vocab":{"<unk>":0,"\u2581":1,"a":2,"\u2581a":3},"merges":[["\u2581","a"]],`+
		`"unk_token":"<unk>","fuse_unk":true,"byte_fallback":true},"normalizer":{"type":"Sequence","normalizers":[`+
		`{"type":"Prepend","prepend":"\u2581"},{"type":"Replace","pattern":{"Regex":"\\s+"},"content":"\u2581"}]},`+
		`"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},`+
		`{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}}`),
		[]byte(`{}`), " a b\u2581")
	for field, parts := range fuzzedParts {
		for _, part := range parts {
			doc := `{"model":{"vocab":{"a":0,"b":1,"ab":2,"<0x61>":3,"_":4},"merges":["a b"],"byte_fallback":true},"` +
				field + `":` + part
			if field != "decoder" {
				doc += `,"decoder":{"type":"Fuse"}`
			}
			config := `{"add_eos_token":true,"eos_token":{"content":"b"}}`
			f.Add([]byte(doc+"}"), []byte(config), "a b <x>  ab12,._")
		}
	}
	f.Add(edit(f, template("1"), "post_processor"), []byte(`null`), "In the <s> beginning")
	f.Add(read(f, "tokenizer.json"), read(f, "tokenizer_config.json"), "a\xff\n\n b'll")
	for _, name := range kindNames(f) {
		_, k := kind(f, name)
		f.Add([]byte(k.Tokenizer), []byte(nil), "The river [tok] was\u00a0wide \u0301\U0001f600 123")
	}
}

// A file is refused with an input error, or gives ids of its vocabulary and text in UTF-8.
func FuzzTokenizerJSON(f *testing.F) {
	addTokenizers(f)
	f.Fuzz(func(t *testing.T, file, config []byte, text string) {
		tok, err := New(file, config, 1)
		if err != nil {
			if diag.ClassOf(err) != diag.ClassInput || len(err.Error()) > 20000 {
				t.Errorf("error of class %d and %d bytes", diag.ClassOf(err), len(err.Error()))
			}
			return
		}
		ids, err := tok.Prompt(text)
		if err != nil {
			if diag.ClassOf(err) != diag.ClassInput {
				t.Error(err)
			}
			return
		}
		for _, id := range ids {
			if id < 0 || int(id) >= tok.VocabSize() {
				t.Errorf("id %d of %d", id, tok.VocabSize())
			}
		}
		if !utf8.ValidString(tok.DecodeSpecial(ids)) {
			t.Error("decoded text is not UTF-8")
		}
		if got, want := streamed(tok, ids), tok.Decode(ids); got != want {
			t.Errorf("%v: one by one %q, at once %q", ids, got, want)
		}
	})
}

// The pieces of a text follow each other from its begin to its end, and matches are as long as they can be.
func FuzzPattern(f *testing.F) {
	var file []patternFile
	readJSONFile(f, "testdata/patterns.json", &file)
	for _, entry := range file[:100] {
		f.Add(entry.pattern, "aab bc\n1é.AKſ's  ")
	}
	f.Fuzz(func(t *testing.T, pattern, text string) {
		if !utf8.ValidString(text) || !utf8.ValidString(pattern) {
			return
		}
		a, err := compile(pattern)
		if err != nil {
			return
		}

		at := 0
		err = a.regions(text, func(from, to int, match bool) {
			if from != at || to <= from || match && a.mustMatch(text, from) != to {
				t.Errorf("%q on %q: piece %d to %d after %d", pattern, text, from, to, at)
			}
			at = to
		})

		if err == nil && at != len(text) {
			t.Errorf("%q on %q: the pieces end at %d", pattern, text, at)
		}
	})
}

// mustMatch is the end of the match at from.
func (a *automaton) mustMatch(text string, from int) int {
	end, _ := a.match(text, from, nil)
	return end
}

// Any text has ids of the vocabulary. Byte-level encoding without normalisation loses nothing.
func FuzzEncode(f *testing.F) {
	var toks []Tokenizer
	names := kindNames(f)
	for i, name := range names {
		tok, _ := kind(f, name)
		toks = append(toks, tok)
		f.Add(uint8(i), "In the beginning  \n\n x\u00a0\u2003y' 's 12½ <s> \xf0\x9f [left] é")
	}
	f.Fuzz(func(t *testing.T, which uint8, text string) {
		i := int(which) % len(toks)
		tok := toks[i]
		ids, err := tok.Encode(text)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			if id < 0 || int(id) >= tok.VocabSize() {
				t.Errorf("id %d of %d", id, tok.VocabSize())
			}
		}
		if got, want := streamed(tok, ids), tok.Decode(ids); got != want {
			t.Errorf("%v: one by one %q, at once %q", ids, got, want)
		}

		switch names[i] {
		case "gpt2", "gpt2-split", "llama3", "cl100k", "o200k", "kimi", "deepseek-coder", "deepseek-v3", "starcoder",
			"bloom":
			want, _ := appendValid(nil, []byte(text), true)
			if got := tok.DecodeSpecial(ids); got != string(want) {
				t.Errorf("%q comes back as %q", text, got)
			}
		}
	})
}

// Files as large as is permitted that try to fill memory are refused before they do. What the garbage collector did not
// see at once counts too, so the true peak is lower.
func TestHostileFiles(t *testing.T) {
	require.Slow(t)
	fill := func(size int, begin, repeat, end string) []byte {
		var b bytes.Buffer
		b.Grow(size)
		b.WriteString(begin)
		b.Write(bytes.Repeat([]byte(repeat), (size-len(begin)-len(end))/len(repeat)))
		b.WriteString(end)
		return b.Bytes()
	}
	vocab := func() []byte {
		b := []byte(`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2`)
		for i := int64(3); i < maxVocab; i++ {
			b = append(append(b, `,"a longer token than in use `...), strconv.AppendInt(nil, i, 10)...)
			b = strconv.AppendInt(append(b, `":`...), i, 10)
		}
		return append(b, `},"merges":[]}}`...)
	}
	small := func(begin, repeat, end string) func() []byte {
		return func() []byte { return fill(maxFileBytes/8, begin, repeat, end) }
	}
	merges := func() []byte {
		begin := `{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"`
		return fill(maxFileBytes, begin, `,"a b"`, `]}}`)
	}
	for _, c := range []struct {
		name string
		file func() []byte
		want string
	}{
		{"many merges", merges, "merges: more than 2097152"},
		{"many tokens", vocab, "decoder: nothing is not supported"},
		{
			"many added tokens",
			small(`{"model":{"vocab":{},"merges":[]},"decoder":{"type":"Fuse"},"added_tokens":[{}`, `,{}`, `]}`),
			"added token",
		},
		{"long key", small(`{"`, `\n`, `":1}`), "unknown field"},
		{"long token", small(`{"model":{"type":"BPE","vocab":{"`, `\n`, `":1}}}`), "bytes, want 1 to 4096"},
		{
			"long part", small(`{"normalizer":{"type":"Sequence","normalizers":[{}`, `,{}`, `]}}`),
			"want at most 1048576",
		},
		{"nesting", small(`{"normalizer":`, `[`, ``), "not valid JSON"},
	} {
		file := c.file()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := New(file, nil, -1)
		runtime.ReadMemStats(&after)

		if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1000 {
			t.Errorf("%s: got %.300v, want %q", c.name, err, c.want)
		}
		if filled := (after.TotalAlloc - before.TotalAlloc) >> 20; filled > 448 {
			t.Errorf("%s: %d MiB were filled beside the file", c.name, filled)
		}
	}
}

// Of added tokens that normalisation makes equal, the first special one counts, or the first. The reference finds one
// of them too, but another in each process (PyPI tokenizers 0.23.3).
func TestTokensThatNormalisationMakesEqual(t *testing.T) {
	token := func(id int, content string, special bool) string {
		return fmt.Sprintf(`{"id":%d,"content":%q,"normalized":true,"special":%t}`, id, content, special)
	}
	for _, c := range []struct {
		tokens []string
		want   int32
	}{
		{tokens: []string{token(1, "b", false), token(2, "c", false), token(3, "d", false)}, want: 1},
		{tokens: []string{token(1, "b", false), token(2, "c", true), token(3, "d", true)}, want: 2},
		{tokens: []string{token(1, "d", true), token(2, "c", true), token(3, "b", false)}, want: 1},
	} {
		file := `{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"decoder":{"type":"Fuse"},` +
			`"normalizer":{"type":"Replace","pattern":{"Regex":"[b-z]"},"content":"x"},` +
			`"added_tokens":[` + strings.Join(c.tokens, ",") + `]}`
		tok, err := New([]byte(file), nil, -1)
		if err != nil {
			t.Fatal(err)
		}

		got, err := tok.Encode("abac")

		if err != nil || !slices.Equal(got, []int32{0, c.want, 0, c.want}) {
			t.Errorf("%v: got %v, %v, want %d for both", c.tokens, got, err, c.want)
		}
	}
}

// Of equal pairs the later merge counts. A text that begins as the first line of a file of merges is no merge, a list
// of two is. Ids are those of the reference.
func TestWhichMergesCount(t *testing.T) {
	const vocab = `{"a":0,"b":1,"ab":2,"#version:":3,"0.2":4,"#version:0.2":5,"c":6,"bc":7}`
	for merges, want := range map[string][]int32{
		`["#version: 0.2","a b"]`: {2, 6},
		`["a b","#version: x"]`:   {2, 6},
		`[["#version:","0.2"]]`:   {0, 1, 6},
		`["a b","b c","a b"]`:     {0, 7},
	} {
		for _, model := range []string{ // in either order
			`"vocab":` + vocab + `,"merges":` + merges,
			`"merges":` + merges + `,"vocab":` + vocab,
		} {
			tok, err := New([]byte(`{"model":{"type":"BPE",`+model+`},"decoder":{"type":"Fuse"}}`), nil, -1)
			if err != nil {
				t.Errorf("%s: %v", merges, err)
				continue
			}
			if got, err := tok.Encode("abc"); err != nil || !slices.Equal(got, want) {
				t.Errorf("%s: got %v, %v, want %v", merges, got, err, want)
			}
		}
	}
}

// The reference puts the character of a Metaspace in front of every piece whose first character comes from the first
// one of the text. Where that may be another piece than the first, or several, the file is refused.
func TestWhichPieceBeginsTheText(t *testing.T) {
	const first = `{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}`
	sequence := func(steps string) string { return `{"type":"Sequence","pretokenizers":[` + steps + `]}` }
	const digits, nfkd = `{"type":"Digits","individual_digits":true},`, `{"type":"NFKD"}`
	const removes = "may remove or join what the text begins with"
	for _, c := range []struct {
		normalizer, splitters string
		want                  string // part of the error, "": none
	}{
		{"null", first, ""},
		{nfkd, first, ""},
		{"null", sequence(digits + first), ""},
		{nfkd, sequence(first + "," + strings.TrimSuffix(digits, ",")), ""},
		{nfkd, sequence(digits + first), "behind a normalizer and another step"},
		{`{"type":"Replace","pattern":{"String":" "},"content":"▁"}`, first, ""},
		{`{"type":"Replace","pattern":{"String":"\n"},"content":""}`, first, removes},
		{`{"type":"Replace","pattern":{"String":"  "},"content":"▁"}`, first, removes},
		{`{"type":"Replace","pattern":{"Regex":"\\s+"},"content":"▁"}`, first, removes},
		{"null", sequence(first + "," + first), "behind another Metaspace"},
		{
			"null", sequence(`{"type":"ByteLevel","add_prefix_space":false},` + first),
			"behind another Metaspace or ByteLevel",
		},
	} {
		file := fmt.Sprintf(`{"model":{"type":"BPE","vocab":{"a":0,"\u2581":1},"merges":[]},"normalizer":%s,`+
			`"pre_tokenizer":%s,"decoder":{"type":"Fuse"}}`, c.normalizer, c.splitters)

		_, err := New([]byte(file), nil, -1)

		refused := err != nil && strings.Contains(err.Error(), c.want)
		if c.want == "" && err != nil || c.want != "" && !refused {
			t.Errorf("%s behind %s: got %v, want %q", c.splitters, c.normalizer, err, c.want)
		}
	}
}

// A token of white space that lies in what the token before took along is none: ids are those of the reference.
func TestTokensInWhiteSpaceTakenAlong(t *testing.T) {
	tok := ladder(t, nil)
	space := addedToken{ID: 300, Content: " ", LStrip: true, RStrip: true}
	tok.(*pipeline).before = newFinder([]addedToken{space}, []string{" "})
	for text, want := range map[string][]int32{
		"a   a": {97, 300, 97},
		"   ":   {300},
		"  a ":  {300, 97, 300},
	} {
		if got, err := tok.Encode(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
}
