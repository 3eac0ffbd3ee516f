package jinja

import "strings"

// signal says how a body was left.
type signal int

const (
	sigNone signal = iota
	sigBreak
	sigContinue
)

// run executes statements until one of them leaves the loop around it.
func (e *environment) run(body []statement) signal {
	e.enterNode()
	defer func() { e.stack-- }()
	for _, stmt := range body {
		e.spend(1)
		if sig := stmt.exec(e); sig != sigNone {
			return sig
		}
	}
	return sigNone
}

// capture returns what body writes. It exchanges the output meanwhile, so that whatever body calls
// writes there too.
func (e *environment) capture(body func()) string {
	out := e.out
	e.out = e.output()
	body()
	text := e.out.String()
	e.out = out
	return text
}

// captureScope is capture of a body with variables of its own.
func (e *environment) captureScope(body []statement) string {
	return e.capture(func() { e.inScope(e.scope, func() { e.run(body) }) })
}

// filtered returns the text of a body after the filter, if there is one.
func (e *environment) filtered(filter expression, body []statement) Value {
	var value Value = e.captureScope(body)
	if filter != nil {
		e.inScope(e.scope, func() {
			e.scope.variables = map[string]Value{"": value} // where a filter without an operand looks
			value = e.eval(filter)
		})
	}
	return value
}

// Text outside tags is written as it stands: the lexer has removed the white space that options drop.
func (s *textStmt) exec(env *environment) signal {
	env.out.writeString(s.text)
	return sigNone
}

// The line is set again after the evaluation, which may have called a macro elsewhere.
func (s *printStmt) exec(env *environment) signal {
	for _, expr := range s.values {
		env.line = s.line
		value := env.eval(expr)
		env.line = s.line
		env.out.writeString(env.text(value))
	}
	return sigNone
}

// The body of the first test that is true is executed, in the scope around: what it sets stays.
func (s *ifStmt) exec(env *environment) signal {
	for i, test := range s.tests {
		if truth(env.eval(test)) {
			return env.run(s.bodies[i])
		}
	}
	if len(s.bodies) > len(s.tests) {
		return env.run(s.bodies[len(s.tests)])
	}
	return sigNone
}

// {% set x = .. %}, or {% set x %} with a body, whose text is the value.
func (s *setStmt) exec(env *environment) signal {
	env.line = s.line
	var value Value
	if s.value != nil {
		value = env.eval(s.value)
	} else {
		value = env.filtered(s.filter, s.body)
	}
	env.assign(s.target, value)
	return sigNone
}

// {% filter %} writes what its filters make of the body's text.
func (s *filterStmt) exec(env *environment) signal {
	env.line = s.line
	env.out.writeString(env.text(env.filtered(s.filter, s.body)))
	return sigNone
}

// All values are evaluated before the first target is set.
func (s *withStmt) exec(env *environment) signal {
	env.line = s.line
	values := make([]Value, len(s.values))
	for i, expr := range s.values {
		values[i] = env.eval(expr)
	}
	var sig signal
	env.inScope(env.scope, func() {
		for i, value := range values {
			env.assign(s.targets[i], value)
		}
		sig = env.run(s.body)
	})
	return sig
}

// {% generation %} marks what the model wrote, for training. Here it only has a scope.
func (s *scopeStmt) exec(env *environment) signal {
	env.out.writeString(env.captureScope(s.body))
	return sigNone
}

// break and continue are signals that run passes outwards to the loop around.
func (s *loopControl) exec(*environment) signal { return s.signal }

// A macro is a variable like any other, of the scope that defines it.
func (s *macroStmt) exec(env *environment) signal {
	env.set(s.name, env.newMacro(s.def))
	return sigNone
}

// {% call %} passes its body to the macro under the name caller.
func (s *callStmt) exec(env *environment) signal {
	env.line = s.line
	callee := env.eval(s.call.callee)
	args := env.arguments(s.call.args, "")
	args.names = append(args.names, "caller")
	args.values = append(args.values, env.newMacro(s.def))
	env.out.writeString(env.text(env.call(callee, args)))
	return sigNone
}

// assign sets a variable or an attribute. Several targets take the items of the value.
func (e *environment) assign(to target, value Value) {
	e.line = to.line
	switch {
	case to.several != nil:
		items := e.items(value)
		if len(items) != len(to.several) {
			e.fail("%d values for %d names", len(items), len(to.several))
		}
		for i, item := range items {
			e.assign(to.several[i], item)
		}
	// Attributes of a namespace are the one thing that a body can change outside its own scope.
	case to.attr != "":
		on, _ := e.lookup(to.name)
		ns, ok := on.(*namespace)
		if !ok {
			e.fail("cannot assign to an attribute of %q: it is no namespace", to.name)
		}
		if strings.HasPrefix(to.attr, "_") {
			e.fail("a namespace keeps no attribute that begins with _, got %q", to.attr)
		}
		// Charged as a new key each time, although it may replace a value.
		e.allocate(entryBytes)
		ns.attrs.Set(to.attr, value)
	default:
		e.set(to.name, value)
	}
}

// loop is the variable of that name in a for loop, whose attributes describe the state of the loop.
type loop struct {
	stmt    *forStmt
	scope   *scope // around the statement
	items   []Value
	index   int
	depth   int
	changed Value // the last arguments of changed
}

// The loop itself is a method of its own, because a recursive loop is called from its body.
func (s *forStmt) exec(env *environment) signal {
	env.line = s.line
	s.loop(env, env.eval(s.over), env.scope, 0)
	return sigNone
}

// loop executes the body for each item, or the else body if there was none. depth counts recursive calls.
func (s *forStmt) loop(env *environment, over Value, around *scope, depth int) {
	items := env.items(over)
	if s.test != nil {
		items = s.selected(env, items, around)
	}
	env.allocate(4 * objectBytes)
	// The variable is made anew for each execution of the statement; all its rounds share it.
	state := &loop{stmt: s, items: items, depth: depth, changed: &undefined{}}
	if s.recursive {
		state.scope = around.keep()
	}
	ran := false
	for ; state.index < len(state.items); state.index++ {
		sig := sigNone
		env.inScope(around, func() {
			env.set("loop", state)
			env.assign(s.target, state.items[state.index])
			sig = env.run(s.body)
		})
		if sig == sigBreak {
			break
		}
		// The reference takes a loop whose every round was left early for an empty one.
		ran = ran || sig == sigNone
	}
	if !ran && len(s.empty) > 0 {
		env.inScope(around, func() { env.run(s.empty) })
	}
}

// selected returns the items that pass the loop's if.
func (s *forStmt) selected(env *environment, items []Value, around *scope) []Value {
	var out []Value
	for _, item := range items {
		env.inScope(around, func() {
			env.assign(s.target, item)
			if truth(env.eval(s.test)) {
				env.allocate(16)
				out = append(out, item)
			}
		})
	}
	return out
}

// attribute returns an attribute of the variable loop: a position, a neighbour, or a method.
func (l *loop) attribute(env *environment, name string) (Value, bool) {
	count, index := int64(len(l.items)), int64(l.index)
	switch name {
	case "index":
		return index + 1, true
	case "index0":
		return index, true
	case "revindex":
		return count - index, true
	case "revindex0":
		return count - index - 1, true
	case "first":
		return index == 0, true
	case "last":
		return index == count-1, true
	case "length":
		return count, true
	case "depth":
		return int64(l.depth) + 1, true
	case "depth0":
		return int64(l.depth), true
	case "previtem":
		return l.item(l.index-1, "previous"), true
	case "nextitem":
		return l.item(l.index+1, "next"), true
	case "cycle":
		env.allocate(methodBytes)
		return &function{"cycle", l.cycle}, true
	case "changed":
		env.allocate(methodBytes)
		return &function{"changed", l.hasChanged}, true
	}
	return nil, false
}

// item returns a neighbour of the current item, undefined at the ends.
func (l *loop) item(index int, what string) Value {
	if index < 0 || index >= len(l.items) {
		return &undefined{"there is no " + what + " item"}
	}
	return l.items[index]
}

// cycle returns one of its arguments after the other, round by round.
func (l *loop) cycle(args *callArgs) Value {
	if len(args.positional) == 0 {
		args.fail("no items for cycling given")
	}
	return args.positional[l.index%len(args.positional)]
}

// hasChanged reports whether the arguments differ from those of the last call.
func (l *loop) hasChanged(args *callArgs) Value {
	values := tuple(args.positional)
	same := args.equal(l.changed, values)
	l.changed = values
	return !same
}
