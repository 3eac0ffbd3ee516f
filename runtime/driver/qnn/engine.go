package qnn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hetc/hetc/internal/diag"
	"github.com/hetc/hetc/internal/mem"
	"github.com/hetc/hetc/internal/onnx"
	"github.com/hetc/hetc/internal/ortapi"
	"github.com/hetc/hetc/runtime/driver"
)

// versions are those of the libraries that an engine works with.
type versions struct {
	ORT, ORTPath string
	QNN          ortapi.QNN
	Backend      ortapi.QNNBackend
}

func (v versions) String() string {
	return fmt.Sprintf("ONNX Runtime %s, QNN core interface %v, HTP interface %v", v.ORT, v.Backend.Core, v.Backend.API)
}

// program is what is loaded: the model, or the file of one that refers to another file beside it.
type program struct {
	Code    []byte
	File    string
	In, Out []onnx.Value
}

// engine loads and runs programs: the libraries in this process (local), or those in another one (remote).
type engine interface {
	about() versions
	// compatible asks the libraries whether they can load what has this compatibility string.
	compatible(token string) (ortapi.Compatibility, error)
	load(ctx context.Context, p program) (id int, err error)
	// run executes the program on the values of its inputs and writes those of its outputs, dense both.
	run(id int, in, out [][]byte) error
	unload(id int) error
	close() error
}

// local is the libraries, in this process.
type local struct {
	v        versions
	env      *ortapi.Env
	device   ortapi.Device
	sessions map[int]*session
	next     int
}

// session is a loaded program with memory for its operands.
type session struct {
	s       *ortapi.Session
	b       *ortapi.Binding
	in, out []*mem.Region
	values  []*ortapi.Value
}

// openLocal loads the libraries. ort is ONNX Runtime's path, empty where it is to be looked for.
func openLocal(ort string, q ortapi.QNN) (e *local, err error) {
	lib, err := ortapi.Find(ort)
	if err != nil {
		return nil, err
	}
	l := &local{v: versions{ORT: lib.Version, ORTPath: lib.Path, QNN: q}, sessions: map[int]*session{}}
	if l.env, err = lib.NewEnv(ortapi.EnvOptions{}); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.env.Close())
		}
	}()
	if err := l.env.RegisterProvider(ortapi.QNNProvider, q.Provider); err != nil {
		return nil, diag.New(diag.ClassUnavailable, "library %q with ONNX Runtime %s: %w", q.Provider, lib.Version, err)
	}
	devices, err := l.env.Devices()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(devices, func(d ortapi.Device) bool { return d.Provider == ortapi.QNNProvider })
	if i < 0 {
		return nil, diag.New(diag.ClassUnavailable, "library %q offers no device on this machine", q.Provider)
	}
	l.device = devices[i]
	if l.v.Backend, err = q.Version(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *local) about() versions { return l.v }

func (l *local) compatible(token string) (ortapi.Compatibility, error) {
	return l.device.Compatibility(token)
}

func (l *local) load(_ context.Context, p program) (id int, err error) {
	o := &ortapi.SessionOptions{Devices: []ortapi.Device{l.device}, ProviderOptions: [][2]string{{"backend_path", l.v.QNN.Backend}}}
	s := &session{}
	if p.File == "" {
		s.s, err = l.env.NewSession(p.Code, o)
	} else {
		// Programs of one binary load it once.
		o.Config = [][2]string{{"ep.share_ep_contexts", "1"}}
		s.s, err = l.env.NewSessionFromFile(p.File, o)
	}
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := placed(s.s); err != nil {
		return 0, err
	}
	if s.b, err = s.s.NewBinding(); err != nil {
		return 0, err
	}
	for _, side := range []struct {
		want []onnx.Value
		got  []ortapi.IO
		to   *[]*mem.Region
		bind func(string, *ortapi.Value) error
	}{{p.In, s.s.Inputs, &s.in, s.b.BindInput}, {p.Out, s.s.Outputs, &s.out, s.b.BindOutput}} {
		if len(side.got) != len(side.want) {
			return 0, diag.New(diag.ClassRun, "the library sees %d operands, want %d", len(side.got), len(side.want))
		}
		for i, v := range side.want {
			if g := side.got[i]; g.Name != v.Name || g.Type != ortapi.ElementType(v.Type) || !slices.Equal(g.Shape, v.Dims) {
				return 0, diag.New(diag.ClassRun, "the library takes operand %d as %q of type %v %v, want %q of type %v %v", i, g.Name, g.Type, g.Shape, v.Name, ortapi.ElementType(v.Type), v.Dims)
			}
			bytes := ortapi.ElementType(v.Type).Bytes()
			for _, d := range v.Dims {
				bytes *= d // of a parsed model and a valid graph: no overflow
			}
			r, err := mem.Alloc(int(bytes), driver.Align)
			if err != nil {
				return 0, err
			}
			*side.to = append(*side.to, r)
			t, err := l.env.NewTensor(r.Bytes(), ortapi.ElementType(v.Type), v.Dims)
			if err != nil {
				return 0, err
			}
			s.values = append(s.values, t)
			if err := side.bind(v.Name, t); err != nil {
				return 0, err
			}
		}
	}
	l.next++
	l.sessions[l.next] = s
	return l.next, nil
}

// placed refuses a session in which the provider did not take the compiled graph, or the CPU computes more than
// conversions: the library would compute there, and say nothing.
func placed(s *ortapi.Session) error {
	list, err := s.Placement()
	if err != nil {
		return err
	}
	compiled := 0
	for _, p := range list {
		for _, n := range p.Nodes {
			switch {
			case n.Op == "EPContext" && p.Provider == ortapi.QNNProvider:
				compiled++
			case n.Op == "EPContext" || p.Provider != ortapi.QNNProvider && !edges[n.Op]:
				return diag.New(diag.ClassRun, "%s would run on %s: want the compiled graph on %s, and nothing but conversions elsewhere", n.Op, p.Provider, ortapi.QNNProvider)
			}
		}
	}
	if compiled != 1 {
		return diag.New(diag.ClassRun, "%s took %d compiled graphs, want one", ortapi.QNNProvider, compiled)
	}
	return nil
}

func (l *local) run(id int, in, out [][]byte) error {
	s := l.sessions[id]
	if s == nil || len(in) != len(s.in) || len(out) != len(s.out) {
		return errors.New("no such program, or other operands than its own")
	}
	for i, r := range s.in {
		if len(in[i]) != len(r.Bytes()) {
			return fmt.Errorf("input %d has %d bytes, want %d", i, len(in[i]), len(r.Bytes()))
		}
		copy(r.Bytes(), in[i])
	}
	if err := s.s.Run(s.b); err != nil {
		return err
	}
	for i, r := range s.out {
		if len(out[i]) != len(r.Bytes()) {
			return fmt.Errorf("output %d has %d bytes, want %d", i, len(out[i]), len(r.Bytes()))
		}
		copy(out[i], r.Bytes())
	}
	return nil
}

func (l *local) unload(id int) error {
	s := l.sessions[id]
	if s == nil {
		return nil
	}
	delete(l.sessions, id)
	return s.close()
}

func (s *session) close() error {
	err := s.s.Close() // and its binding
	for _, v := range s.values {
		err = errors.Join(err, v.Close())
	}
	for _, r := range slices.Concat(s.in, s.out) {
		err = errors.Join(err, r.Close())
	}
	return err
}

func (l *local) close() error {
	var err error
	for id := range l.sessions {
		err = errors.Join(err, l.unload(id))
	}
	return errors.Join(err, l.env.Close())
}
