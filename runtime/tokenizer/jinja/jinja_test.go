package jinja

import (
	"context"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
)

// clock is the time testdata/language.py gave the reference.
var clock = time.Date(2024, 7, 5, 9, 8, 7, 0, time.UTC)

// language is what the reference makes of small templates.
func language(t testing.TB) (variables map[string]Value, cases [][2]*string) {
	t.Helper()
	data, err := os.ReadFile("testdata/language.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Variables json.RawMessage
		Cases     [][2]*string
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	v, err := FromJSON(file.Variables)
	if err != nil {
		t.Fatal(err)
	}
	variables = map[string]Value{}
	d := v.(*Dict)
	for i, k := range d.keys {
		variables[k.(string)] = d.values[i]
	}
	return variables, file.Cases
}

// render parses a template and executes it.
func render(template string, variables map[string]Value) (string, error) {
	t, err := Parse(template)
	if err != nil {
		return "", err
	}
	return t.Execute(context.Background(), variables, Options{Now: clock})
}

// Small templates give what the reference gives, and errors of one line where it has errors.
func TestLanguage(t *testing.T) {
	variables, cases := language(t)
	if len(cases) < 150 {
		t.Fatalf("got %d cases", len(cases))
	}
	for _, c := range cases {
		got, err := render(*c[0], variables)
		switch {
		case c[1] == nil && err == nil:
			t.Errorf("%q: got %q, want an error", *c[0], got)
		case c[1] != nil && err != nil:
			t.Errorf("%q: got error %v, want %q", *c[0], err, *c[1])
		case c[1] != nil && got != *c[1]:
			t.Errorf("%q:\n got %q\nwant %q", *c[0], got, *c[1])
		}
		if err != nil {
			if _, ok := err.(*Error); !ok || strings.Contains(err.Error(), "\n") {
				t.Errorf("%q: error %T %q", *c[0], err, err)
			}
		}
	}
}

// Templates that try to take time, memory or files end with an error. What each took is printed and, for memory,
// checked.
func TestHostileTemplates(t *testing.T) {
	require.Slow(t)
	deep := func(open, end string, n int) string { return strings.Repeat(open, n) + "1" + strings.Repeat(end, n) }
	for name, c := range map[string]struct{ template, want string }{
		"loops in loops":        {"{% for a in range(100000) %}{% for b in range(100000) %}{% for c in range(100000) %}{% endfor %}{% endfor %}{% endfor %}", "more than"},
		"loops with a body":     {"{% set n = namespace(x=0) %}{% for a in range(100000) %}{% for b in range(100000) %}{% set n.x = n.x + 1 %}{% endfor %}{% endfor %}", "more than"},
		"loops over text":       {"{% for a in 'aaaaaaaaaa' * 1000000 %}{% for b in 'a' * 1000000 %}{% endfor %}{% endfor %}", "more than"},
		"range":                 {"{{ range(10 ** 15) | list }}", "a range of 1000000000000000"},
		"range around":          {"{{ range(-9223372036854775807, 9223372036854775807) }}", "too large"},
		"text doubled":          {"{% set n = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(1000) %}{% set n.s = n.s + n.s %}{% endfor %}", "more than"},
		"text times":            {"{{ ('x' * 1000000000000) | length }}", "more than"},
		"lists doubled":         {"{% set n = namespace(s=[1,2,3,4]) %}{% for i in range(1000) %}{% set n.s = n.s + n.s %}{% endfor %}", "more than"},
		"lists in lists":        {"{% set n = namespace(s=[]) %}{% for i in range(100000) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s }}", "in each other"},
		"lists in lists, JSON":  {"{% set n = namespace(s=[]) %}{% for i in range(100000) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s | tojson }}", "in each other"},
		"lists compared":        {"{% set n = namespace(s=[], t=[]) %}{% for i in range(10000) %}{% set n.s = [n.s] %}{% set n.t = [n.t] %}{% endfor %}{{ n.s == n.t }}", "in each other"},
		"a list of itself":      {"{% set n = namespace(s=[1, 1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}", "more than"},
		"a list of itself JSON": {"{% set n = namespace(s=[1, 1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s | tojson(indent=9) }}", "too long"},
		"compared with itself":  {"{% set n = namespace(s=[1, 1], t=[1, 1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% set n.t = [n.t, n.t] %}{% endfor %}{{ n.s == n.t }}", "steps"},
		"an attribute's name":   {"{% macro m(a) %}{{ a.kwargs }}{% endmacro %}{{ m({}, b=2) }}", `takes no argument "b"`},
		"macro of itself":       {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls in each other"},
		"macros of each other":  {"{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}", "calls in each other"},
		"recursive loop":        {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "calls in each other"},
		"macro tree":            {"{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(100) }}", "more than"},
		"output":                {"{% for a in range(100000) %}{{ 'x' * 10000 }}{% endfor %}", "more than"},
		"much text":             {"{% for a in range(100000) %}" + strings.Repeat("x", 10000) + "{% endfor %}", "more than"},
		"replace":               {"{{ ('a' * 10000000) | replace('a', 'b' * 10000000) | length }}", "too long"},
		"replace nothing":       {"{{ ('a' * 10000000).replace('', 'b' * 10000000) | length }}", "too long"},
		"join":                  {"{{ (['a' * 1000000] * 1000000) | join('x' * 1000000) }}", "too long"},
		"many lines":            {"{{ ('\\n' * 100000000).splitlines() | length }}", "more than"},
		"many words":            {"{{ ('a ' * 50000000).split() | length }}", "more than"},
		"indent":                {"{{ ('\\na' * 10000000) | indent(100000) | length }}", "more than"},
		"wide format":           {"{{ '%99999999d' % 1 }}", "too wide"},
		"pad":                   {"{{ 'x'.center(10000000000) }}", "more than"},
		"strip":                 {"{{ ('ab' * 5000000).strip('xyzw' * 1000000 + 'ab') }}", "more than"},
		"power":                 {"{{ 2 ** 1000000000000 }}", "too large"},
		"powers":                {"{{ 1.5 ** 1000000 }}", "has no value"},
		"search":                {"{% set s = 'a' * 10000000 %}{% for i in range(100000) %}{% if 'b' in s %}{% endif %}{% endfor %}", "steps"},
		"escapes in JSON":       {"{{ ('\\x01' * 60000000) | tojson | length }}", "more than"},
		"sort":                  {"{% for i in range(1000) %}{% set x = range(100000) | sort(reverse=true) %}{% endfor %}", "more than"},
		"parentheses":           {"{{ " + deep("(", ")", 100000) + " }}", "in each other"},
		"lists written":         {"{{ " + deep("[", "]", 100000) + " }}", "in each other"},
		"minus":                 {"{{ " + deep("-", "", 100000) + " }}", "in each other"},
		"not":                   {"{{ " + deep("not ", "", 50000) + " }}", "in each other"},
		"plus":                  {"{{ 1" + strings.Repeat("+1", 100000) + " }}", "operators in a row"},
		"dots":                  {"{{ a" + strings.Repeat(".b", 100000) + " }}", "parts"},
		"filters":               {"{{ a" + strings.Repeat("|list", 50000) + " }}", "parts"},
		"conditions":            {"{{ " + strings.Repeat("1 if 1 else ", 20000) + "1 }}", "in each other"},
		"blocks":                {deep("{% if 1 %}", "{% endif %}", 10000), "in each other"},
		"targets":               {"{% set " + deep("(", ")", 100000) + " = 1 %}", "in each other"},
		"too long":              {strings.Repeat("x", maxSource+1), "want at most"},
		"a file":                {"{% include '/etc/passwd' %}", "not supported"},
		"a class":               {"{{ ''.__class__.__mro__ }}", "unsafe"},
		"a change":              {"{{ messages.append(1) }}", "unsafe"},
		"a global":              {"{{ self.x }}", "'self' is undefined"},
		"no clock":              {"{{ strftime_now('%Y') }}", "no clock"},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			tmpl, err := Parse(c.template)
			if err == nil {
				_, err = tmpl.Execute(context.Background(), map[string]Value{"messages": &List{}}, Options{})
			}
			took := time.Since(start)
			runtime.ReadMemStats(&after)

			// Of all that was ever allocated only a part is alive at a time.
			filled := (after.TotalAlloc - before.TotalAlloc) >> 20
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
			t.Logf("%v, %d MiB: %v", took.Round(time.Millisecond), filled, err)
			if filled > 512 {
				t.Errorf("%d MiB were allocated", filled)
			}
		})
	}
}

// A template gives the same text each time.
func FuzzTemplate(f *testing.F) {
	variables, cases := language(f)
	for _, c := range cases {
		f.Add(*c[0])
	}
	f.Fuzz(func(t *testing.T, template string) {
		tmpl, err := Parse(template)
		if err != nil {
			return
		}
		text, err := tmpl.Execute(context.Background(), variables, Options{Now: clock})
		if err != nil {
			return
		}
		again, errAgain := tmpl.Execute(context.Background(), variables, Options{Now: clock})
		if text != again || errAgain != nil {
			t.Errorf("%q, the second time %q, %v", text, again, errAgain)
		}
	})
}
