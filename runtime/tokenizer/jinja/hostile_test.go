package jinja

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hetc/hetc/internal/require"
)

// shared is a template that doubles ns.x by sharing: rounds levels of pairs, of which each holds the one below twice.
func shared(rounds, use string) string {
	return "{% set ns = namespace(x=(1,), y=(1,)) %}{% for i in range(" + rounds + ") %}" +
		"{% set ns.x = (ns.x, ns.x) %}{% set ns.y = (ns.y, ns.y) %}{% endfor %}" + use
}

// often is a template that does something with a text of 512 KiB until the budget ends.
func often(use string) string {
	return "{% set s = 'ab c' * 131072 %}{% set t = 'ß. ' * 131072 %}" +
		"{% for i in range(100000) %}" + use + "{% endfor %}"
}

// Templates that once took all memory, or many seconds, for few steps. None is longer than 64 KiB.
var costly = map[string]string{
	"hash of shared tuples":        shared("180", "{{ {ns.x: 1} | length }}"),
	"lookup of shared tuples":      shared("180", "{{ {1: 1}[ns.x] }}"),
	"get of shared tuples":         shared("180", "{{ {1: 1}.get(ns.x) }}"),
	"shared tuple in a dict":       shared("180", "{{ ns.x in {1: 1} }}"),
	"unique of shared tuples":      shared("180", "{{ [ns.x, ns.y] | unique | list | length }}"),
	"dict of shared pairs":         shared("180", "{{ dict([(ns.x, 1)]) | length }}"),
	"wide tuples hashed":           "{% set ns = namespace(x=('\"',)) %}{% for i in range(180) %}{% set ns.x = (ns.x,) %}{% endfor %}{% for i in range(100000) %}{% set d = {ns.x: 1} %}{% endfor %}",
	"sorted shared tuples":         shared("150", "{{ [ns.x, ns.y] | sort | length }}"),
	"least of shared tuples":       shared("150", "{{ [ns.x, ns.y] | min | length }}"),
	"shared tuple printed":         shared("150", "{{ ns.x | string | length }}"),
	"shared tuple joined":          shared("150", "{{ [ns.x] | join | length }}"),
	"shared tuple formatted":       shared("150", "{{ '%r' % ns.x }}"),
	"wordcount":                    often("{{ s | wordcount }}"),
	"length of text":               often("{{ s | length }}"),
	"lower test":                   often("{% if s is lower %}{% endif %}"),
	"upper test":                   often("{% if t is upper %}{% endif %}"),
	"upper":                        often("{% set x = t | upper %}"),
	"title":                        often("{% set x = t.title() %}"),
	"title filter":                 often("{% set x = t | title %}"),
	"capitalize":                   often("{% set x = t | capitalize %}"),
	"isalpha":                      often("{% set x = t.isalpha() %}"),
	"rsplit at the far end":        "{% set s = 'a' * 500000 + ',' * 60000 %}{% for i in range(100) %}{% set x = s.rsplit(',') %}{% endfor %}",
	"strip of many characters":     "{% set s = 'b' * 400000 %}{% set c = 'a' * 500 + 'b' %}{% for i in range(10000) %}{% set x = s.strip(c) %}{% endfor %}",
	"long names looked up":         "{% for i in range(100000) %}{{ " + strings.Repeat("n", 60000) + " }}{% endfor %}",
	"long keys looked up":          "{% set k = 'k' * 1000000 %}{% for i in range(100000) %}{% set x = {}[k] %}{% endfor %}",
	"undefined with long names":    "{% set k = 'k' * 1000000 %}{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x, {}[k]) %}{% endfor %}",
	"keys compared":                "{% set k = 'k' * 1000000 %}{% set j = k + '' %}{% for i in range(100000) %}{% if k == j %}{% endif %}{% endfor %}",
	"lazy filters in each other":   "{% set ns = namespace(x=[1]) %}{% for i in range(90000) %}{% set ns.x = ns.x | map('string') %}{% endfor %}{{ ns.x | list }}",
	"lazy rejections":              "{% set ns = namespace(x=[1]) %}{% for i in range(90000) %}{% set ns.x = ns.x | reject('none') %}{% endfor %}{{ ns.x | first }}",
	"names of a mapping":           "{% set ns = namespace(x=[]) %}{% for i in range(9000) %}{% set ns.x = ns.x + [('k' ~ i, i)] %}{% endfor %}",
	"a call by many names":         "{% set d = {" + numbered("'k", "': 1,", 4000) + "} %}{% for i in range(1000) %}{{ dict(**d) | length }}{% endfor %}",
	"many names for each item":     "{% set d = {" + numbered("'k", "': 1,", 2000) + "} %}{{ range(100000) | map('default', **d) | list | length }}",
	"arguments of a macro":         "{% macro m(" + numbered("a", "=1,", 250) + "z=1) %}{% endmacro %}{% for i in range(100000) %}{{ m(z=2) }}{% endfor %}",
	"indent of nothing":            "{% for i in range(100000) %}{% set x = '' | indent(100000) %}{% endfor %}",
	"JSON indent of nothing":       "{% for i in range(100000) %}{% set x = 1 | tojson(indent=100000) %}{% endfor %}",
	"JSON of many keys":            "{% set d = {" + numbered("'k", "': 1,", 3000) + "} %}{% for i in range(100000) %}{% set x = d | tojson(sort_keys=true) %}{% endfor %}",
	"equal dicts":                  "{% set d = {" + numbered("'k", "': 1,", 3000) + "} %}{% for i in range(100000) %}{% set x = d == d %}{% endfor %}",
	"copies of a dict":             "{% set d = {" + numbered("'k", "': 1,", 3000) + "} %}{% for i in range(100000) %}{% set x = d.copy() %}{% endfor %}",
	"namespaces kept":              "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x, namespace()) %}{% endfor %}",
	"dicts kept":                   "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x, {1: 1}) %}{% endfor %}",
	"macros kept":                  "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% macro m() %}{% endmacro %}{% set ns.x = (ns.x, m) %}{% endfor %}",
	"methods kept":                 "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x, 'a'.upper, 'b'.lower, 'c'.strip, 'd'.title) %}{% endfor %}",
	"iterators kept":               "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x, [1] | map('upper'), [1] | select) %}{% endfor %}",
	"conditions without else":      "{{ " + strings.Repeat("1 if ", 12000) + "1 }}",
	"names in each other's scopes": "{% for i in range(100000) %}" + strings.Repeat("{% if 1 %}{% with %}", 90) + strings.Repeat("{{ x }}", 100) + strings.Repeat("{% endwith %}{% endif %}", 90) + "{% endfor %}",
	"deep expression in a macro":   "{% macro f(n) %}{{ " + strings.Repeat("(0 + 0 + 0 + 0 + 0 + 0 + 0 + 0 + ", 100) + "f(n)" + strings.Repeat(")", 100) + " }}{% endmacro %}{{ f(1) }}",
	"dates":                        "{{ strftime_now('%c' * 4000000) | length }}",
	"fields":                       "{{ ('{0}' * 4000000).format('') | length }}",
	"percents":                     "{{ ('%%' * 8000000) % () | length }}",
	"a format of many names":       "{% set d = {" + numbered("'k", "': 1,", 3000) + "} %}{{ ('{k0001}' * 3000000).format(**d) | length }}",
	"a large refusal":              "{{ raise_exception('\\x01' * 10000000) }}",
	"a large key in an error":      "{{ ('%(' + '\\x01' * 10000000 + ')s') % {1: 1} }}",
	"attribute of many parts":      "{% set p = 'a.' * 250000 %}{% for i in range(100000) %}{% set x = [{}] | map(attribute=p, default={}) | list %}{% endfor %}",
	"sort by many attributes":      "{{ range(1000) | sort(attribute='a,' * 30000) }}",
	"loops written out":            "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
	"strings in a row":             "{{ " + strings.Repeat("'a' ", 16000) + "| length }}",
	"changed":                      shared("150", "{% for i in [1, 2] %}{{ loop.changed(ns.x) }}{{ loop.changed(ns.y) }}{% endfor %}"),
	"a template of tests":          "{% set s = 'x' * 8000000 %}{% for i in range(100000) %}{% if s is in s %}{% endif %}{% endfor %}",
	"padded":                       "{% for i in range(100000) %}{% set x = 'x'.center(1000000) %}{% endfor %}",
	"filled rows":                  "{% for i in range(100000) %}{% set x = [1] | batch(100000, 0) | list %}{% endfor %}",
	"slices":                       "{% set s = 'é' * 1000000 %}{% for i in range(100000) %}{{ s[0] }}{% endfor %}",
	"reversed":                     often("{% set x = s | reverse %}"),
	"lines":                        "{% set s = '\\n' * 1000000 %}{% for i in range(100000) %}{% set x = s.splitlines() %}{% endfor %}",
}

// numbered is many pieces with a number in each.
func numbered(before, after string, count int) string {
	var b strings.Builder
	for i := range count {
		b.WriteString(before)
		for _, digit := range []int{i / 1000 % 10, i / 100 % 10, i / 10 % 10, i % 10} {
			b.WriteByte(byte('0' + digit))
		}
		b.WriteString(after)
	}
	return b.String()
}

// TestCostlyTemplates bounds what a template of at most 64 KiB takes. The time is generous, and on a busy machine or
// under the race detector that of a plain loop counts; most cases end in well under a second.
func TestCostlyTemplates(t *testing.T) {
	require.Slow(t)
	start := time.Now()
	if _, err := render("{% for i in range(100000) %}{% for j in range(100000) %}{% set x = i * j %}{% endfor %}{% endfor %}", nil); err == nil {
		t.Fatal("a loop without end ends")
	}
	most := max(10*time.Second, 50*time.Since(start))
	for name, template := range costly {
		t.Run(name, func(t *testing.T) {
			if len(template) > 64<<10 {
				t.Fatalf("the template has %d bytes", len(template))
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err := render(template, map[string]Value{"messages": &List{}})
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			allocated := (after.TotalAlloc - before.TotalAlloc) >> 20
			message := ""
			if err != nil {
				if message = err.Error(); len(message) > 2000 {
					t.Errorf("an error of %d bytes", len(message))
				}
			}
			t.Logf("%s: %v, %d MiB: %.120s", name, took.Round(time.Millisecond), allocated, message)
			if took > most {
				t.Errorf("took %v, want at most %v", took, most)
			}
			if allocated > 1024 {
				t.Errorf("%d MiB were allocated", allocated)
			}
		})
	}
}

// sized are operands and arguments large enough that a look at them shows.
func sized() (text string, list *List) {
	text = strings.Repeat("aß b, ", 15_000)
	list = &List{}
	for range 10_000 {
		list.Items = append(list.Items, "x")
	}
	return text, list
}

// Every filter, test and method is charged what a look at large operands takes, and makes no more than it is charged
// for. What is new is tested by being there.
func TestEveryBuiltinIsCharged(t *testing.T) {
	require.Slow(t)
	text, list := sized()
	e := newEnv(context.Background(), Options{Now: clock})
	type builtin = func(v Value, a *callArgs) Value
	call := func(kind, name string, constant nameSet, run builtin, operand Value, size int, arguments []Value) {
		e = newEnv(context.Background(), Options{Now: clock})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		failure := func() (err error) {
			defer catch(&err)
			out := run(operand, &callArgs{environment: e, positional: slices.Clone(arguments)})
			if it, ok := out.(*iterator); ok {
				e.items(it)
			}
			return nil
		}()
		runtime.ReadMemStats(&after)

		what := fmt.Sprintf("%s %q of %T with %d arguments", kind, name, operand, len(arguments))
		if !constant[name] && e.steps < size/bytesPerStep {
			t.Errorf("%s: %d bytes for %d steps (%v)", what, size, e.steps, failure)
		}
		made := int(after.TotalAlloc - before.TotalAlloc)
		// What is not kept may be made by steps, of which there are few enough.
		if most := 64<<10 + 8*e.memory + 2*bytesPerStep*e.steps; made > most {
			t.Errorf("%s: made %d bytes, charged for %d (%v)", what, made, e.memory, failure)
		}
	}
	for _, arguments := range [][]Value{{}, {"b"}, {"b", "cc"}, {int64(3)}, {list}, {text}} {
		for name := range filters {
			run := func(v Value, a *callArgs) Value { return e.filter(name, v, a) }
			call("filter", name, constantFilters, run, text, len(text), arguments)
			call("filter", name, constantFilters, run, list, 16*len(list.Items), arguments)
		}
		for name := range tests {
			run := func(v Value, a *callArgs) Value { return e.test(name, v, a) }
			call("test", name, constantTests, run, text, len(text), arguments)
			call("test", name, constantTests, run, list, 16*len(list.Items), arguments)
		}
		for name := range methods {
			run := func(v Value, a *callArgs) Value {
				f, _ := e.attribute(v, name)
				return e.call(f, a)
			}
			call("method", name, constantMethods, run, text, len(text), arguments)
		}
		for name, f := range globals {
			run := func(_ Value, a *callArgs) Value { return e.call(f, a) }
			call("function", name, nil, run, nil, 0, arguments)
		}
	}
}

// A template ends with its context, and says so.
func TestInterrupted(t *testing.T) {
	tmpl, err := Parse("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()

	_, err = tmpl.Execute(ctx, nil, Options{})

	var e *Error
	if !errors.Is(err, context.Canceled) || !errors.As(err, &e) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// Errors tell limits and refusals from what is wrong in a template.
func TestCauses(t *testing.T) {
	for template, want := range map[string]error{
		"{{ 'x' * 100000000000 }}":          ErrLimit,
		"{% for x in range(1000001) %}":     nil,
		"{{ raise_exception('no tools') }}": errRefused,
		"{{ 1 / 0 }}":                       nil,
		strings.Repeat("x", maxSource+1):    ErrLimit,
		costly["hash of shared tuples"]:     ErrLimit,
		costly["lazy rejections"]:           ErrLimit,
	} {
		_, err := render(template, nil)
		if got := errors.Unwrap(err); err == nil || got != want {
			t.Errorf("%.60q: got %v (cause %v), want the cause %v", template, err, got, want)
		}
	}
}
