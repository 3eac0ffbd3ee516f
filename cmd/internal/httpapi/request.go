package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/strictjson"
	"github.com/hetc/hetc/runtime/executor"
	"github.com/hetc/hetc/runtime/scheduler"
	"github.com/hetc/hetc/runtime/serving"
	"github.com/hetc/hetc/runtime/tokenizer"
)

// request is what a body asks for.
type request struct {
	model     string              // "" for whichever there is
	messages  []tokenizer.Message // of a chat
	text      string              // of a completion, where ids is nil
	ids       []int32
	maxTokens int // 0: the endpoint's default
	sampler   executor.Sampler
	seeded    bool // the sampler has the client's seed
	stop      []string
	stream    bool
	usage     bool // a last event with the usage
	logProbs  bool
	likely    int // tokens beside each one's log probability
	tier      string
	class     scheduler.Class

	submission serving.Request // what the engine is asked for, once the text is tokens
}

// value is a field of a body. Its name is the path from the body, such as messages[0].content.
type value struct {
	name string
	raw  json.RawMessage
}

// refuse returns a problem of the value: the format says what is wanted.
func (v value) refuse(format string, args ...any) *problem {
	return refuse(v.name, "%s: "+format, append([]any{v.name}, args...)...)
}

// got returns the value as the client wrote it, for messages.
func (v value) got() string { return brief(string(v.raw)) }

// field reads a value into a request.
type field func(r *request, v value) *problem

// neverField is a field that would change the answer and is not supported. Its neutral values, which change nothing,
// are accepted.
type neverField struct {
	neutral []string // compact JSON, beside null, false, "", [] and {}
	number  *float64 // the only value of a number that changes nothing; nil: the field is no number
	hint    string
}

// the numbers that change nothing
var zero, one = 0.0, 1.0

// parse reads a body. Fields are taken in alphabetical order, and the first problem is told. A field that is null
// counts as absent.
func parse(body []byte, fields map[string]field) (*request, *problem) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(body, &object); err != nil || object == nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			err = errors.New("got " + wrong.Value)
		} else if err == nil {
			err = errors.New("got null")
		}
		return nil, refuse("", "the body is no JSON object: %s", brief(err.Error()))
	}
	if err := strictjson.OnceEach(body); err != nil {
		return nil, refuse("", "the body has %s", brief(err.Error()))
	}
	if half := halfCharacter(body); half != "" {
		return nil, refuse("", "the body has %s, half of a character; cut texts between characters", half)
	}
	r := &request{sampler: executor.Sampler{Temperature: 1}}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		v := value{name, object[name]}
		if string(v.raw) == "null" {
			continue
		}
		read, known := fields[name]
		never, refused := neverFields[name]
		var wrong *problem
		switch {
		case known:
			wrong = read(r, v)
		case refused:
			wrong = never.check(v)
		case !slices.Contains(ignoredFields, name):
			wrong = unknownField(name, fields)
		}
		if wrong != nil {
			return nil, wrong
		}
	}
	return r, nil
}

// unknownField names the field that was probably meant.
func unknownField(name string, fields map[string]field) *problem {
	known := slices.Concat(slices.Collect(maps.Keys(fields)), slices.Collect(maps.Keys(neverFields)), ignoredFields)
	message := "%q: unknown field; leave it out"
	if near := diag.Nearest(name, known); near != "" {
		message = "%q: unknown field; did you mean " + near + "?"
	}
	return refuse(brief(name), message, brief(name))
}

// check accepts neutral values.
func (n *neverField) check(v value) *problem {
	if n.number != nil {
		var number float64
		if v.read(&number) && number == *n.number {
			return nil
		}
		return v.refuse("not supported, got %s; %s", v.got(), n.hint)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, v.raw); err != nil {
		return v.refuse("%v", err)
	}
	if slices.Contains([]string{"false", `""`, "[]", "{}"}, compact.String()) ||
		slices.Contains(n.neutral, compact.String()) {
		return nil
	}
	return v.refuse("not supported, got %s; %s", v.got(), n.hint)
}

// ignoredFields are known and change nothing here.
var ignoredFields = []string{
	"metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
	"safety_identifier", "store", "user",
}

// neverFields are fields of either endpoint.
var neverFields = map[string]*neverField{
	"audio":              {hint: "leave it out: answers are text"},
	"best_of":            {number: &one, hint: "leave it out, or send several requests"},
	"echo":               {hint: "leave it out, and put the prompt in front of the answer yourself"},
	"frequency_penalty":  {number: &zero, hint: "leave it out or set it to 0"},
	"function_call":      {neutral: []string{`"auto"`, `"none"`}, hint: "leave it out: the model calls no functions here"},
	"functions":          {hint: "leave it out: the model calls no functions here"},
	"logit_bias":         {hint: "leave it out"},
	"min_p":              {number: &zero, hint: "leave it out, or use top_p"},
	"modalities":         {neutral: []string{`["text"]`}, hint: "leave it out: answers are text"},
	"moderation":         {hint: "leave it out: nothing is moderated here"},
	"n":                  {number: &one, hint: "leave it out, and send the request several times"},
	"prediction":         {hint: "leave it out"},
	"presence_penalty":   {number: &zero, hint: "leave it out or set it to 0"},
	"reasoning_effort":   {hint: "leave it out"},
	"repetition_penalty": {number: &one, hint: "leave it out or set it to 1"},
	"response_format":    {neutral: []string{`{"type":"text"}`}, hint: "leave it out: answers are text"},
	"suffix":             {hint: "leave it out: the model continues text only at its end"},
	"tool_choice":        {neutral: []string{`"auto"`, `"none"`}, hint: "leave it out: the model calls no tools here"},
	"tools":              {hint: "leave it out: the model calls no tools here"},
	"verbosity":          {neutral: []string{`"medium"`}, hint: "leave it out"},
	"web_search_options": {hint: "leave it out"},
}

// commonFields are those of both endpoints.
var commonFields = map[string]field{
	"model": func(r *request, v value) (wrong *problem) {
		r.model, wrong = v.text()
		return wrong
	},
	"max_tokens":            maxTokens,
	"max_completion_tokens": maxTokens,
	"temperature": func(r *request, v value) (wrong *problem) {
		r.sampler.Temperature, wrong = v.number(0, 2)
		return wrong
	},
	"top_p": func(r *request, v value) (wrong *problem) {
		r.sampler.TopP, wrong = v.number(0, 1)
		if r.sampler.TopP == 0 { // the sampler's word for all tokens, and OpenAI's for the likeliest
			r.sampler.TopP = math.SmallestNonzeroFloat64
		}
		return wrong
	},
	"top_k": func(r *request, v value) *problem {
		k, wrong := v.whole(0, math.MaxInt32)
		r.sampler.TopK = int(k)
		return wrong
	},
	"seed": func(r *request, v value) *problem {
		seed, wrong := v.whole(math.MinInt64, math.MaxInt64)
		r.sampler.Seed, r.seeded = uint64(seed), true
		return wrong
	},
	"stop": stops,
	"stream": func(r *request, v value) (wrong *problem) {
		r.stream, wrong = v.flag()
		return wrong
	},
	"stream_options": streamOptions,
	"service_tier": func(r *request, v value) (wrong *problem) {
		if r.tier, wrong = v.text(); wrong == nil && !slices.Contains(tiers, r.tier) {
			return v.refuse("want one of %s, got %s", strings.Join(tiers, ", "), v.got())
		}
		return wrong
	},
}

// tiers are the values of service_tier; all but flex are the interactive ones.
var tiers = []string{"auto", "default", "scale", "priority", "fast", tierFlex}

const tierFlex = "flex"

// with returns the common fields and others.
func with(more map[string]field) map[string]field {
	all := maps.Clone(commonFields)
	maps.Copy(all, more)
	return all
}

// chatFields are those of a conversation.
var chatFields = with(map[string]field{
	"messages": messages,
	"logprobs": func(r *request, v value) (wrong *problem) {
		r.logProbs, wrong = v.flag()
		return wrong
	},
	"top_logprobs": func(r *request, v value) *problem {
		count, wrong := v.whole(0, 20)
		r.likely = int(count)
		if wrong == nil && !r.logProbs { // logprobs comes first in the alphabet
			return v.refuse("needs logprobs; set logprobs to true")
		}
		return wrong
	},
})

// completionFields are those of a text to continue.
var completionFields = with(map[string]field{
	"prompt": prompt,
	"logprobs": func(r *request, v value) *problem {
		count, wrong := v.whole(0, 5)
		r.logProbs, r.likely = true, int(count)
		return wrong
	},
})

// maxTokens reads the length of the answer, which has two names.
func maxTokens(r *request, v value) *problem {
	count, wrong := v.whole(1, math.MaxInt32)
	if wrong == nil && r.maxTokens != 0 && r.maxTokens != int(count) {
		return v.refuse("max_completion_tokens is %d and max_tokens %d; give one of them", r.maxTokens, count)
	}
	r.maxTokens = int(count)
	return wrong
}

// stops reads a text or up to four, none of them empty.
func stops(r *request, v value) *problem {
	const most, longest = 4, 4096
	var one string
	if v.read(&one) {
		r.stop = []string{one}
	} else if !v.read(&r.stop) || len(r.stop) > most {
		return v.refuse("want a text or up to %d texts, got %s", most, v.got())
	}
	for _, text := range r.stop {
		if text == "" || len(text) > longest {
			return v.refuse("want texts of 1 to %d bytes, got one of %d", longest, len(text))
		}
	}
	return nil
}

// streamOptions reads an object of which one option counts.
func streamOptions(r *request, v value) *problem {
	options, wrong := v.object()
	if wrong != nil {
		return wrong
	}
	if options == nil {
		return v.refuse("want an object, got %s", v.got())
	}
	for _, name := range slices.Sorted(maps.Keys(options)) {
		option := value{v.name + "." + name, options[name]}
		var wrong *problem
		switch {
		case string(option.raw) == "null":
		case name == "include_usage":
			r.usage, wrong = option.flag()
		case name == "include_obfuscation":
			_, wrong = option.flag() // events have no padding either way
		default:
			wrong = refuse(brief(option.name), "%q: unknown field; want include_usage", brief(option.name))
		}
		if wrong != nil {
			return wrong
		}
	}
	return nil
}

// prompt reads a text, or token ids. A list of one text or one list of ids counts as that one, because clients write it
// so.
func prompt(r *request, v value) *problem {
	var list []json.RawMessage
	switch {
	case v.read(&r.text) || r.readIDs(v):
		return nil
	case !v.read(&list) || len(list) == 0:
		return v.refuse("want a text or a list of token ids, got %s", v.got())
	case list[0][0] != '"' && list[0][0] != '[':
		return notIDs(v, list)
	case len(list) > 1:
		return v.refuse("want one prompt, got %d; send a request for each: they are answered side by side", len(list))
	}
	inner := v.element(0, list[0])
	if inner.read(&r.text) || r.readIDs(inner) {
		return nil
	}
	if !inner.read(&list) || len(list) == 0 {
		return inner.refuse("want a text or a list of token ids, got %s", inner.got())
	}
	return notIDs(inner, list)
}

// readIDs reads token ids at once, and reports whether they are nothing else.
func (r *request) readIDs(v value) bool {
	var ids []int32
	if bytes.Contains(v.raw, []byte("null")) || !v.read(&ids) || len(ids) == 0 || slices.Min(ids) < 0 {
		return false
	}
	r.ids = ids
	return true
}

// notIDs returns the problem that an element of a list is no token id.
func notIDs(v value, list []json.RawMessage) *problem {
	for i, raw := range list {
		if _, wrong := v.element(i, raw).whole(0, math.MaxInt32); wrong != nil {
			return wrong
		}
	}
	return v.refuse("want a text or a list of token ids, got %s", v.got())
}

// roles are those that every chat template knows.
var roles = []string{"system", "user", "assistant"}

// messages reads the conversation.
func messages(r *request, v value) *problem {
	var list []json.RawMessage
	if !v.read(&list) || len(list) == 0 {
		return v.refuse("want a list of at least one message, got %s", v.got())
	}
	for i, raw := range list {
		one, wrong := message(v.element(i, raw))
		if wrong != nil {
			return wrong
		}
		r.messages = append(r.messages, one)
	}
	return nil
}

// roleOf reads the role of a message's author. Few chat templates know OpenAI's newer name of the system's role.
func roleOf(v value) (string, *problem) {
	name, wrong := v.text()
	switch {
	case wrong != nil:
		return "", wrong
	case name == "developer":
		return "system", nil
	case !slices.Contains(roles, name):
		return "", v.refuse("want one of %s, got %s", strings.Join(roles, ", "), v.got())
	}
	return name, nil
}

// message returns an object with role and content. Other fields are accepted while they are empty, as in answers that a
// client sends back.
func message(v value) (out tokenizer.Message, wrong *problem) {
	object, wrong := v.object()
	if wrong != nil {
		return out, wrong
	}
	if object == nil {
		return out, v.refuse("want an object with role and content, got %s", v.got())
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		inner := value{v.name + "." + brief(name), object[name]}
		switch {
		case name == "content":
			out.Content, wrong = content(inner)
		case name == "role":
			out.Role, wrong = roleOf(inner)
		case string(inner.raw) != "null":
			wrong = (&neverField{hint: "leave it out: a message has role and content"}).check(inner)
		}
		if wrong != nil {
			return out, wrong
		}
	}
	for _, name := range []string{"role", "content"} {
		if object[name] == nil {
			return out, v.refuse("%s is missing; a message has role and content", name)
		}
	}
	return out, nil
}

// content returns a text, or a list of parts that are texts, which are joined.
func content(v value) (string, *problem) {
	var text string
	if v.read(&text) {
		return text, nil
	}
	var list []json.RawMessage
	if !v.read(&list) || len(list) == 0 {
		return "", v.refuse(`want a text or a list of parts {"type":"text","text":"..."}, got %s`, v.got())
	}
	var out strings.Builder
	for i, raw := range list {
		part, wrong := textPart(v.element(i, raw))
		if wrong != nil {
			return "", wrong
		}
		out.WriteString(part)
	}
	return out.String(), nil
}

// cacheMark is a field of a part that says where a cache might end. The cache here needs no marks.
const cacheMark = "prompt_cache_breakpoint"

// textPart returns the text of a part of a message. A field that no part of a text has is refused: it may be an image.
func textPart(v value) (text string, wrong *problem) {
	object, wrong := v.object()
	if wrong != nil {
		return "", wrong
	}
	kind, content := value{v.name + ".type", object["type"]}, value{v.name + ".text", object["text"]}
	var name string
	if object["type"] == nil || !kind.read(&name) || name != "text" || object["text"] == nil || !content.read(&text) {
		return "", v.refuse(`want {"type":"text","text":"..."}, got %s; the model reads text only`, v.got())
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if name == "type" || name == "text" || name == cacheMark || string(object[name]) == "null" {
			continue
		}
		return "", refuse(v.name+"."+brief(name), "%s.%s: not supported; leave it out: a part has type and text", v.name,
			brief(name))
	}
	return text, nil
}
