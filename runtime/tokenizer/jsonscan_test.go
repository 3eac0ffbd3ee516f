package tokenizer

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// jsonSeeds are documents, and some that are none.
var jsonSeeds = []string{
	`{"a":[1,-0.5e+3,0,true,false,null],"":{"\u00e9\ud83d\ude00\ud800\u0041\udc00":"é😀\"\\\/\b\f\n\r\t"}}`,
	" \n\t\r[ ]  ", `{}`, `"a longer text without any escape"`, `"`, `"\`, `"\u12`, `"\uD83D\u`, `[1,]`, `[,1]`,
	`{"a"}`, `{"a":1,}`, `{a:1}`, `01`, `1.`, `-`, `1e`, `.5`, `+1`, `tru`, `nulll`, `1 2`, "\"a\x00\"", "\"\x1f\"",
	"\"\xff\"", "\"\xc3\"", "\"\xed\xa0\x80\"", "\"\xc0\x80\"", "\"\xf4\x90\x80\x80\"", `"1234567"`, `"12345678"`,
	`"123456\"8"`, "        1", "[\x00]", "\xef\xbb\xbf1",
}

// checkScanner compares the scanner with encoding/json: what is a document, and which values it has.
func checkScanner(t interface{ Errorf(string, ...any) }, data []byte) {
	err := document(data, (*scanner).skip)
	valid := json.Valid(data) && utf8.Valid(data)
	if (err == nil) != valid {
		t.Errorf("%q: got %v, want valid %v", data, err, valid)
	}
	if err != nil {
		return
	}

	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var got, want any
	if err := decoder.Decode(&want); err != nil {
		t.Errorf("%q: %v", data, err)
	}
	err = document(data, func(s *scanner) (err error) {
		got, err = decoded(s)
		return err
	})
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%q: got %v, %v, want %v", data, got, err, want)
	}
}

// decoded reads a value by the methods for its type.
func decoded(s *scanner) (any, error) {
	switch s.next() {
	case '{':
		out := map[string]any{}
		return out, s.object(func(key []byte) (err error) {
			out[string(key)], err = decoded(s)
			return err
		})
	case '[':
		out := []any{}
		err := s.list(func() error {
			item, err := decoded(s)
			out = append(out, item)
			return err
		})
		return out, err
	case '"':
		text, err := s.text()
		return string(text), err
	case 't', 'f':
		return s.truth()
	}
	raw, err := s.raw()
	if err == nil && raw.isNull() {
		return nil, nil
	}
	return json.Number(raw), err
}

// The scanner takes what encoding/json takes, and gives the same values.
func TestScannerAgreesWithEncodingJSON(t *testing.T) {
	for _, seed := range jsonSeeds {
		checkScanner(t, []byte(seed))
	}
	for _, depth := range []int{10000, 10001} {
		checkScanner(t, []byte(strings.Repeat("[", depth)+strings.Repeat("]", depth)))
	}

	// Every byte in each place of the eight that are looked at together.
	for char := range 256 {
		for before := range 9 {
			checkScanner(t, []byte(`"`+strings.Repeat("x", before)+string([]byte{byte(char)})+`yyyyyyyyy"`))
		}
	}

	pieces := []string{"{", "}", "[", "]", ",", ":", " ", "\n        ", `"`, `"a"`, `"key":`, `\`, `\u0041`, `\ud83d`,
		`\ude00`, "é", "12345678", "0", "-", ".", "e", "true", "null", "\xc3", "\x01"}
	rapid.Check(t, func(t *rapid.T) {
		checkScanner(t, []byte(strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 12).Draw(t, "pieces"), "")))
	})
}

// So it does of any bytes.
func FuzzScanner(f *testing.F) {
	for _, seed := range jsonSeeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkScanner(t, data) })
}

// An error of syntax says at which byte it is.
func TestSyntaxErrorsSayWhere(t *testing.T) {
	for document, want := range map[string]string{
		`{"model":{"vocab":{"a":0,}}}`:  "tokenizer.json: not valid JSON in UTF-8 (at byte 25)",
		"{\"model\":{\"vocab\":{\"\xff": "tokenizer.json: not valid JSON in UTF-8 (at byte 20)",
		`{"version":"1.0"} x`:           "tokenizer.json: no model",
		`{"normalizer":nil}`:            "tokenizer.json: not valid JSON in UTF-8 (at byte 14)",
	} {
		if _, err := New([]byte(document), nil, -1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", document, err, want)
		}
	}
}
