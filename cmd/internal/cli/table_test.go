package cli

import (
	"bytes"
	"testing"
)

func TestTable(t *testing.T) {
	for _, c := range []struct {
		name   string
		header []string
		rows   [][]string
		want   string
	}{
		{"both sides", []string{"name", ">value", "x"}, [][]string{{"a", "1", ""}, {"longer name", "22222", "y"}, {"", "", ""}}, "" +
			" name         value  x \n" +
			"───────────────────────\n" +
			" a                1    \n" +
			" longer name  22222  y \n" +
			"                       \n"},
		{"no rows", []string{"name", ">v"}, nil, " name  v \n"},
		{"short and long rows", []string{"name", ">v"}, [][]string{{"a"}, {"b", "c", "d"}}, "" +
			" name  v    \n" +
			"────────────\n" +
			" a          \n" +
			" b     c  d \n"},
		{"control characters", []string{"n"}, [][]string{{"a\tb"}, {"c\nd"}}, "" +
			" n      \n" +
			"────────\n" +
			" a\\x09b \n" +
			" c\\x0ad \n"},
		{"wide characters and marks", []string{"n", ">v"}, [][]string{{"漢字", "é"}, {"abcd", "e\u0301"}, {"👍", "x"}}, "" +
			" n     v \n" +
			"─────────\n" +
			" 漢字  é \n" +
			" abcd  e\u0301 \n" +
			" 👍    x \n"},
	} {
		var out bytes.Buffer
		s := &Streams{Out: &out}
		s.Table(c.header, c.rows)
		if out.String() != c.want {
			t.Errorf("%s: got\n%swant\n%s", c.name, out.String(), c.want)
		}
		out.Reset()
		s.JSON = true
		if s.Table(c.header, c.rows); out.Len() > 0 {
			t.Errorf("%s: a table under --json", c.name)
		}
	}
}
