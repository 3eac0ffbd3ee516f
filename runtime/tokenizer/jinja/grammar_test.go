package jinja

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hetc/hetc/internal/require"
)

// productions are a grammar of templates that are right in their syntax and mostly in their types, so that a fuzzer
// tries what templates do and not how they are spelled. <X> stands for one of the productions of X. The first of each
// ends. T is a text, L a list, N a number, D a mapping, A anything, S a statement, B a body.
var productions = map[byte][]string{
	'T': {"'a b,c'", "s", "'é\"{}%s\\n'", "''", "(<T> * <N>)", "(<T> ~ <A>)", "(<T> + <T>)", "(<L>|join(<T>))", "(<T>)[<N>:]", "(<T>)[::-1]", "(<A>|string)", "(<A>|tojson(indent=<N>))",
		"(<T>|replace(<T>, <T>))", "(<T>|indent(<N>))", "(<T>|center(<N>))", "(<T>).strip(<T>)", "('%s' % (<A>,))", "('%r' % (<A>,))", "('{}'.format(<A>))", "(<T>|upper)", "(<T>|lower)", "(<T>|title)",
		"f(<A>)", "(<T>).join(<L>|map('string'))", "(<T>|truncate(<N>))", "strftime_now(<T>)", "(<T> if <A> else <T>)"},
	'L': {"[1]", "messages", "range(<N>)", "[<A>, <A>]", "(<A>, <A>)", "(<L> + <L>)", "(<L> * <N>)", "(<T>).split(<T>)", "(<T>).rsplit(<T>)", "(<T>|list)", "(<L>|list)", "(<L>|sort)", "(<L>|unique|list)",
		"(<L>|map('string')|list)", "(<L>|map(attribute=<T>)|list)", "(<L>|select('eq', <A>)|list)", "(<L>|batch(<N>, <A>)|list)", "(<L>)[<N>:]", "(<L>|reverse|list)", "(<D>|items|list)", "(<D>|dictsort)", "(<T>).splitlines()",
		"(<L>|sort(attribute=<T>))", "(<L>|map('join')|list)", "(<T>).partition(<T>)"},
	'N': {"3", "1", "7", "100", "5000", "99999", "1000000", "-1", "(<A>|length)", "(<T>|wordcount)", "(<N> + <N>)", "(<N> * <N>)", "(<T>).count(<T>)", "(<L>|sum(start=1))"},
	'D': {"{}", "{'k': <A>}", "{<A>: <A>}", "{<T>: <A>, 'k': <A>}", "dict(<L>|batch(2))", "dict(k=<A>)", "<D>.copy()"},
	'A': {"1", "ns.x", "ns.y", "ns.z", "none", "true", "1.5", "x", "nothing", "f", "<T>", "<T>", "<L>", "<L>", "<N>", "<D>", "(<A> == <A>)", "(<A> in [<A>])", "(<T> in <T>)", "(<A> in <D>)", "<D>[<A>]", "<D>.get(<A>)",
		"(<A> or <A>)", "(<A> and <A>)", "(<L> < <L>)", "(<T> < <T>)", "((<A>, <A>) is eq (<A>, <A>))", "(<L>|first)", "(<L>|min)", "(<L>|max)", "loop.changed(<A>)", "namespace(x=<A>)"},
	'B': {"x", "<S>", "<S><S>", "<S><S><S>"},
	'S': {"{{ x }}", "{{ <A> }}", "{% set x = <A> %}", "{% set ns.x = <A> %}", "{% set ns.y = <A> %}", "{% set ns.z = <A> %}", "{% set s = <T> %}",
		"{% for i in range(180) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}", "{% for i in range(<N>) %}{% set ns.x = (ns.x, <A>) %}{% endfor %}", "{% for i in range(<N>) %}{% set ns.x = [ns.x] %}{% endfor %}",
		"{% for i in range(<N>) %}{% set ns.y = ns.y + ns.y %}{% endfor %}", "{% for i in range(<N>) %}{% set ns.y = {ns.y: ns.x} %}{% endfor %}", "{% for i in range(<N>) %}{% set ns.z = ns.z|map('string') %}{% endfor %}",
		"{% for i in range(<N>) %}{% set ns.z = ns.z|reject('none') %}{% endfor %}", "{% for i in range(20) %}{% set s = s ~ s %}{% endfor %}", "{% for x in <L> %}<B>{% endfor %}", "{% for x in <L> if <A> %}<B>{% else %}<B>{% endfor %}",
		"{% for x in <L> recursive %}<B>{{ loop(<L>) }}{% endfor %}", "{% macro f(x, n=3) %}<B>{% if n %}{{ f(x, n - 1) }}{{ f(n=n - 1, x=(x, x)) }}{% endif %}{% endmacro %}",
		"{% macro f(x) %}<B>{{ caller() }}{% endmacro %}{% call f(<A>) %}<B>{% endcall %}", "{% filter upper %}<B>{% endfilter %}", "{% set s %}<B>{% endset %}", "{% if <A> %}<B>{% else %}<B>{% endif %}", "{% with x = <A> %}<B>{% endwith %}"},
}

// init adds every filter, test and method to the productions.
func init() {
	for _, name := range slices.Sorted(maps.Keys(filters)) {
		productions['A'] = append(productions['A'], "(<A>|"+name+")", "(<A>|"+name+"(<A>))", "(<L>|map('"+name+"')|list)")
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		if isWord(rune(name[0])) {
			productions['A'] = append(productions['A'], "(<A> is "+name+")", "(<A> is "+name+"(<A>))", "(<L>|select('"+name+"')|list)")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		productions['A'] = append(productions['A'], "(<T>)."+name+"()", "(<T>)."+name+"(<T>)", "(<T>)."+name+"(<N>)")
	}
}

// speller writes a template: each byte, or two where there are more choices, decides one production.
type speller struct {
	choices []byte
	out     strings.Builder
}

const mostSpelled = 32 << 10 // bytes of a template

// pick decides one of so many choices.
func (p *speller) pick(count int) int {
	choice := 0
	for range 1 + count/256 {
		if len(p.choices) == 0 || p.out.Len() > mostSpelled {
			return 0
		}
		choice = choice<<8 | int(p.choices[0])
		p.choices = p.choices[1:]
	}
	return choice % count
}

// spell writes a production of the symbol. Deep ones are the first.
func (p *speller) spell(symbol byte, depth int) {
	all := productions[symbol]
	chosen := all[0]
	if depth < 8 {
		chosen = all[p.pick(len(all))]
	}
	for chosen != "" {
		before, after, found := strings.Cut(chosen, "<")
		p.out.WriteString(before)
		if !found {
			return
		}
		if len(after) > 1 && after[1] == '>' {
			p.spell(after[0], depth+1)
			chosen = after[2:]
		} else { // less than
			p.out.WriteByte('<')
			chosen = after
		}
	}
}

// spelled is the template that the bytes stand for.
func spelled(choices []byte) string {
	p := &speller{choices: choices}
	p.out.WriteString("{% set ns = namespace(x=(1,), y='a', z=['b']) %}{% set s = 'Ab c' %}{% macro f(x) %}{{ x }}{% endmacro %}")
	for len(p.choices) > 0 && p.out.Len() < mostSpelled {
		p.spell('S', 0)
	}
	return p.out.String()
}

// Every production parses, with the first production in the place of each symbol.
func TestSpelled(t *testing.T) {
	for symbol, all := range productions {
		for i, text := range all {
			p := &speller{}
			for rest := text; rest != ""; {
				before, after, found := strings.Cut(rest, "<")
				p.out.WriteString(before)
				rest = after
				if symbol := found && len(after) > 1 && after[1] == '>'; !symbol {
					continue
				}
				if after[0] != 'S' && after[0] != 'B' { // these are empty
					p.spell(after[0], 9)
				}
				rest = after[2:]
			}
			template := p.out.String()
			if symbol != 'S' && symbol != 'B' {
				template = "{{ " + template + " }}"
			}
			if _, err := Parse(template); err != nil {
				t.Errorf("production %d of %c: %s: %v", i, symbol, template, err)
			}
		}
	}
}

// The answer of a template depends on nothing but the template. Those that take more time, memory or stack than they
// are charged for end the process, or the fuzzer sees that it hangs or grows.
func FuzzGrammar(f *testing.F) {
	require.Slow(f)
	for i := range 256 {
		f.Add([]byte(strconv.Itoa(i * 7919)))
		f.Add([]byte{7, 1, byte(i / 128), byte(i), 2, byte(i), byte(i / 3), 3, 9, byte(i), 1, 2, 3})
		f.Add([]byte{byte(i), 4, byte(i), 0, 7, byte(i), 1, 2, byte(i), 3, 5, byte(i), 0, 4, byte(i)})
	}
	variables, _ := language(f)
	f.Fuzz(func(t *testing.T, choices []byte) {
		template := spelled(choices)
		tmpl, err := Parse(template)
		if err != nil {
			return
		}
		o := Options{Now: clock, steps: maxSteps / 4} // the fuzzer ends an input that takes 10 s, on a busy machine too
		text, err := tmpl.Execute(context.Background(), variables, o)
		if errors.Is(err, ErrLimit) { // which takes long
			return
		}
		again, errAgain := tmpl.Execute(context.Background(), variables, o)
		if text != again || fmt.Sprint(err) != fmt.Sprint(errAgain) {
			t.Errorf("%q: %.200q, %v; the second time %.200q, %v", template, text, err, again, errAgain)
		}
	})
}
