package bundle

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/diag"
)

func TestRatchetsFile(t *testing.T) {
	whole := Ratchets{{"com.example.a", 1, 0}, {"com.example.b", 2, 7}}
	const text = `{"schema":"hetc.ratchet/1","accepted":[{"product":"com.example.a","generation":1,"security_version":0},` +
		`{"product":"com.example.b","generation":2,"security_version":7}]}` + "\n"
	if data := must(whole.Encode()); string(data) != text {
		t.Errorf("got %q, want %q", data, text)
	}
	for _, form := range []string{text, strings.TrimSuffix(text, "\n")} {
		if got := must(ParseRatchets([]byte(form))); !reflect.DeepEqual(got, whole) {
			t.Errorf("got %v, want %v", got, whole)
		}
	}
	if got := must(ParseRatchets(must(Ratchets(nil).Encode()))); len(got) != 0 {
		t.Errorf("got %v, want none", got)
	}
	for name, broken := range map[string]string{
		"empty":             "",
		"cut off":           text[:60],
		"two line feeds":    text + "\n",
		"white space":       strings.Replace(text, ",", ", ", 1),
		"another schema":    strings.Replace(text, "ratchet/1", "ratchet/2", 1),
		"order":             strings.NewReplacer("example.a", "example.b", "example.b", "example.a").Replace(text),
		"one product twice": strings.Replace(text, "example.b", "example.a", 1),
		"no product":        strings.Replace(text, "com.example.a", "", 1),
		"not a label":       strings.Replace(text, "com.example.a", "COM", 1),
		"generation 0":      strings.Replace(text, `"generation":1`, `"generation":0`, 1),
		"negative":          strings.Replace(text, `"security_version":7`, `"security_version":-7`, 1),
		"too large":         strings.Replace(text, `"security_version":7`, `"security_version":2147483648`, 1),
		"unknown member":    strings.Replace(text, `"accepted"`, `"more":1,"accepted"`, 1),
		"too many": `{"schema":"hetc.ratchet/1","accepted":[` +
			strings.Repeat(`{"product":"a","generation":1,"security_version":0},`, maxRatchets) + `{}]}`,
		"more than it holds": strings.Repeat(" ", MaxRatchetsBytes+1),
	} {
		_, err := ParseRatchets([]byte(broken))
		if diag.ClassOf(err) != diag.ClassInput || len(diag.HintsOf(err)) == 0 ||
			!strings.Contains(err.Error(), "bundle.state") {
			t.Errorf("%s: got %v, hints %q", name, err, diag.HintsOf(err))
		}
	}
}

func TestRatchetsRise(t *testing.T) {
	const p = "com.example.p"
	stored := Ratchets{{"com.example.a", 1, 9}, {p, 2, 5}, {"com.example.z", 1, 1}}
	for _, test := range []struct {
		ran    Ratchet
		want   Ratchet
		raised bool
	}{
		{Ratchet{p, 2, 6}, Ratchet{p, 2, 6}, true},
		{Ratchet{p, 2, 5}, Ratchet{p, 2, 5}, false},
		{Ratchet{p, 2, 4}, Ratchet{p, 2, 5}, false},
		{Ratchet{p, 1, 9}, Ratchet{p, 2, 5}, false},
		{Ratchet{p, 3, 0}, Ratchet{p, 3, 0}, true}, // a new generation starts a new count
		{Ratchet{"com.example.new", 1, 0}, Ratchet{"com.example.new", 1, 0}, true},
	} {
		before := slices.Clone(stored)
		got, raised := stored.Raised(test.ran)
		if raised != test.raised || *got.Of(test.ran.Product) != test.want {
			t.Errorf("%v: got %v, raised %v, want %v, %v", test.ran, got, raised, test.want, test.raised)
		}
		if err := got.check(); err != nil || *got.Of("com.example.a") != stored[0] ||
			*got.Of("com.example.z") != stored[len(stored)-1] {
			t.Errorf("%v: got %v (%v): other products changed", test.ran, got, err)
		}
		if !reflect.DeepEqual(stored, before) {
			t.Errorf("%v: the argument became %v", test.ran, stored)
		}
	}
}

// Only the stored version of the bundle's own product counts.
func TestRatchetsOfSeveralProducts(t *testing.T) {
	recipe := baseRecipe() // security version 4
	path := filepath.Join(t.TempDir(), "a.hetb")
	check(t, os.WriteFile(path, recipe.build(), 0o600))
	for _, test := range []struct {
		stored Ratchets
		step   Step
	}{
		{nil, ""},
		{Ratchets{{"com.example.other", 1, 5}}, ""},
		{Ratchets{{"com.example.other", 1, 5}, {"com.example.test", 1, 4}, {"com.example.zzz", 1, 5}}, ""},
		{Ratchets{{"com.example.other", 1, 0}, {"com.example.test", 1, 5}, {"com.example.zzz", 1, 0}}, stepPolicy},
		{Ratchets{{"com.example.test", 2, 0}}, stepPolicy},
	} {
		opened, err := Open(path, Options{Trust: ring(1, keyA), Policy: Policy{Stored: test.stored}})
		if StepOf(err) != test.step {
			t.Errorf("%v: got %v, want a refusal by %q", test.stored, err, test.step)
		}
		if err == nil {
			check(t, opened.Close())
		}
	}
}

func FuzzRatchets(f *testing.F) {
	f.Add(must(Ratchets(nil).Encode()))
	f.Add(must(Ratchets{{"com.example.a", 1, 0}, {"com.example.b", 2, 7}}.Encode()))
	f.Add([]byte(`{"schema":"hetc.ratchet/1","accepted":[{"product":"a","generation":2147483647,"security_version":2147483647}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRatchets(data)
		if err != nil {
			return
		}
		if again := must(r.Encode()); !bytes.Equal(bytes.TrimSuffix(again, []byte("\n")),
			bytes.TrimSuffix(data, []byte("\n"))) {
			t.Fatal("accepted in a second form")
		}
		for i := range r {
			if *r.Of(r[i].Product) != r[i] {
				t.Fatalf("%v is not found", r[i])
			}
			up := r[i]
			up.Generation = min(up.Generation+1, maxCounter)
			got, raised := r.Raised(up)
			if err := got.check(); err != nil || raised != (up != r[i]) {
				t.Fatalf("raised to %v: %v, %v", up, raised, err)
			}
		}
	})
}
