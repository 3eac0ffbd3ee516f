package tokenizer

import (
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"
)

// formNames are the normal forms, in the order of the reference's file.
var formNames = []string{"NFC", "NFD", "NFKC", "NFKD"}

// Normal forms are those of the reference.
func TestFormsGiveWhatTheReferenceGives(t *testing.T) {
	var file [][]string // text, NFC, NFD, NFKC, NFKD
	readJSONFile(t, "testdata/normal.json", &file)
	if len(file) < 400 {
		t.Fatalf("got %d texts", len(file))
	}
	changed := map[string]int{}
	for _, entry := range file {
		for i, name := range formNames {
			got := forms[name].apply(entry[0])
			if got != entry[i+1] {
				t.Errorf("%s of %+q: got %+q, want %+q", name, entry[0], got, entry[i+1])
			}
			if got != entry[0] {
				changed[name]++
			}
		}
	}
	for _, name := range formNames {
		if changed[name] < 100 {
			t.Errorf("%s changes only %d texts", name, changed[name])
		}
	}
}

// A normal form of a normal form is itself, and forms of forms are those that Unicode says.
func TestFormsAgreeWithEachOther(t *testing.T) {
	f := forms
	rapid.Check(t, func(t *rapid.T) {
		composing := []rune("aeg\u0301\u0327\u0323\u0345\u1100\u1161\u11a8가각\u212b\ufb01\u0344")
		text := rapid.StringOf(rapid.OneOf(rapid.Rune(), rapid.SampledFrom(composing))).Draw(t, "text")
		text = strings.ToValidUTF8(text, "")
		for _, name := range formNames {
			once := f[name].apply(text)
			if twice := f[name].apply(once); twice != once {
				t.Fatalf("%s of %+q: %+q, again %+q", name, text, once, twice)
			}
		}
		if a, b := f["NFC"].apply(f["NFD"].apply(text)), f["NFC"].apply(text); a != b {
			t.Fatalf("NFC of %+q: %+q, of its NFD %+q", text, b, a)
		}
		if a, b := f["NFKC"].apply(text), f["NFC"].apply(f["NFKD"].apply(text)); a != b {
			t.Fatalf("NFKC of %+q: %+q, NFC of its NFKD %+q", text, a, b)
		}
	})
}

// Any number of marks is sorted, and in no quadratic time.
func TestManyMarks(t *testing.T) {
	const each = 1 << 18
	marks := strings.Repeat("\u0301\u0327", each)

	got := forms["NFC"].apply("a" + marks)

	want := "\u00e1" + strings.Repeat("\u0327", each) + strings.Repeat("\u0301", each-1)
	if got != want {
		t.Errorf("%d marks come out as %d bytes that begin %+q", 2*each, len(got), got[:min(20, len(got))])
	}
}

// The tables say of old characters what Go's say of them; new ones differ with the version of Unicode.
func TestTablesAreUnicode(t *testing.T) {
	sets := unicodeSets()
	for name, table := range map[string]*unicode.RangeTable{
		"L": unicode.L, "M": unicode.M, "N": unicode.N, "P": unicode.P, "S": unicode.S, "Z": unicode.Z,
		"Lu": unicode.Lu, "Ll": unicode.Ll, "Nd": unicode.Nd, "Han": unicode.Han, "space": unicode.White_Space,
	} {
		differ := 0
		for r := rune(0); r <= unicode.MaxRune; r++ {
			old := r < 0x250 || unicode.Is(table, r)
			if old && sets[name].has(r) != unicode.Is(table, r) {
				differ++
			}
		}
		if differ > 5 {
			t.Errorf("%s differs at %d characters", name, differ)
		}
	}
	for _, name := range []string{"word", "numeric", "punctuation", "boundary", "compose", "ccc230", "Thai", "Cn"} {
		if len(sets[name]) == 0 {
			t.Errorf("no set %s", name)
		}
	}
}
