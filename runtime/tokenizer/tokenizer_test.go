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

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(tinyDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

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

// The prompts of the stored logits, begin token included.
func TestPromptsOfTheReference(t *testing.T) {
	tok := tiny(t)
	ref, err := safetensors.Open(filepath.Join(tinyDir, "reference.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Close()
	for i, text := range []string{"In the beginning God created", "And Moses said unto the children of Israel,", "Blessed are they that mourn: for they shall be", string(read(t, "valid.txt"))} {
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

func template(ids ...any) map[string]any {
	return map[string]any{
		"type":   "TemplateProcessing",
		"single": []any{map[string]any{"SpecialToken": map[string]any{"id": "<s>", "type_id": 0}}, map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}}},
		"pair":   []any{}, "special_tokens": map[string]any{"<s>": map[string]any{"id": "<s>", "ids": ids, "tokens": []any{"<s>"}}},
	}
}

func TestWhichTokensBeginAndEndAText(t *testing.T) {
	plain := edit(t, nil, "post_processor")
	around := func(ids ...any) map[string]any {
		p := template(ids...)
		p["single"] = append(p["single"].([]any), map[string]any{"SpecialToken": map[string]any{"id": "<s>", "type_id": 0}})
		return p
	}
	sequence := func(p ...any) map[string]any { return map[string]any{"type": "Sequence", "processors": p} }
	byteLevel := map[string]any{"type": "ByteLevel"}
	for name, c := range map[string]struct {
		file   []byte
		config string
		bos    int
		want   []int32
	}{
		"nobody says whether":              {plain, `{"bos_token":"<s>","eos_token":"</s>"}`, 1, []int32{1}},
		"nobody says anything":             {plain, `{}`, 1, nil},
		"one token begins and ends":        {plain, `{"bos_token":"<s>","eos_token":"<s>"}`, 1, nil},
		"a token that begins other things": {plain, `{"bos_token":"</s>","eos_token":"<s>"}`, 2, nil},
		"the model begins otherwise":       {plain, `{"bos_token":"<s>","eos_token":"</s>"}`, 2, nil},
		"the model has no begin":           {plain, `{"bos_token":"<s>","eos_token":"</s>"}`, -1, nil},
		"no config":                        {plain, "", 2, nil},
		"config forbids":                   {plain, `{"add_bos_token":false}`, 1, nil},
		"config forbids a template":        {edit(t, template(1), "post_processor"), `{"add_bos_token":false}`, 1, nil},
		"config demands its token":         {plain, `{"add_bos_token":true,"bos_token":{"content":"<s>"}}`, 2, []int32{1}},
		"config demands the model's":       {plain, `{"add_bos_token":true,"bos_token":null}`, 2, []int32{2}},
		"config demands, template once":    {edit(t, template(1), "post_processor"), `{"add_bos_token":true,"bos_token":"</s>"}`, 1, []int32{1}},
		"config demands both":              {plain, `{"add_bos_token":true,"add_eos_token":true,"bos_token":"<s>","eos_token":"</s>"}`, -1, []int32{1, 2}},
		"config forbids the end":           {edit(t, around(2), "post_processor"), `{"add_eos_token":false}`, -1, []int32{2}},
		"template":                         {edit(t, template(1), "post_processor"), `{}`, -1, []int32{1}},
		"template over model":              {edit(t, template(2), "post_processor"), `{}`, 1, []int32{2}},
		"template of several":              {edit(t, template(2, 0), "post_processor"), `{}`, 1, []int32{2, 0}},
		"template around":                  {edit(t, around(2), "post_processor"), `{}`, 1, []int32{2, 2}},
		"template in a sequence":           {edit(t, sequence(byteLevel, template(2)), "post_processor"), "", -1, []int32{2}},
		"template in deeper sequences":     {edit(t, sequence(sequence(around(2)), byteLevel), "post_processor"), "", -1, []int32{2, 2}},
		"byte level, which adds nothing":   {edit(t, byteLevel, "post_processor"), "", 1, nil},
	} {
		var config []byte
		if c.config != "" {
			config = []byte(c.config)
		}
		tok, err := New(c.file, config, c.bos)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := tok.Prompt("")
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, c.want)
		}
	}
}

func TestWhatIsNotSupportedIsRefusedByName(t *testing.T) {
	added := func(change func(a map[string]any)) []byte {
		a := map[string]any{"id": 2048, "content": "<x>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": false}
		change(a)
		return edit(t, []any{a}, "added_tokens")
	}
	typed := func(name string) map[string]any { return map[string]any{"type": name} }
	splitBy := func(pattern string) map[string]any {
		return map[string]any{"type": "Split", "pattern": map[string]any{"Regex": pattern}, "behavior": "Isolated", "invert": false}
	}
	deepSequence := func(n int, key string) map[string]any {
		out := typed("NFC")
		for range n {
			out = map[string]any{"type": "Sequence", key: []any{out}}
		}
		return out
	}
	withReplace := func(file []byte, from, to string) []byte {
		return bytes.Replace(file, []byte(`"normalizer":null`), fmt.Appendf(nil, `"normalizer":{"type":"Replace","pattern":{"String":%q},"content":%q}`, from, to), 1)
	}
	vocab := func(change func(v map[string]any)) []byte {
		var doc map[string]any
		if err := json.Unmarshal(read(t, "tokenizer.json"), &doc); err != nil {
			t.Fatal(err)
		}
		v := doc["model"].(map[string]any)["vocab"].(map[string]any)
		change(v)
		return edit(t, v, "model", "vocab")
	}
	for name, c := range map[string]struct {
		file   []byte
		config string
		want   string
	}{
		"empty":                  {nil, "", "tokenizer.json: not valid JSON"},
		"not JSON":               {[]byte("x"), "", "tokenizer.json: not valid JSON"},
		"cut off":                {read(t, "tokenizer.json")[:9000], "", "tokenizer.json: not valid JSON"},
		"too large":              {make([]byte, maxFileBytes+1), "", "want at most"},
		"null":                   {[]byte("null"), "", "want an object"},
		"a list":                 {[]byte("[1]"), "", "want an object"},
		"nothing":                {[]byte(" {} "), "", "no model"},
		"two documents":          {append(read(t, "tokenizer.json"), '{'), "", "not valid JSON"},
		"not UTF-8":              {[]byte("{\"\xff\":1}"), "", "not valid JSON in UTF-8"},
		"unknown key":            {edit(t, 1, "novelty"), "", `unknown field "novelty"`},
		"key twice":              {[]byte(`{"model":null,"model":null}`), "", `key "model" twice`},
		"part too large":         {edit(t, strings.Repeat("x", maxPart), "normalizer"), "", "normalizer: 1048578 bytes, want at most 1048576"},
		"huge id":                {vocab(func(v map[string]any) { v["!"] = 1 << 30 }), "", "id 1073741824, want 0 to"},
		"huger id":               {vocab(func(v map[string]any) { v["!"] = 1e30 }), "", "want a whole number"},
		"negative id":            {vocab(func(v map[string]any) { v["!"] = -1 }), "", "id -1"},
		"fraction":               {vocab(func(v map[string]any) { v["!"] = 0.5 }), "", "want a whole number"},
		"a text for an id":       {vocab(func(v map[string]any) { v["!"] = "1" }), "", "want a whole number"},
		"same id":                {vocab(func(v map[string]any) { v["!"] = v["\""] }), "", "belongs to several tokens"},
		"empty token":            {vocab(func(v map[string]any) { v[""] = 2048 }), "", "token 2048 has 0 bytes"},
		"long token":             {vocab(func(v map[string]any) { v[strings.Repeat("x", 5000)] = 2048 }), "", "token 2048 has 5000 bytes"},
		"token twice":            {[]byte(`{"model":{"type":"BPE","vocab":{"a":1,"a":2},"merges":[]}}`), "", `token "a" twice`},
		"vocab is a list":        {edit(t, []any{}, "model", "vocab"), "", "vocab: want an object"},
		"merges are an object":   {edit(t, map[string]any{}, "model", "merges"), "", "merges: want a list"},
		"no vocab":               {[]byte(`{"model":{"type":"BPE","merges":[]}}`), "", "no vocab"},
		"model is a text":        {edit(t, "BPE", "model"), "", "model: want an object"},
		"unigram":                {edit(t, "Unigram", "model", "type"), "", "model: Unigram is not supported; supported: BPE"},
		"a real unigram":         {[]byte(`{"model":{"type":"Unigram","unk_id":0,"vocab":[["a",0.5]]}}`), "", "model: Unigram is not supported"},
		"word pieces":            {[]byte(`{"model":{"type":"WordPiece","unk_token":"u","max_input_chars_per_word":9,"vocab":{}}}`), "", "model: WordPiece is not supported"},
		"words":                  {[]byte(`{"model":{"type":"WordLevel","unk_token":"u","vocab":{}}}`), "", "model: WordLevel is not supported"},
		"no type":                {[]byte(`{"model":{"vocab":{}}}`), "", "model: something without a type"},
		"dropout":                {edit(t, 0.1, "model", "dropout"), "", "dropout"},
		"suffix":                 {edit(t, "</w>", "model", "end_of_word_suffix"), "", "end_of_word_suffix"},
		"prefix":                 {edit(t, "##", "model", "continuing_subword_prefix"), "", "continuing_subword_prefix"},
		"model's unknown key":    {edit(t, 1, "model", "novelty"), "", `model: unknown field "novelty"`},
		"model's wrong type":     {edit(t, "yes", "model", "fuse_unk"), "", "model: fuse_unk"},
		"normalizer":             {edit(t, typed("Lowercase"), "normalizer"), "", "normalizer: Lowercase is not supported; supported: NFC"},
		"normalizer in one":      {edit(t, map[string]any{"type": "Sequence", "normalizers": []any{typed("Precompiled")}}, "normalizer"), "", "normalizer: Precompiled is not supported"},
		"normalizer's key":       {edit(t, map[string]any{"type": "NFC", "novelty": 1}, "normalizer"), "", `normalizer: json: unknown field "novelty"`},
		"nameless normalizer":    {edit(t, map[string]any{}, "normalizer"), "", "normalizer: something without a type"},
		"deep sequences":         {edit(t, deepSequence(20, "normalizers"), "normalizer"), "", "more than 8 sequences"},
		"long sequence":          {edit(t, map[string]any{"type": "Sequence", "normalizers": slices.Repeat([]any{typed("NFC")}, 40)}, "normalizer"), "", "more than 32 steps"},
		"empty pattern":          {edit(t, map[string]any{"type": "Replace", "pattern": map[string]any{"String": ""}, "content": "x"}, "normalizer"), "", "pattern of 0 bytes"},
		"no pattern":             {edit(t, map[string]any{"type": "Replace", "pattern": map[string]any{}, "content": "x"}, "normalizer"), "", "want a pattern of type String or Regex"},
		"long replacement":       {edit(t, map[string]any{"type": "Replace", "pattern": map[string]any{"String": "a"}, "content": strings.Repeat("x", 300)}, "normalizer"), "", "content: 300 bytes"},
		"pre-tokenizer":          {edit(t, typed("BertPreTokenizer"), "pre_tokenizer"), "", "pre_tokenizer: BertPreTokenizer is not supported; supported: ByteLevel"},
		"no prefix space":        {edit(t, typed("ByteLevel"), "pre_tokenizer"), "", "does not say add_prefix_space"},
		"which digits":           {edit(t, typed("Digits"), "pre_tokenizer"), "", "individual_digits of Digits is missing"},
		"split behavior":         {edit(t, map[string]any{"type": "Split", "pattern": map[string]any{"String": "a"}, "behavior": "Vanish", "invert": false}, "pre_tokenizer"), "", `behavior "Vanish"`},
		"split pattern":          {edit(t, splitBy(`(?<=a)b`), "pre_tokenizer"), "", `pattern "(?<=a)b": at byte 0: a group of kind "(?<=" is not supported`},
		"metaspace replacement":  {edit(t, map[string]any{"type": "Metaspace", "replacement": "ab"}, "pre_tokenizer"), "", `replacement "ab", want one character`},
		"metaspace scheme":       {edit(t, map[string]any{"type": "Metaspace", "replacement": "_", "prepend_scheme": "often"}, "pre_tokenizer"), "", `prepend_scheme "often"`},
		"metaspace twice":        {edit(t, map[string]any{"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "add_prefix_space": false}, "pre_tokenizer"), "", "add_prefix_space is false"},
		"decoder":                {edit(t, typed("WordPiece"), "decoder"), "", "decoder: WordPiece is not supported; supported: ByteFallback"},
		"no decoder":             {edit(t, nil, "decoder"), "", "decoder: nothing is not supported"},
		"strip's end":            {edit(t, map[string]any{"type": "Strip", "content": " ", "start": 0, "stop": 1}, "decoder"), "", "stop of Strip is 1"},
		"bytes after fuse":       {edit(t, map[string]any{"type": "Sequence", "decoders": []any{typed("Fuse"), typed("ByteFallback")}}, "decoder"), "", "ByteFallback after"},
		"replace after fuse":     {edit(t, map[string]any{"type": "Sequence", "decoders": []any{typed("Fuse"), map[string]any{"type": "Replace", "pattern": map[string]any{"String": "ab"}, "content": "x"}}}, "decoder"), "", "Replace of more than a character"},
		"post-processor":         {edit(t, typed("BertProcessing"), "post_processor"), "", "post_processor: BertProcessing is not supported; supported: ByteLevel"},
		"template id":            {edit(t, template(5000), "post_processor"), "", "token 5000 begins or ends a text"},
		"template negative":      {edit(t, template(-1), "post_processor"), "", "token -1 begins or ends a text"},
		"template no ids":        {edit(t, template(), "post_processor"), "", "has no ids"},
		"template no text":       {edit(t, map[string]any{"type": "TemplateProcessing", "single": []any{}}, "post_processor"), "", "template without the text"},
		"template of a pair":     {edit(t, map[string]any{"type": "TemplateProcessing", "single": []any{map[string]any{"Sequence": map[string]any{"id": "B", "type_id": 0}}}}, "post_processor"), "", "not special tokens around one text"},
		"merge of strangers":     {edit(t, []any{"a !?"}, "model", "merges"), "", `"a" and "!?" do not merge to tokens`},
		"merge of three":         {edit(t, []any{"a b c"}, "model", "merges"), "", "want two tokens"},
		"merge of three parts":   {edit(t, []any{[]any{"a", "b", "c"}}, "model", "merges"), "", "merge 0: more than 2 parts"},
		"merge of one":           {edit(t, []any{[]any{"a"}}, "model", "merges"), "", "want two tokens"},
		"merge of nothing":       {edit(t, []any{" a"}, "model", "merges"), "", "want two tokens"},
		"merge of a number":      {edit(t, []any{1}, "model", "merges"), "", "want a string"},
		"added empty":            {added(func(a map[string]any) { a["content"] = "" }), "", "0 bytes, want 1 to 256"},
		"added long":             {added(func(a map[string]any) { a["content"] = strings.Repeat("x", 257) }), "", "257 bytes, want 1 to 256"},
		"added huge id":          {added(func(a map[string]any) { a["id"] = 1 << 30 }), "", "id 1073741824, but 2048 is the first that is free"},
		"added after a gap":      {added(func(a map[string]any) { a["id"] = 2050 }), "", "id 2050, but 2048 is the first that is free"},
		"added elsewhere":        {added(func(a map[string]any) { a["content"] = "!" }), "", "id 2048, but 3 in the vocabulary"},
		"added on top":           {added(func(a map[string]any) { a["id"] = 3 }), "", "id 3, but 2048"},
		"added vanishes":         {withReplace(added(func(a map[string]any) { a["normalized"] = true }), "<x>", ""), "", "nothing is left of it after normalisation"},
		"added unknown key":      {added(func(a map[string]any) { a["novelty"] = true }), "", `unknown field "novelty"`},
		"config broken":          {read(t, "tokenizer.json"), "{", "tokenizer_config.json"},
		"config too large":       {read(t, "tokenizer.json"), strings.Repeat(" ", maxConfigBytes+1), "tokenizer_config.json: 8388609 bytes"},
		"config wants one":       {read(t, "tokenizer.json"), `{"add_bos_token":true}`, "add_bos_token is true, but there is no bos_token"},
		"config wants an end":    {read(t, "tokenizer.json"), `{"add_eos_token":true,"eos_token":null}`, "add_eos_token is true, but there is no eos_token"},
		"config wants another":   {read(t, "tokenizer.json"), `{"add_bos_token":true,"bos_token":"<begin>"}`, `bos_token "<begin>" is not in the vocabulary`},
		"config of a wrong type": {read(t, "tokenizer.json"), `{"add_bos_token":"yes"}`, "tokenizer_config.json: json: cannot unmarshal"},
	} {
		var config []byte
		if c.config != "" {
			config = []byte(c.config)
		}
		_, err := New(c.file, config, -1)
		if err == nil || !strings.Contains(err.Error(), c.want) || diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) == 0 {
			t.Errorf("%s: got %v\nwant %q", name, err, c.want)
		}
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
		"model": model, "pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true}, "decoder": map[string]any{"type": "ByteLevel"},
		"added_tokens": []any{
			map[string]any{"id": 263, "content": "<|x|>", "special": true}, map[string]any{"id": 264, "content": "<|x|>!", "special": false},
			map[string]any{"id": 265, "content": "|x", "special": true},
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

func pieces(tok Tokenizer, ids []int32) string {
	out := make([]string, len(ids))
	for i, id := range ids {
		out[i] = tok.DecodeSpecial([]int32{id})
	}
	return strings.Join(out, "/")
}

func TestMergesAndSplitting(t *testing.T) {
	tok := ladder(t, nil)
	for text, want := range map[string]string{
		"a": "a", "aa": "aa", "aaa": "aaa", "aaaa": "aa/aa", "aaaaa": "aa/aaa", "aaaaaaa": "aa/aa/aaa",
		"abc": "a/bc", "aab": "aa/b", "ab": "ab", "xaay": "x/aa/y",
		"a\n\n\nb": "a/\n\n/\n/b", "a\n\n": "a/\n\n", "a   b": "a/  / /b", "a   a": "a/  / a", " a": " a", "\n a": "\n/ a",
		"<|x|>!<|x|>a|x": "<|x|>!/<|x|>/a/|x",
	} {
		ids, err := tok.Encode(text)
		if got := pieces(tok, ids); err != nil || got != want {
			t.Errorf("%q: got %q, %v, want %q", text, got, err, want)
		}
	}
	if got := tok.Decode([]int32{264, 263, 265, 9999, -1, 299}); got != "<|x|>!" {
		t.Errorf("got %q", got)
	}
	whole := ladder(t, map[string]any{"ignore_merges": true, "merges": []string{}})
	if ids, _ := whole.Encode("aaa aaaa"); pieces(whole, ids) != "aaa/ /a/a/a/a" {
		t.Errorf("ignore_merges: got %q", pieces(whole, ids))
	}
}

// The rule the merging follows, written down directly: merge the leftmost of the lowest rank until
// there is none.
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
		if got, err := tok.merge(nil, word); err != nil || !slices.Equal(got, slow(word)) {
			t.Fatalf("%q: got %v, %v, want %v", word, got, err, slow(word))
		}
	})
}

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
	s := tok.Stream()
	ids, err := tok.Encode("世")
	if err != nil || len(ids) < 2 {
		t.Fatalf("got %v, %v", ids, err)
	}
	for i, id := range ids {
		if got := s.Push(id); (got == "世") != (i == len(ids)-1) || got != "" && got != "世" {
			t.Errorf("after id %d: %q", i, got)
		}
	}
}

// One U+FFFD for each longest piece that cannot become a character.
func TestInvalidBytes(t *testing.T) {
	for in, want := range map[string]string{
		"\xff": "\ufffd", "\xff\xfe": "\ufffd\ufffd", "a\xe4\xbdb": "a\ufffdb", "\xe4\xbd": "\ufffd", "\xf0\x9f\x98": "\ufffd",
		"\xe4\xe4\xbd\xa0": "\ufffd你", "\xc0\x80": "\ufffd\ufffd", "\xed\xa0\x80": "\ufffd\ufffd\ufffd", "\ufffd": "\ufffd",
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

func TestLongAndConcurrentInput(t *testing.T) {
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
	var wg sync.WaitGroup
	want, _ := tok.Encode(string(read(t, "valid.txt")[:20000]))
	for range 4 {
		wg.Go(func() {
			if got, err := tok.Encode(string(read(t, "valid.txt")[:20000])); err != nil || !slices.Equal(got, want) {
				t.Error("concurrent use changes the result")
			}
		})
	}
	wg.Wait()
}

func FuzzTokenizerJSON(f *testing.F) {
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"decoder":{"type":"ByteLevel"}}`), []byte(`{"add_bos_token":true,"bos_token":"a"}`), "ab")
	f.Add([]byte(`{"model":{"vocab":{"<unk>":0,"\u2581":1,"a":2,"\u2581a":3},"merges":[["\u2581","a"]],"unk_token":"<unk>","fuse_unk":true,"byte_fallback":true},"normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},{"type":"Replace","pattern":{"Regex":"\\s+"},"content":"\u2581"}]},"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}}`), []byte(`{}`), " a b\u2581")
	// Every kind of part, around a vocabulary that is small enough to be worth changing.
	for field, parts := range map[string][]string{
		"normalizer": {`{"type":"NFC"}`, `{"type":"Sequence","normalizers":[{"type":"NFKD"},{"type":"Prepend","prepend":"b"}]}`, `{"type":"Replace","pattern":{"String":"a"},"content":"bb"}`},
		"pre_tokenizer": {`{"type":"Metaspace","replacement":"_","prepend_scheme":"first","split":true}`, `{"type":"Split","pattern":{"Regex":"\\s*a+(?!b)|[^a]{1,2}"},"behavior":"MergedWithNext","invert":true}`, `{"type":"Digits","individual_digits":false}`,
			`{"type":"Punctuation","behavior":"Contiguous"}`, `{"type":"WhitespaceSplit"}`, `{"type":"Whitespace"}`, `{"type":"Sequence","pretokenizers":[{"type":"ByteLevel","add_prefix_space":true,"use_regex":false},{"type":"Split","pattern":{"String":"b"},"behavior":"Removed","invert":false}]}`},
		"decoder":        {`{"type":"Metaspace","replacement":"a","prepend_scheme":"always"}`, `{"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Strip","content":"a","start":2,"stop":0}]}`},
		"post_processor": {`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"x","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"x","type_id":0}}],"pair":[],"special_tokens":{"x":{"id":"x","ids":[1,2],"tokens":["b"]}}}`},
		"added_tokens":   {`[{"id":5,"content":"<x>","single_word":true,"lstrip":true,"rstrip":true,"normalized":true,"special":true},{"id":6,"content":"a b","single_word":false,"lstrip":true,"rstrip":true,"normalized":false,"special":false}]`},
	} {
		for _, p := range parts {
			doc := `{"model":{"vocab":{"a":0,"b":1,"ab":2,"<0x61>":3,"_":4},"merges":["a b"],"byte_fallback":true},"` + field + `":` + p
			if field != "decoder" {
				doc += `,"decoder":{"type":"Fuse"}`
			}
			f.Add([]byte(doc+"}"), []byte(`{"add_eos_token":true,"eos_token":{"content":"b"}}`), "a b <x>  ab12,._")
		}
	}
	f.Add(edit(f, template(1), "post_processor"), []byte(`null`), "In the <s> beginning")
	f.Add(read(f, "tokenizer.json"), read(f, "tokenizer_config.json"), "a\xff\n\n b'll")
	for _, name := range kindNames(f) {
		_, k := kind(f, name)
		f.Add([]byte(k.Tokenizer), []byte(nil), "The river [tok] was\u00a0wide \u0301\U0001f600 123")
	}
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

func FuzzPattern(f *testing.F) {
	var file [][2]json.RawMessage
	readJSONFile(f, "testdata/patterns.json", &file)
	for _, entry := range file[:100] {
		var pattern string
		if err := json.Unmarshal(entry[0], &pattern); err != nil {
			f.Fatal(err)
		}
		f.Add(pattern, "aab bc\n1é.AKſ's  ")
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
		if err := a.regions(text, func(from, to int, match bool) {
			if from != at || to <= from || match && a.mustMatch(text, from) != to {
				t.Errorf("%q on %q: piece %d to %d after %d", pattern, text, from, to, at)
			}
			at = to
		}); err == nil && at != len(text) {
			t.Errorf("%q on %q: the pieces end at %d", pattern, text, at)
		}
	})
}

// mustMatch is the end of the match at from.
func (a *automaton) mustMatch(text string, from int) int {
	end, _ := a.match(text, from, nil)
	return end
}

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
		// Byte-level encoding without normalisation loses nothing.
		switch names[i] {
		case "gpt2", "gpt2-split", "llama3", "cl100k", "o200k", "kimi", "deepseek-coder", "deepseek-v3", "starcoder", "bloom":
			want, _ := appendValid(nil, []byte(text), true)
			if got := tok.DecodeSpecial(ids); got != string(want) {
				t.Errorf("%q comes back as %q", text, got)
			}
		}
	})
}

// Files as large as is permitted that try to fill memory. What the garbage collector did not see at once
// counts too, so the true peak is lower.
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
	for name, c := range map[string]struct {
		file func() []byte
		want string
	}{
		"many merges": {func() []byte {
			return fill(maxFileBytes, `{"model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"`, `,"a b"`, `]}}`)
		}, "merges: more than 2097152"},
		"many tokens": {vocab, "decoder: nothing is not supported"},
		"many added tokens": {func() []byte {
			return fill(maxFileBytes/8, `{"model":{"vocab":{},"merges":[]},"decoder":{"type":"Fuse"},"added_tokens":[{}`, `,{}`, `]}`)
		}, "added token"},
		"long key":   {func() []byte { return fill(maxFileBytes/8, `{"`, `\n`, `":1}`) }, "unknown field"},
		"long token": {func() []byte { return fill(maxFileBytes/8, `{"model":{"type":"BPE","vocab":{"`, `\n`, `":1}}}`) }, "bytes, want 1 to 4096"},
		"long part": {func() []byte {
			return fill(maxFileBytes/8, `{"normalizer":{"type":"Sequence","normalizers":[{}`, `,{}`, `]}}`)
		}, "want at most 1048576"},
		"nesting": {func() []byte { return fill(maxFileBytes/8, `{"normalizer":`, `[`, ``) }, "not valid JSON"},
	} {
		file := c.file()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := New(file, nil, -1)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 1000 {
			t.Errorf("%s: got %.300v, want %q", name, err, c.want)
		}
		if filled := (after.TotalAlloc - before.TotalAlloc) >> 20; filled > 448 {
			t.Errorf("%s: %d MiB were filled beside the file", name, filled)
		}
	}
}

// Of added tokens that normalisation makes equal, the first special one counts, or the first. The reference finds one of
// them too, but another in each process (PyPI tokenizers 0.23.3).
func TestTokensThatNormalisationMakesEqual(t *testing.T) {
	token := func(id int, content string, special bool) string {
		return fmt.Sprintf(`{"id":%d,"content":%q,"normalized":true,"special":%t}`, id, content, special)
	}
	for _, c := range []struct {
		tokens []string
		want   int32
	}{
		{[]string{token(1, "b", false), token(2, "c", false), token(3, "d", false)}, 1},
		{[]string{token(1, "b", false), token(2, "c", true), token(3, "d", true)}, 2},
		{[]string{token(1, "d", true), token(2, "c", true), token(3, "b", false)}, 1},
	} {
		file := `{"model":{"type":"BPE","vocab":{"a":0},"merges":[]},"decoder":{"type":"Fuse"},"normalizer":{"type":"Replace",` +
			`"pattern":{"Regex":"[b-z]"},"content":"x"},"added_tokens":[` + strings.Join(c.tokens, ",") + `]}`
		tok, err := New([]byte(file), nil, -1)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tok.Encode("abac"); err != nil || !slices.Equal(got, []int32{0, c.want, 0, c.want}) {
			t.Errorf("%v: got %v, %v, want %d for both", c.tokens, got, err, c.want)
		}
	}
}

// Of equal pairs the later merge counts. A text that begins as the first line of a file of merges is no merge, a list of
// two is. Ids are those of the reference.
func TestWhichMergesCount(t *testing.T) {
	const vocab = `{"a":0,"b":1,"ab":2,"#version:":3,"0.2":4,"#version:0.2":5,"c":6,"bc":7}`
	for merges, want := range map[string][]int32{
		`["#version: 0.2","a b"]`: {2, 6}, `["a b","#version: x"]`: {2, 6}, `[["#version:","0.2"]]`: {0, 1, 6},
		`["a b","b c","a b"]`: {0, 7},
	} {
		for _, model := range []string{`"vocab":` + vocab + `,"merges":` + merges, `"merges":` + merges + `,"vocab":` + vocab} {
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
		{`{"type":"Replace","pattern":{"String":"\n"},"content":""}`, first, "may remove or join what the text begins with"},
		{`{"type":"Replace","pattern":{"String":"  "},"content":"▁"}`, first, "may remove or join what the text begins with"},
		{`{"type":"Replace","pattern":{"Regex":"\\s+"},"content":"▁"}`, first, "may remove or join what the text begins with"},
		{"null", sequence(first + "," + first), "behind another Metaspace"},
		{"null", sequence(`{"type":"ByteLevel","add_prefix_space":false},` + first), "behind another Metaspace or ByteLevel"},
	} {
		file := fmt.Sprintf(`{"model":{"type":"BPE","vocab":{"a":0,"\u2581":1},"merges":[]},"normalizer":%s,"pre_tokenizer":%s,`+
			`"decoder":{"type":"Fuse"}}`, c.normalizer, c.splitters)
		_, err := New([]byte(file), nil, -1)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s behind %s: got %v, want %q", c.splitters, c.normalizer, err, c.want)
		}
	}
}

// A token of white space that lies in what the token before took along is none: ids are those of the reference.
func TestTokensInWhiteSpaceTakenAlong(t *testing.T) {
	tok := ladder(t, nil)
	space := addedToken{ID: 300, Content: " ", LStrip: true, RStrip: true}
	tok.(*pipeline).before = newFinder([]addedToken{space}, []string{" "})
	for text, want := range map[string][]int32{"a   a": {97, 300, 97}, "   ": {300}, "  a ": {300, 97, 300}} {
		if got, err := tok.Encode(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
}
