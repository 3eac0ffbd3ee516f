package bundle

import (
	"fmt"
	"strings"
	"testing"
)

// decode checks every rule twice, when it reads and when it writes again. These tests look at
// one side alone, so that neither can rot behind the other.

type document struct {
	text   string
	number int64
	list   []string
	hex    Digest
	notes  map[string]string
}

func (d *document) walk(c *codec) {
	c.object(func() {
		c.member("text")
		c.str(&d.text, 5)
		c.member("number")
		c.integer(&d.number, 1, 99)
		c.member("list")
		list(c, &d.list, 2, func(s *string) { c.str(s, 3) })
		c.member("hex")
		c.digest(&d.hex)
		manifest := Manifest{Annotations: d.notes}
		if c.optional("notes", len(manifest.Annotations) == 0) {
			manifest.walkAnnotations(c)
		}
		d.notes = manifest.Annotations
	})
}

func TestCodecReadsStrictly(t *testing.T) {
	zero := strings.Repeat("0", 64)
	form := `{"text":"%s","number":%s,"list":[%s],"hex":"%s"}`
	read := func(text string) error {
		c := &codec{buf: []byte(text)}
		new(document).walk(c)
		return c.err
	}
	if err := read(fmt.Sprintf(form, "abcde", "99", `"a","b"`, zero)); err != nil {
		t.Fatal(err)
	}
	var notes []string
	for i := range maxAnnotations + 1 {
		notes = append(notes, fmt.Sprintf(`"%03d":""`, i))
	}
	annotated := func(n int) string {
		return strings.TrimSuffix(fmt.Sprintf(form, "a", "1", "", zero), "}") + `,"notes":{` +
			strings.Join(notes[:n], ",") + "}}"
	}
	if err := read(annotated(maxAnnotations)); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"long string":       fmt.Sprintf(form, "abcdef", "1", "", zero),
		"long element":      fmt.Sprintf(form, "a", "1", `"abcd"`, zero),
		"long list":         fmt.Sprintf(form, "a", "1", `"a","b","c"`, zero),
		"number below":      fmt.Sprintf(form, "a", "0", "", zero),
		"number above":      fmt.Sprintf(form, "a", "100", "", zero),
		"leading zero":      fmt.Sprintf(form, "a", "07", "", zero),
		"no digit":          fmt.Sprintf(form, "a", "", "", zero),
		"many digits":       fmt.Sprintf(form, "a", strings.Repeat("1", 30), "", zero),
		"short digest":      fmt.Sprintf(form, "a", "1", "", zero[2:]),
		"upper-case digest": fmt.Sprintf(form, "a", "1", "", "AB"+zero[2:]),
		"no digest":         fmt.Sprintf(form, "a", "1", "", "zz"+zero[2:]),
		"many annotations":  annotated(maxAnnotations + 1),
	} {
		if err := read(text); err == nil || !strings.HasPrefix(err.Error(), "at byte ") {
			t.Errorf("%s: got %v, want an error with a position", name, err)
		}
	}
	whole := fmt.Sprintf(form, "a", "1", "", zero)
	if err := decode([]byte(whole+" "), new(document).walk); err == nil ||
		!strings.Contains(err.Error(), "after the end") {
		t.Errorf("trailing byte: %v", err)
	}
	for n := range whole {
		if read(whole[:n]) == nil {
			t.Errorf("cut to %d bytes: accepted", n)
		}
	}
}

func TestCodecWritesStrictly(t *testing.T) {
	good := func() *document { return &document{text: "abcde", number: 99, list: []string{"a", "b"}} }
	if _, err := encode(good().walk); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*document){
		"long string":  func(d *document) { d.text = "abcdef" },
		"quote":        func(d *document) { d.text = `"` },
		"backslash":    func(d *document) { d.text = `\` },
		"control":      func(d *document) { d.text = "\n" },
		"delete":       func(d *document) { d.text = "\x7f" },
		"not ascii":    func(d *document) { d.text = "é" },
		"number below": func(d *document) { d.number = 0 },
		"number above": func(d *document) { d.number = 100 },
		"negative":     func(d *document) { d.number = -1 },
		"long list":    func(d *document) { d.list = []string{"a", "b", "c"} },
		"many annotations": func(d *document) {
			d.notes = map[string]string{}
			for i := range maxAnnotations + 1 {
				d.notes[fmt.Sprint(i)] = ""
			}
		},
	} {
		d := good()
		edit(d)
		if _, err := encode(d.walk); err == nil {
			t.Errorf("%s: written", name)
		}
	}
}
