package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// kindFile is a tokenizer of testdata/kinds, and what the reference makes of texts with it.
type kindFile struct {
	Tokenizer      json.RawMessage
	IDs            [][]int32
	Decoded, Plain []*string // null where it is the text
	Prompt         []int32
	Lists          []struct {
		IDs            []int32
		Decoded, Plain string
	}
}

// kindNames are the names of those tokenizers.
func kindNames(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/kinds/*.json")
	if err != nil || len(files) < 30 {
		t.Fatalf("testdata/kinds: got %d files, %v", len(files), err)
	}
	var out []string
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".json"); name != "texts" {
			out = append(out, name)
		}
	}
	return out
}

// readJSONFile decodes a file.
func readJSONFile(t testing.TB, path string, v any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// kind is one of those tokenizers.
func kind(t testing.TB, name string) (Tokenizer, *kindFile) {
	t.Helper()
	var f kindFile
	readJSONFile(t, filepath.Join("testdata/kinds", name+".json"), &f)
	tok, err := New(f.Tokenizer, nil, -1)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return tok, &f
}

// streamed is the text of ids that come one by one.
func streamed(tok Tokenizer, ids []int32) string {
	s, out := tok.Stream(), ""
	for _, id := range ids {
		out += s.Push(id)
	}
	return out + s.Flush()
}

// Every kind of tokenizer gives the ids and texts that the reference gives, at once and one by one.
func TestKindsGiveWhatTheReferenceGives(t *testing.T) {
	var texts []string
	readJSONFile(t, "testdata/kinds/texts.json", &texts)
	if len(texts) < 100 {
		t.Fatalf("got %d texts", len(texts))
	}
	for _, name := range kindNames(t) {
		t.Run(name, func(t *testing.T) {
			tok, f := kind(t, name)
			decoded := func(ids []int32, want, plain string) {
				t.Helper()
				if got := tok.DecodeSpecial(ids); got != want {
					t.Errorf("%v: got %q, want %q", ids, got, want)
				}
				if got := tok.Decode(ids); got != plain {
					t.Errorf("%v without special tokens: got %q, want %q", ids, got, plain)
				}
				if got := streamed(tok, ids); got != plain {
					t.Errorf("%v one by one: got %q, want %q", ids, got, plain)
				}
			}
			or := func(s *string, text string) string {
				if s == nil {
					return text
				}
				return *s
			}

			if len(f.IDs) != len(texts) || len(f.Lists) == 0 {
				t.Fatalf("%d texts, %d lists", len(f.IDs), len(f.Lists))
			}
			for i, text := range texts {
				ids, err := tok.Encode(text)
				if err != nil || !slices.Equal(ids, f.IDs[i]) {
					t.Errorf("%q:\n got %v, %v\nwant %v", text, ids, err, f.IDs[i])
				}
				decoded(f.IDs[i], or(f.Decoded[i], text), or(f.Plain[i], text))
			}
			for _, l := range f.Lists {
				decoded(l.IDs, l.Decoded, l.Plain)
			}
			ids, err := tok.Prompt("Hi there")
			if err != nil || !slices.Equal(ids, f.Prompt) {
				t.Errorf("prompt: got %v, %v, want %v", ids, err, f.Prompt)
			}
		})
	}
}
