package prefix_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/planir"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/planir/prefix"
)

// small is a plan with a cache of 2*3*1 heads of 8 positions of 4 numbers, and 50 token ids.
func small() *planir.Plan {
	return &planir.Plan{Schema: planir.Schema, MaxContext: 8, KV: op.F32, Program: planir.Program{
		Buffers: []planir.Buffer{{Name: planir.Logits, Type: op.F32, Rows: 1, Cols: 50}},
		Cache:   planir.Cache{Type: op.F32, Layers: 3, KVHeads: 1, MaxContext: 8, HeadDim: 4},
	}}
}

func encoded(t testing.TB) []byte {
	t.Helper()
	computed := prefix.Prefix{Tokens: []int32{1, 49, 7}, Cache: bytes.Repeat([]byte("cache..."), 3*96/8)}
	data, err := prefix.Encode(small(), &computed)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestRoundTrip(t *testing.T) {
	data := encoded(t)
	got, err := prefix.Decode(data, small())
	if err != nil || !slices.Equal(got.Tokens, []int32{1, 49, 7}) || int64(len(got.Cache)) != prefix.Bytes(small(), 3) {
		t.Fatalf("got %+v, %v", got, err)
	}
	again, err := prefix.Encode(small(), got)
	if err != nil || !bytes.Equal(again, data) {
		t.Errorf("written again: %v", err)
	}
}

// What would not be read is not written: a whole context leaves no room for a question.
func TestEncodeRefuses(t *testing.T) {
	for want, computed := range map[string]prefix.Prefix{
		"8 tokens": {Tokens: make([]int32, 8), Cache: make([]byte, 8*96)}, "0 tokens": {},
		"287 bytes": {Tokens: []int32{1, 2, 3}, Cache: make([]byte, 3*96-1)},
	} {
		if _, err := prefix.Encode(small(), &computed); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// A prefix of another plan, model or precision, one that was cut off, and one with ids that there are not are refused.
func TestRefuses(t *testing.T) {
	data := encoded(t)
	other := small()
	other.KV, other.Program.Cache.Type = op.F16, op.F16
	model := small()
	model.Model.Digest = "another"
	for name, test := range map[string]struct {
		data []byte
		plan *planir.Plan
		want string
	}{
		"another precision": {data, other, "was computed by the plan"},
		"another model":     {data, model, "was computed by the plan"},
		"empty":             {nil, small(), "no first line"},
		"cut off":           {data[:len(data)-1], small(), "bytes of tokens and cache"},
		"too long":          {append(slices.Clone(data), 0), small(), "bytes of tokens and cache"},
		"another schema":    {bytes.Replace(data, []byte("prefix/1"), []byte("prefix/2"), 1), small(), "schema"},
		"more tokens":       {bytes.Replace(data, []byte(`:3}`), []byte(`:8}`), 1), small(), "want 1..7"},
		"no token":          {bytes.Replace(data, []byte(`:3}`), []byte(`:0}`), 1), small(), "want 1..7"},
		"another spelling":  {bytes.Replace(data, []byte(`:3}`), []byte(`: 3}`), 1), small(), "canonical"},
		"an unknown key":    {bytes.Replace(data, []byte(`"tokens"`), []byte(`"token"`), 1), small(), "unknown field"},
		"an unknown id":     {bytes.Replace(data, []byte{49, 0, 0, 0}, []byte{50, 0, 0, 0}, 1), small(), "id 50"},
		"a negative id": {bytes.Replace(data, []byte{49, 0, 0, 0}, []byte{49, 0, 0, 255}, 1), small(),
			"want 0..49"},
	} {
		if got, err := prefix.Decode(test.data, test.plan); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %+v, %v, want %q", name, got, err, test.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encoded(f))
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := prefix.Decode(data, small())
		if err != nil {
			return
		}
		if again, err := prefix.Encode(small(), got); err != nil || !bytes.Equal(again, data) {
			t.Errorf("accepted %q, and writes %q (%v)", data, again, err)
		}
	})
}
