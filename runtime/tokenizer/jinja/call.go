package jinja

import "slices"

// macroValue is a macro with the scope in which it was defined: its body looks for variables there,
// not where it is called.
type macroValue struct {
	*macro
	scope *scope
}

// newMacro binds a macro to the current scope.
func (e *environment) newMacro(def *macro) *macroValue {
	e.allocate(objectBytes)
	return &macroValue{def, e.scope.keep()}
}

// call calls a function that is built in, a macro, or a recursive loop with the items of the next level.
func (e *environment) call(callee Value, args *callArgs) Value {
	switch callee := callee.(type) {
	case *function:
		args.what = callee.name
		e.spend(1)
		return callee.call(args)
	case *macroValue:
		return e.callMacro(callee, args)
	case *loop:
		if !callee.stmt.recursive {
			e.fail("the loop must be recursive to be called")
		}
		over := args.next("iterable", required)
		args.end()
		e.enterCall()
		text := e.capture(func() { callee.stmt.loop(e, over, callee.scope, callee.depth+1) })
		e.depth--
		return text
	}
	e.defined(callee)
	e.fail("'%s' object is not callable", typeName(callee))
	return nil
}

// callMacro returns what the body of a macro writes.
func (e *environment) callMacro(callee *macroValue, args *callArgs) Value {
	e.enterCall()
	defer func() { e.depth-- }()
	// Each parameter is looked up among the names of the call.
	e.spend(4 + len(args.names) + len(callee.args)*(1+len(args.names)/8))
	line := e.line
	var text string
	e.inScope(callee.scope, func() {
		e.bindArguments(callee, args)
		text = e.capture(func() { e.run(callee.body) })
	})
	// The body has moved the line; errors after the call belong to the caller's tag.
	e.line = line
	return text
}

// bindArguments sets the variables that a macro's body finds: its arguments, caller, varargs and
// kwargs. Positions are bound before names. Defaults are evaluated at each call in the macro's own
// scope, so that a default can use earlier arguments.
func (e *environment) bindArguments(callee *macroValue, args *callArgs) {
	rest := args.positional
	firstDefault := len(callee.args) - len(callee.defaults)
	for i, name := range callee.args {
		named := slices.Index(args.names, name)
		switch {
		case len(rest) > 0 && named >= 0:
			e.fail("macro %q got argument %q twice", callee.name, name)
		case len(rest) > 0:
			e.set(name, rest[0])
			rest = rest[1:]
		case named >= 0:
			e.set(name, args.values[named])
		case i >= firstDefault:
			e.set(name, e.eval(callee.defaults[i-firstDefault]))
		default:
			e.set(name, e.undefined("parameter '%s' was not provided", name))
		}
	}
	if len(rest) > 0 && !callee.varargs {
		e.fail("macro %q takes not more than %d arguments", callee.name, len(callee.args))
	}
	// What is left are names that the macro does not declare.
	others := e.newDict()
	var caller Value = &undefined{"'caller' is undefined"}
	for i, name := range args.names {
		switch {
		case slices.Contains(callee.args, name):
		case name == "caller" && callee.caller:
			caller = args.values[i]
		case callee.kwargs:
			e.allocate(entryBytes)
			others.Set(name, args.values[i])
		default:
			e.fail("macro %q takes no argument %q", callee.name, name)
		}
	}
	if callee.caller && !slices.Contains(callee.args, "caller") {
		e.set("caller", caller)
	}
	if callee.varargs {
		e.set("varargs", tuple(rest))
	}
	if callee.kwargs {
		e.set("kwargs", others)
	}
}

// callArgs are the arguments of a call. A built-in function takes them one by one, by position
// first; what is left in the end is an error. So each function states its signature by what it
// takes.
type callArgs struct {
	*environment
	what       string // the name of what is called, for messages
	positional []Value
	names      []string
	values     []Value // of names
}

// arguments evaluates the arguments of a call.
func (e *environment) arguments(list arguments, what string) *callArgs {
	out := &callArgs{environment: e, what: what}
	for _, expr := range list.positional {
		out.positional = append(out.positional, e.eval(expr))
	}
	if list.star != nil {
		items := e.items(e.eval(list.star))
		e.allocate(16 * len(items))
		out.positional = append(out.positional, items...)
	}
	for i, expr := range list.named {
		out.names = append(out.names, list.names[i])
		out.values = append(out.values, e.eval(expr))
	}
	if list.starStar != nil {
		dict, ok := e.eval(list.starStar).(*Dict)
		if !ok {
			e.fail("argument after ** must be a mapping")
		}
		for i, key := range dict.keys {
			name, ok := key.(string)
			if e.spend(1 + len(out.names)/8); !ok || slices.Contains(out.names, name) {
				e.fail("keywords must be strings, each once")
			}
			out.names = append(out.names, name)
			out.values = append(out.values, dict.values[i])
		}
	}
	// A name and a value of two words each.
	e.allocate(32 * (len(out.positional) + len(out.names)))
	return out
}

// clone copies the arguments, so that a function can take them again for each item.
func (a *callArgs) clone() *callArgs {
	a.scan(objectBytes * (len(a.names) + 1))
	again := *a
	again.names, again.values = slices.Clone(a.names), slices.Clone(a.values)
	return &again
}

// required marks an argument without a default.
var required = &undefined{}

// next takes the next argument, by position or by name; none is its default, or required.
func (a *callArgs) next(name string, none Value) Value {
	if len(a.positional) > 0 {
		value := a.positional[0]
		a.positional = a.positional[1:]
		return value
	}
	a.spend(len(a.names) / 8)
	if i := slices.Index(a.names, name); i >= 0 {
		value := a.values[i]
		a.names, a.values = slices.Delete(a.names, i, i+1), slices.Delete(a.values, i, i+1)
		return value
	}
	if none == required {
		a.fail("%s: argument %q is missing", a.what, name)
	}
	return none
}

// str takes the next argument, which must be a text.
func (a *callArgs) str(name string, none Value) string {
	value := a.next(name, none)
	text, ok := value.(string)
	if !ok {
		a.defined(value)
		a.fail("%s: %s must be str, not %s", a.what, name, typeName(value))
	}
	return text
}

// int takes the next argument, which must be an integer. true counts as 1.
func (a *callArgs) int(name string, none Value) int64 {
	value := a.next(name, none)
	whole, _, ok, _ := number(value)
	if !ok {
		a.defined(value)
		a.fail("%s: %s must be int, not %s", a.what, name, typeName(value))
	}
	return whole
}

// flag takes the next argument as true or false. It is false by default.
func (a *callArgs) flag(name string) bool { return truth(a.next(name, false)) }

// end fails if an argument is left.
func (a *callArgs) end() {
	if len(a.positional) > 0 {
		a.fail("%s: too many arguments", a.what)
	}
	if len(a.names) > 0 {
		a.fail("%s: no argument %q is known", a.what, a.names[0])
	}
}
