package jinja

// statement is a node that writes or sets something. exec says how it was left.
type statement interface {
	exec(env *environment) signal
}

// expression is a node that has a value.
type expression interface {
	eval(env *environment) Value
}

// Statements.
type (
	textStmt  struct{ text string }
	printStmt struct {
		line   int
		values []expression
	}
	forStmt struct {
		line        int
		target      target
		over        expression
		test        expression // nil: none
		recursive   bool
		body, empty []statement
	}
	ifStmt struct {
		tests  []expression
		bodies [][]statement // one more than tests when there is an else
	}
	setStmt struct {
		line   int
		target target
		value  expression // nil: body
		filter expression // applied to the body, nil: none
		body   []statement
	}
	withStmt struct {
		line    int
		targets []target
		values  []expression
		body    []statement
	}
	scopeStmt struct{ body []statement } // a body with variables of its own
	macroStmt struct {
		line int
		name string
		def  *macro
	}
	callStmt struct { // {% call %}
		line int
		call *callExpr
		def  *macro
	}
	filterStmt struct {
		line   int
		filter expression
		body   []statement
	}
	loopControl struct{ signal signal } // break, continue
)

// macro is what {% macro %} defines, or {% call %} under the name caller.
type macro struct {
	name     string
	args     []string
	defaults []expression // of the last args
	body     []statement
	caller   bool // the body asks for caller, varargs or kwargs
	varargs  bool
	kwargs   bool
}

// Expressions.
type (
	constExpr struct{ value Value }
	nameExpr  struct{ name string }
	tupleExpr struct{ items []expression }
	listExpr  struct{ items []expression }
	dictExpr  struct{ keys, values []expression }
	attrExpr  struct { // operand.name
		line    int
		operand expression
		name    string
	}
	subscriptExpr struct { // operand[index]
		line           int
		operand, index expression
	}
	sliceExpr  struct{ from, to, step expression } // nil: left out
	filterExpr struct {
		line    int
		operand expression // nil: the body the filter is applied to
		name    string
		args    arguments
	}
	testExpr struct {
		line    int
		operand expression
		name    string
		args    arguments
	}
	callExpr struct {
		line   int
		callee expression
		args   arguments
	}
	unaryExpr struct {
		line    int
		op      string
		operand expression
	}
	binaryExpr struct {
		line        int
		op          string
		left, right expression
	}
	compareExpr struct { // first ops[0] rest[0] ops[1] rest[1] ..: all must be true
		line  int
		first expression
		ops   []string
		rest  []expression
	}
	concatExpr struct {
		line  int
		items []expression
	}
	conditionalExpr struct{ test, yes, no expression } // no may be nil
)

// arguments of a call. star and starStar are those after * and **, nil if left out.
type arguments struct {
	positional     []expression
	names          []string
	named          []expression
	star, starStar expression
}

// target is what is assigned to: a name, an attribute of a namespace, or several.
type target struct {
	line       int
	name, attr string
	several    []target
}
