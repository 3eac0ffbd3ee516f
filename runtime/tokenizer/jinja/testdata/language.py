"""Write language.json: what PyPI jinja2, set up as transformers does for chat templates, makes of small templates.

    pip install jinja2==3.1.6 transformers==5.23.0
    python language.py language.json

Each case is [template, text], or [template, null] where the reference raises an error. All are given VARIABLES.
"""

import datetime
import json
import sys

from transformers.utils import chat_template_utils

VARIABLES = {
    "messages": [
        {"role": "system", "content": "  be <brief> \n"},
        {"role": "user", "content": "Hi 'you' & \"me\"\n\tü 😀 \u2028 \u007f \u0001"},
        {"role": "assistant", "content": "<think>\nsum\n</think>\n\nfour", "extra": None},
        {"role": "user", "content": ""},
    ],
    "empty": [],
    "n": 3,
    "f": 1.5,
    "none_value": None,
    "yes": True,
    "words": ["pear", "Apple", "fig", "apple", "Date"],
    "d": {"b": 1, "a": [1, 2.5, None, True, {"x": "y"}], "ü": "é", "items": "own", "10": 10},
    "text": "The quick brown fox,\njumps over the\n\nlazy dog.",
    "rows": [{"k": "b", "v": 2, "s": {"t": "x"}}, {"k": "a", "v": 1, "s": {"t": "z"}}, {"k": "B", "v": 3, "s": {"t": "y"}}],
    "floats": [0.1, 1e16, 1e-5, 123456789.125, 1e22, -0.0, 3.0, 1e15, 0.0001],
}

CASES = r'''
{{ 1 }} {{ 1.0 }} {{ 'a' }} {{ "b" }} {{ true }} {{ True }} {{ false }} {{ none }} {{ None }} {{ [1, 'a', none] }} {{ {'a': 1, "b": [true]} }} {{ (1,) }} {{ (1, 2) }} {{ () }}
{{ 1, 2 }}
{{ 0x10 }} {{ 0b11 }} {{ 0o17 }} {{ 1_000 }} {{ 1e3 }} {{ 1.5e-3 }} {{ 1_0.2_5 }}
{{ floats }}
{{ floats | tojson }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ -2 ** 2 }} {{ +3 }} {{ 2 ** 3 ** 2 }}
{{ 'a' + 'b' ~ 'c' ~ 1 ~ none ~ 1.5 ~ true ~ [1] }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ [1] * 2 + [3] }}
{{ 1 ~ 2 + 3 }}
{{ 'x' 'y' "z" }}
{{ 'a\nb\t\\ \' \" \x41 \u00e9 \U0001f600 \q' }}
{{ "it's" }} {{ ["it's", 'say "x"', 'both \' "', 'tab\t', 'nl\n', '\x00\x7f\xa0\u2028é😀\ue000'] }}
{{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' == 'a' }} {{ [1, 2] == [1, 2] }} {{ (1,) == [1] }} {{ {'a': 1, 'b': 2} == {'b': 2, 'a': 1} }} {{ none == false }} {{ nothing == nowhere }} {{ nothing == none }} {{ nothing != 1 }}
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 <= 1.0 }} {{ 'a' in 'abc' }} {{ 'z' not in 'abc' }} {{ 1 in [1] }} {{ 'a' in d }} {{ 'own' in d }} {{ not 1 in [1] }} {{ 'x' in nothing }}
{{ 'a' < 1 }}
{{ 1 in 'abc' }}
{{ 1 in 5 }}
{{ yes and 'x' or 'y' }} {{ 0 or '' or 'last' }} {{ not yes }} {{ not not yes }} {{ none and 1 }} {{ 1 and 0 }}
{{ 'a' if yes else 'b' }} {{ 'a' if not yes else 'b' }} {{ 'a' if none_value }}| {{ 'a' if false else 'b' if false else 'c' }}
{{ nothing }}| {{ nothing is defined }} {{ n is defined }} {{ nothing is undefined }} {{ messages[0].name is defined }} {{ messages[9] is defined }} {{ messages[9] }}|
{{ nothing.x }}
{{ nothing['x'] }}
{{ nothing() }}
{{ nothing + 1 }}
{{ nothing | upper }}| {{ nothing | length }} {{ nothing | list }} {{ nothing | default('d') }} {{ none_value | default('d') }} {{ none_value | default('d', true) }} {{ '' | d('e', boolean=true) }}
{{ nothing < 1 }}
{{ -nothing }}
{{ messages[0].x.y }}
{{ none_value.x }}| {{ none_value['x'] }}| {{ (1).x }}|
{{ none_value.x.y }}
{{ messages[0].role }} {{ messages[0]['role'] }} {{ messages[-1].role }} {{ messages[0].get('role') }} {{ messages[0].get('zip', 'none') }} {{ messages[0].get('zip') }} {{ messages.0.role }} {{ d['items'] }} {{ d.b }} {{ d['10'] }}
{{ messages[0].keys() | list }} {{ messages[0].values() | list | length }} {{ d.items() | length }} {{ {'a': 1}.items() }} {{ {'a': 1}.keys() }} {{ {'a': 1}.values() }}
{{ messages[1:] | length }} {{ messages[:1] | length }} {{ messages[::2] | length }} {{ messages[::-1][0].role }} {{ messages[1:3][0].role }} {{ messages[-2:] | length }} {{ messages[5:] }} {{ 'abcdef'[1:4] }} {{ 'abcdef'[::-1] }} {{ 'abcdef'[-3:] }} {{ 'abcdef'[4:1:-1] }} {{ 'äöü😀x'[1:4] }} {{ 'äöü😀x'[3] }} {{ 'äöü'[-1] }} {{ (1, 2, 3)[1:] }} {{ 'abc'[5] }}| {{ 'abc'[1:100] }} {{ [1,2,3][-100:2] }}
{{ [1, 2][::0] }}
{{ messages['x'] }}| {{ [1,2]['0'] }}|
{{ 'a,b,,c'.split(',') }} {{ ' a  b c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a  b c '.split(none, 1) }} {{ ' a  b c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'abc'.split(sep='b') }} {{ 'a b c'.split(maxsplit=1) }}
{{ 'abc'.split('') }}
{{ '  x  '.strip() }}| {{ '  x  '.lstrip() }}| {{ '  x  '.rstrip() }}| {{ 'xxaxx'.strip('x') }} {{ 'abcab'.lstrip('ab') }} {{ '\n\u00a0\u2003\x1cx\x85'.strip() }}| {{ '12a21'.rstrip('12') }}
{{ 'ΑΣ ΣΑΣ Σ'.title() }} {{ 'ΑΣ ΣΑΣ'.capitalize() }} {{ 'ΑΣ. Α ΑΣ.Α ΆΣ́ ΑΣ’Α ΑΣ1 1Σ ΑΣ'.lower() }} {{ 'ΑΣΑ' | title }} {{ 'ΑΣ' | capitalize }} {{ 'ΣΣ' | lower }}
{{ 'upper' is filter }} {{ 'upper' is test }} {{ 1 is filter }} {{ none is test }}
{{ [] is filter }}
{{ {} is test }}
{{ 'Hello World'.upper() }} {{ 'Hello World'.lower() }} {{ 'hello wOrld'.title() }} {{ 'hello World'.capitalize() }} {{ 'hello'.startswith('he') }} {{ 'hello'.endswith(('lo', 'x')) }} {{ 'hello'.startswith('l', 2) }} {{ "they're bill's friends"|title }} {{ "they're bill's"|title }} {{ "they're bill's".title() }} {{ 'foo-bar (baz) <q>'|title }} {{ 'straße'.upper() }} {{ 'ΟΔΟΣ'.lower() }} {{ 'ﬁx'.upper() }}
{{ 'hello'.replace('l', 'L') }} {{ 'hello'.replace('l', 'L', 1) }} {{ 'hello' | replace('l', 'L') }} {{ 'hello' | replace('l', 'L', 1) }} {{ 'ab'.replace('', '-') }} {{ 5 | replace('5', 'five') }}
{{ 'hello'.find('l') }} {{ 'hello'.rfind('l') }} {{ 'hello'.find('z') }} {{ 'hello'.index('e') }} {{ 'hello'.count('l') }} {{ 'äöü'.find('ü') }}
{{ 'hello'.index('z') }}
{{ 'abc'.isdigit() }} {{ '123'.isdigit() }} {{ ''.isdigit() }} {{ '²'.isdigit() }} {{ '½'.isnumeric() }} {{ '12'.isdecimal() }} {{ 'aé'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' \n'.isspace() }} {{ 'AB1'.isupper() }} {{ 'ab1'.islower() }} {{ '1'.isupper() }}
{{ 'x'.center(5) }}| {{ 'x'.ljust(3, '.') }} {{ 'x'.rjust(3) }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'x' | center(6) }}| {{ 'xy' | center(5) }}|
{{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('-') }} {{ 'unhappy'.removeprefix('un') }} {{ 'a.txt'.removesuffix('.txt') }} {{ 'a\nb\r\nc\n'.splitlines() }} {{ 'a\nb'.splitlines(true) }} {{ ', '.join(['a', 'b']) }} {{ ''.join(words) }}
{{ ','.join([1]) }}
{{ '%s is %d' % ('x', 3) }} {{ '%s' % 'y' }} {{ '%5.2f|%-5s|%05d|%x|%%' % (3.14159, 'ab', 42, 255) }} {{ '%(a)s' % {'a': 1} }} {{ '%r' % 'q' }} {{ '%s' % [1, 'a'] }} {{ '%s' | format('z') }} {{ '%(x)d' | format(x=4) }}
{{ '%s %s' % ('x',) }}
{{ '%s' % ('x', 'y') }}
{{ '{} {}'.format(1, 'a') }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{x}{{}}'.format(x=none) }}
{{ 'abc'.nothing }}| {{ 'abc'.__class__ }}| {{ [].append }}| {{ d.update }}|
{{ [].append(1) }}
{{ d.update({}) }}
{{ 'abc'.__class__() }}
{{ messages | tojson }}
{{ d | tojson }} {{ d | tojson(indent=2) }}
{{ d | tojson(indent=0) }} {{ d | tojson(indent='\t') }} {{ [] | tojson(indent=4) }} {{ {} | tojson }} {{ [[], {}] | tojson(indent=1) }}
{{ d | tojson(separators=(',', ':')) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ 'é😀\x7f\n"\\/' | tojson(ensure_ascii=true) }} {{ 'é😀\x7f\n"\\/\x01\b\f' | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }} {{ (1, 2) | tojson }} {{ none | tojson }}
{{ nothing | tojson }}
{{ messages | map(attribute='role') | tojson }}
{{ '<a href="x">&' }} {{ '<b>' | string }} {{ d.a | tojson | safe }}
{{ messages | map(attribute='role') | list }} {{ words | map('upper') | join(',') }} {{ words | map('replace', 'p', 'P') | list }} {{ rows | map(attribute='s.t') | join }} {{ rows | map(attribute='q', default='-') | list }} {{ messages | map(attribute='extra') | list }} {{ [[1, 2], [3]] | map('length') | list }} {{ [[1, 2]] | map('first') | list }} {{ ['1', 'x'] | map('int', 7) | list }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', 'eq', 'user') | map(attribute='role') | list }} {{ messages | selectattr('extra', 'defined') | list | length }} {{ messages | selectattr('extra') | list | length }} {{ [1, 2, 3, 4] | select('even') | list }} {{ [1, 2, 3] | reject('divisibleby', 3) | list }} {{ [0, 1, '', 'a', none] | select | list }} {{ messages | selectattr('role', 'in', ['user', 'tool']) | list | length }} {{ rows | selectattr('v', '>', 1) | map(attribute='k') | join }} {{ rows | selectattr('s.t', 'ne', 'x') | list | length }}
{{ messages | selectattr('role', 'equalto', 'user') | length }}
{% if [] | select %}generators are true{% endif %} {% set g = [1, 2] | select %}{{ g | list }}{{ g | list }} {{ ([1, 2] | select)[0] }}|
{{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ words | sort(reverse=true) }} {{ rows | sort(attribute='v') | map(attribute='k') | list }} {{ rows | sort(attribute='k,v') | map(attribute='v') | list }} {{ [3, 1, 2] | sort }} {{ words | unique | list }} {{ words | unique(case_sensitive=true) | list }} {{ words | min }} {{ words | max }} {{ [3, 1] | max }} {{ rows | max(attribute='v') | tojson }} {{ [] | max }}|
{{ d | dictsort | length }} {{ {'b': 2, 'a': 3, 'C': 1} | dictsort }} {{ {'b': 2, 'a': 3, 'C': 1} | dictsort(true) }} {{ {'b': 2, 'a': 3, 'C': 1} | dictsort(by='value') }} {{ {'b': 2, 'a': 3} | dictsort(reverse=true) }} {{ {'b': 2} | items | list }} {{ nothing | items | list }}
{{ [1, 'a'] | sort }}
{{ [1, 2, 3] | first }} {{ [1, 2, 3] | last }} {{ 'abc' | first }} {{ 'abc' | last }} {{ [] | first }}| {{ [] | last }}| {{ [1, 2, 3] | reverse | list }} {{ 'abc' | reverse }} {{ [1, 2] | sum }} {{ rows | sum(attribute='v') }} {{ [0.5, 1] | sum }} {{ [[1], [2]] | sum(start=[]) }} {{ 'abc' | list }} {{ d | list }} {{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | batch(2, 'x') | list }}
{{ words | length }} {{ words | count }} {{ 'äö' | length }} {{ d | length }} {{ range(5) | length }}
{{ 5 | length }}
{{ '١٢٣' | int }} {{ '𝟙𝟚.𝟛' | float }} {{ ' １ ' | int }} {{ '1_000' | int }} {{ '1__0' | int }} {{ '_1' | int }} {{ '1_' | int }} {{ '1_0.2_5' | float }} {{ '1_.5' | float }}
{{ '0x1f' | int(0, 16) }} {{ '0X_1F' | int(0, 16) }} {{ '-0x1f' | int(0, 16) }} {{ '0x-1' | int(7, 16) }} {{ '0b1' | int(0, 16) }} {{ '0b1' | int(0, 2) }} {{ '0o17' | int(0, 8) }} {{ '0x1f' | int(7) }} {{ '0x1p3' | float }} {{ '+-1' | int(7) }} {{ '1e3' | int }} {{ 'z' | int(0, 36) }} {{ '-' | int(7) }} {{ '' | int(7) }} {{ 'nan' | int(7) }} {{ '5' | int(7, 99) }}
{{ '3' | int }} {{ '3.7' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ 3.9 | int }} {{ 'ff' | int(base=16) }} {{ none | int }} {{ ' 4 ' | int }} {{ '3' | float }} {{ 'x' | float }} {{ 2 | float }} {{ 2.5 | round }} {{ 3.14159 | round(2) }} {{ 3.2 | round(method='ceil') }} {{ 3 | round }} {{ -3 | abs }} {{ -3.5 | abs }} {{ true | int }} {{ 2.675 | round(2) }} {{ 0.5 | round }}
{{ ' x ' | trim }}| {{ 'xxaxx' | trim('x') }} {{ 5 | trim }} {{ none | trim }} {{ 'hello' | capitalize }} {{ 'HELLO' | lower }} {{ 'a b  c' | wordcount }}
{{ text | indent }}
{{ text | indent(2, true) }}
{{ text | indent(2, blank=true) }} {{ text | indent('> ') }} {{ text | indent(width=1, first=true) }}
{{ text | truncate(12) }} {{ text | truncate(12, true) }} {{ text | truncate(12, false, '!') }} {{ 'short' | truncate(3) }} {{ 'abcdefghijk' | truncate(4, true, '', 0) }}
{{ 1 is number }} {{ true is number }} {{ 1.5 is float }} {{ 1 is integer }} {{ true is integer }} {{ true is boolean }} {{ 'a' is string }} {{ [] is string }} {{ [] is iterable }} {{ 'a' is iterable }} {{ 5 is iterable }} {{ {} is mapping }} {{ [] is mapping }} {{ [] is sequence }} {{ 'a' is sequence }} {{ {} is sequence }} {{ none is none }} {{ 0 is none }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ 0 is false }}
{{ 4 is even }} {{ 3 is odd }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ 1 is in [1] }} {{ 1 is not in [1] }} {{ 1 is eq 1 }} {{ 2 is gt 1 }} {{ 2 is lessthan 1 }} {{ 'a' is sameas 'a' }} {{ none is sameas none }} {{ range is callable }} {{ 'x' is callable }} {{ 1 is not none }} {{ n is defined and n is number }} {{ nothing is defined or yes }} {{ 'upper' is filter }} {{ 'zzz' is filter }} {{ not nothing is defined }} {{ nothing is iterable }} {{ nothing is string }}
{{ 'a' | nofilter }}
{{ 'a' is notest }}
{% for m in messages %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.first }}/{{ loop.last }}/{{ loop.length }} {{ m.role }};{% endfor %}
{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ loop.last }}{% else %}none{% endfor %} {% for x in [] %}x{% else %}empty{% endfor %} {% for x in nothing %}x{% else %}empty{% endfor %}
{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %} {% for k in {'a': 1} %}{{ k }}{% endfor %} {% for c in 'aü😀' %}[{{ c }}]{% endfor %} {% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %} {% for x in 1, 2 %}{{ x }}{% endfor %}
{% for k, v in [(1, 2, 3)] %}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for x in none %}{% endfor %}
{% for i in range(3) %}{{ i }}{% endfor %} {% for i in range(1, 10, 3) %}{{ i }}{% endfor %} {% for i in range(3, 0, -1) %}{{ i }}{% endfor %} {{ range(3) }} {{ range(1, 2, 3) }} {{ range(5)[2] }} {{ range(5) | list }} {{ 3 in range(5) }} {{ range(0) | list }}
{{ range(100001) | list | length }}
{{ range(100000) | list | length }}
{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %} {% for i in [1] %}{% break %}{% else %}E{% endfor %} {% for i in [1, 2] %}{% continue %}{% else %}E{% endfor %}
{% for i in [1, 2, 3] %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {{ loop.cycle('a', 'b') }} {{ loop.changed(i // 2) }} {% endfor %}
{% for i in [1, [2, [3]]] recursive %}{% if i is iterable %}({{ loop(i) }}){% else %}{{ i }}@{{ loop.depth }}{% endif %}{% endfor %}
{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}
{% set ns = namespace(x=1, found=false) %}{% for i in [1, 2] %}{% set ns.x = ns.x + i %}{% set ns.found = true %}{% endfor %}{{ ns.x }}{{ ns.found }}{{ ns['x'] }}{{ ns.other }}| {% set ns2 = namespace({'a': 1}, b=2) %}{{ ns2.a }}{{ ns2.b }}
{% set n.x = 1 %}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% if false %}{% set q = 1 %}{% endif %}{{ q is defined }} {% if true %}{% set q = 1 %}{% endif %}{{ q }} {% if n == 1 %}a{% elif n == 3 %}b{% else %}c{% endif %} {% if none %}a{% elif 0 %}b{% else %}c{% endif %}
{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set (a, b) = [3, 4] %}{{ a }}{{ b }} {% set t = 1, 2 %}{{ t }} {% set x %}body {{ n }}
{% endset %}[{{ x }}] {% set y | upper | replace('B', 'x') %}bb{{ n }}{% endset %}{{ y }} {% filter upper %}abc{{ n }}{% endfilter %}
{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a }}| {% with %}{% set z = 1 %}{{ z }}{% endwith %}{{ z }}| {% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}
{% macro f(x, y=2, z='q') %}{{ x }}{{ y }}{{ z }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(1, z='w') }} {{ f(x=5) }} {{ f() }} {{ f('a') | upper }} {{ f.name }}
{% macro f(x) %}{{ x }}{% endmacro %}{{ f(1, 2) }}
{% macro f(x) %}{{ x }}{% endmacro %}{{ f(y=2) }}
{% macro f(x) %}{{ x }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, k=4) }}
{% macro f(x) %}{{ x + y }}{% endmacro %}{% set y = 10 %}{{ f(1) }} {% set y = 20 %}{{ f(1) }}
{% macro outer() %}{{ inner() }}{% endmacro %}{% macro inner() %}in{{ n }}{% endmacro %}{{ outer() }} {% macro fact(n) %}{% if n <= 1 %}1{% else %}{{ n * fact(n - 1) | int }}{% endif %}{% endmacro %}{{ fact(5) }}
{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call box('b') %}in {{ n }}{% endcall %} {% macro each(xs) %}{% for x in xs %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(x) each([1, 2]) %}[{{ x }}]{% endcall %}
{% macro f(a, b=a ~ '!') %}{{ b }}{% endmacro %}{{ f('x') }} {% for i in [1, 2] %}{% macro g() %}{{ i }}{% endmacro %}{{ g() }}{% endfor %}
{{ f(*[1, 2]) }}
{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1, 2]) }} {{ f(**{'a': 3, 'b': 4}) }} {{ f(1, *[2]) }}
{{ dict(a=1, b=2) }} {{ dict({'a': 1}, b=2) }} {{ dict([('a', 1)]) }} {{ {'a': 1, 'a': 2} }} {{ {1: 'x'}[1.0] }} {{ {'a': 1}.copy() }} {{ {(1, 2): 3}[(1, 2)] }}
{{ {[]: 1} }}
{{ [1, 2].index(2) }} {{ [1, 2, 1].count(1) }} {{ (1, 2).index(2) }} {{ [1].copy() }}
{{ raise_exception('no: ' ~ n) }}
{% if n == 3 %}{{ raise_exception('three') }}{% endif %}
{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %b %Y') }} {{ strftime_now('%B %-d, %A %H:%M:%S %p %j %y %%') }} {{ strftime_now('%I %a %e %u %w') }}
{# comment #}a{#- b -#} c {#+ d #}
 {# e #}
f
  {%- if yes %}  x  {%- endif %}  y
  {% if yes %}
    x
  {% endif %}
  y
  {%+ if yes %}
    x
  {%+ endif +%}
  y
a {{- 1 -}} b {{+ 2 }} c {{ 3 }}  
  {{ 1 }}
x  {% if yes %}  y  {% endif %}  z
{% raw %}{{ x }}{% y %}{% endraw %} {%- raw -%}  {{ x }}  {%- endraw -%} z
{%- for m in messages -%}
    {%- if loop.first -%}  first  {%- endif -%}
    {{ m.role }}
{%- endfor -%}
{% for m in messages %}
  {% if not loop.last %}
  {{ m.role }},
  {% else %}
  {{ m.role }}.
  {% endif %}
{% endfor %}
end
{% generation %}gen {{ n }}{% endgeneration %} {%- generation -%} x {%- endgeneration -%}
{% print n, 'x' %}
{{ n if n else 'q' ~ 'r' | upper }} {{ 'a' ~ 'b' | upper }} {{ ('a' ~ 'b') | upper }} {{ -n | abs }} {{ n | string + 'x' }} {{ not n == 3 }} {{ 1 if 1 == 1 and not 2 in [3] else 0 }}
{{ 'a' is string and 'b' is string }} {{ n is divisibleby 3 and yes }} {{ 'x' if n is not number else 'num' }} {{ n is not string }} {{ [n is number, 1] }} {{ messages[0].role is string }}
{{ messages[2].content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') }}|{{ messages[2].content.split('</think>')[-1].lstrip('\n') }}
{{ "a" if messages | length > 3 else "b" }} {{ messages | length - 1 }} {{ (messages | last).role }} {{ messages[messages | length - 1].role }} {{ messages[loop_index | default(0)].role }}
{{ {'a': {'b': [1, {'c': 2}]}}.a.b[1].c }} {{ d.a[4].x }} {{ d['a'][-1]['x'] }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 9223372036854775807 }} {{ -9223372036854775807 }}
{{ 'a'.b.c }}
{% set loop = 5 %}{{ loop }} {% for i in [1] %}{{ loop.index }}{% endfor %}{{ loop }}
{% for loop_item in [1,2] %}{% for inner in 'ab' %}{{ loop.index }}{{ loop_item }}{{ inner }} {% endfor %}{{ loop.index }}{% endfor %}
{{ n
 + 1 }} {{ [
  1,
  2,
] }} {{ {'a': 1,} }} {{ f }}
{{ '{{ }} {% %}' }} {{ {'a': {}} }} {{ {'a': {'b': {}}}}}
{{ messages[0]['content'] | trim + '!' }} {{ 'x' + messages[0].content | trim }}
{{ (messages | selectattr('role', 'equalto', 'system') | list | first).content | trim }}
{{ True and False }} {{ 'True' }} {{ none is none }} {{ None is none }}
{{ yes | string | lower }} {{ 1.0 | string }} {{ [1.0, 2] | join('-') }} {{ none | string }} {{ 100000000000000000.0 }} {{ 1e100 }}
{% if messages[0].role == 'system' and messages[0].content %}S{% endif %}{% if (messages | length) % 2 == 0 %}E{% endif %}{% if not (messages[0].role == 'user') %}N{% endif %}
'''

# Templates of several lines, or with something in them that a line of CASES cannot have.
MORE = [
    "{{ '' | sort(attribute='x') }} {{ ['b', 'a'] | sort(attribute='x') }} {{ nothing | truncate(5) }}|",
    "{{ n[1:] }}",
    "{{ 'x' % [1] }}{{ 'x' % d }}{{ 'x' % nothing }}{{ 'x' % () }}",
    "{{ 'x' % n }}",
    "{{ 'x' % 'y' }}",
    "{{ d[1:] }}",
    "{{ none | unique | list }}", "{{ 0 | batch(2) | list }}", "{{ (none | unique) is defined }} {{ empty | batch(0) | list }} {{ 0 | select | list }}",
    "{{ (n | select) == 1 }} {{ nothing | map('x') | list }} {{ (words | map('x'))[0] }}| {{ [nothing, nowhere] | unique | list | length }}",
    "{{ words | map('x') | list }}",
    "{{ nothing[1:] }}",
    " {% raw %}",
    "a {#",
    "{% for x in words",
    "",
    "\n",
    "\n\n",
    "a\n",
    "a\r\nb\rc\r\n",
    "{{ 'a\r\nb' }}",
    "{% if yes %}\n\nx\n{% endif %}\n\ny\n",
    "{% set x %}\na\n{% endset %}\n[{{ x }}]",
    "  {% set x = 1 %}  \n  b",
    "\t{%- if yes -%}\n\tx\n{%- endif %}\n",
    "{%\n if\n yes\n %}x{%endif%}",
    "{{x}}{{ 'y' }}{#\n\n#}\nz",
    "{# a #}\n\nb",
    "   {#- c -#}   d",
    "{% for x in [1,\n2] -%}\n{{ x }},\n{%- endfor %}",
    "{{ '\\\n' }}|",
    "{% macro a(x) -%}\n  {{ x }}\n{%- endmacro %}\n{{ a(1) }}\n",
    "  {% raw %}\n  a\n  {% endraw %}\n  b",
    "{% raw -%}\n  a {{\n  {%- endraw %}\n\n  b",
    "{{",
    "{{ }}",
    "{% if %}x{% endif %}",
    "{% if yes %}x",
    "{% endif %}",
    "{% nope %}",
    "{{ 1 + }}",
    "{{ (1 }}",
    "{{ 1) }}",
    "{{ [1 }}",
    "{{ 'a }}",
    "{{ a b }}",
    "{{ a ! b }}",
    "{{ a.}}",
    "{{ f(1 2) }}",
    "{{ f(a=1, 2) }}",
    "{% set 1 = 2 %}",
    "{% set true = 2 %}",
    "{% for in x %}{% endfor %}",
    "{% for x of y %}{% endfor %}",
    "{# a",
    "{% raw %}a",
    "{% break %}",
    "{% include 'x' %}",
    "{% extends 'x' %}",
    "{% import 'x' as y %}",
    "{% from 'x' import y %}",
    "{% macro f(a=1, b) %}{% endmacro %}",
    "{{ 1 is }}",
    "{{ 1 is string is string }}",
    "{{ x | }}",
    "{{ 08 }}",
    "{% if yes %}a{% else %}b{% else %}c{% endif %}",
    "{% do 1 %}",
    "a {%- if yes %} b {% endif -%} c",
    "{{ 1 }}\n{{ 2 }}\n\n{{ 3 }}",
    "{{ 1 -}}\n\n{{- 2 }}",
    "{{ '-' }}-}}",
    "{ { } } {a} %} }} #}",
    "{%- set sep = '---' -%}{{ sep }}",
]


def run(template):
    compiled = chat_template_utils._compile_jinja_template(template)
    compiled.globals["strftime_now"] = lambda f: datetime.datetime(2024, 7, 5, 9, 8, 7).strftime(f)
    return compiled.render(**VARIABLES)


def main(path):
    cases = [line for line in CASES.strip("\n").split("\n")]
    groups, i = [], 0
    while i < len(cases):
        # A line that does not stand alone goes on in the next ones.
        for j in range(i + 1, min(i + 12, len(cases)) + 1):
            try:
                chat_template_utils._compile_jinja_template("\n".join(cases[i:j]))
                break
            except Exception:
                continue
        else:
            j = i + 1
        groups.append("\n".join(cases[i:j]))
        i = j
    out = []
    for template in groups + MORE:
        try:
            out.append([template, run(template)])
        except Exception as e:
            out.append([template, None])
            print(repr(template)[:100], "->", type(e).__name__, str(e)[:80], file=sys.stderr)
    with open(path, "w", encoding="utf-8") as f:
        f.write(json.dumps({"variables": VARIABLES, "cases": out}, ensure_ascii=True, indent=0) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
