package drivertest

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/runtime/driver"
)

// array is a dense [rows,cols] matrix of numbers in double precision.
type array struct {
	value op.Value
	v     []float64
	// size is what the error of an element is compared with: the sum of the magnitudes that went into it. For
	// u8 it is the permitted difference: 1 where the exact value lies between two codes.
	size []float64
}

func newArray(v op.Value) *array {
	n := v.Rows * v.Cols
	return &array{value: v, v: make([]float64, n), size: make([]float64, n)}
}

func (a *array) at(r, c int) float64 { return a.v[r*a.value.Cols+c] }

// set stores a float32 result and the magnitude of its terms.
func (a *array) set(r, c int, v, size float64) {
	i := r*a.value.Cols + c
	a.v[i], a.size[i] = float64(float32(v)), math.Max(math.Abs(v), size)
}

// stored is a weight as its packed bytes stand for it, [K,N].
type stored struct {
	k, n int
	v    []float32
}

// cache is one layer's keys and values, [kvHeads*maxContext, headDim] each.
type cache struct {
	typ          op.Type
	heads, dim   int
	maxContext   int
	k, v         []float64
	kbuf, vbuf   driver.Buffer
	kview, vview driver.View
}

// evaluate computes every node of g in double precision, straight from the definitions, for the rows
// in use. It rounds values to float32 between nodes, as every processor stores them.
func evaluate(g *op.Graph, vals map[string]*array, weights map[string]stored, c *cache, s driver.Scalars) {
	for i := range g.Nodes {
		n := &g.Nodes[i]
		o := n.Op
		rows := min(o.M, s.Rows)
		var in, out []*array
		for _, name := range n.In {
			in = append(in, vals[name])
		}
		for _, name := range n.Out {
			out = append(out, vals[name])
		}
		var w stored
		if len(n.W) > 0 {
			w = weights[n.W[0]]
		}
		switch o.Kind {
		case op.Embed:
			for r := range rows {
				id := int(in[0].at(r, 0))
				for j := range o.N {
					out[0].set(r, j, float64(w.v[id*o.N+j]), 0)
				}
			}
		case op.SelectRow:
			for j := range o.N {
				out[0].set(0, j, in[0].at(s.Row, j), 0)
			}
		case op.Copy:
			for r := range rows {
				for j := range o.N {
					y := out[0]
					y.v[r*o.N+j], y.size[r*o.N+j] = in[0].at(r, j), 0
				}
			}
		case op.Norm:
			for r := range rows {
				sum := 0.0
				for j := range o.N {
					sum += in[0].at(r, j) * in[0].at(r, j)
				}
				root := math.Sqrt(sum/float64(o.N) + o.Eps)
				for j := range o.N {
					v := 0.0
					if x := in[0].at(r, j); x != 0 {
						v = x / root * float64(w.v[j])
					}
					out[0].set(r, j, v, 0)
				}
			}
		case op.QuantRows:
			for r := range rows {
				top := 0.0
				for j := range o.N {
					top = math.Max(top, math.Abs(in[0].at(r, j)))
				}
				scale := float64(float32(top / 127))
				out[1].set(r, 0, scale, 0)
				for j := range o.N {
					q, doubt := 0.0, 0.0
					if scale != 0 {
						exact := in[0].at(r, j) / scale
						q = math.Max(-127, math.Min(127, math.RoundToEven(exact)))
						if f := math.Abs(exact - math.Trunc(exact)); math.Abs(f-0.5) < 1e-3 {
							doubt = 1
						}
					}
					y := out[0]
					y.v[r*o.N+j], y.size[r*o.N+j] = 128+q, doubt
				}
			}
		case op.MatMul:
			for r := range rows {
				scale, zero := 1.0, 0.0
				if o.Scheme.QuantisedRows() {
					scale, zero = in[1].at(r, 0), 128
				}
				for j := range o.N {
					sum, size := 0.0, 0.0
					for p := range o.K {
						v := (in[0].at(r, p) - zero) * scale * float64(w.v[p*o.N+j])
						sum, size = sum+v, size+math.Abs(v)
					}
					out[0].set(r, j, sum, size)
				}
			}
		case op.GLU:
			for r := range rows {
				for j := range o.N {
					at := j/o.Interleave*2*o.Interleave + j%o.Interleave
					gate, up := in[0].at(r, at), in[0].at(r, at+o.Interleave)
					out[0].set(r, j, gate/(1+math.Exp(-gate))*up, 0)
				}
			}
		case op.Add:
			for r := range rows {
				for j := range o.N {
					a, b := in[0].at(r, j), in[1].at(r, j)
					out[0].set(r, j, a+b, math.Abs(a)+math.Abs(b))
				}
			}
		case op.Rope:
			group, half := o.Heads/o.KVHeads, o.HeadDim/2
			x, y := in[0], out[0]
			for r := range rows {
				row := append([]float64(nil), x.v[r*x.value.Cols:(r+1)*x.value.Cols]...)
				for j, v := range row {
					y.set(r, j, v, 0)
				}
				for h := range o.Heads + o.KVHeads {
					// The group's queries, then its key; its value is not rotated.
					from := (h/(group+1)*(group+2) + h%(group+1)) * o.HeadDim
					for i := range half {
						angle := float64(float32(s.Pos+r) * w.v[i])
						sin, cos := math.Sincos(angle)
						a, b := row[from+i], row[from+i+half]
						y.set(r, from+i, a*cos-b*sin, math.Abs(a)+math.Abs(b))
						y.set(r, from+i+half, b*cos+a*sin, math.Abs(a)+math.Abs(b))
					}
				}
			}
		case op.KVAppend:
			group := o.Heads / o.KVHeads
			for r := range rows {
				for g := range o.KVHeads {
					for d := range o.HeadDim {
						at := (g*c.maxContext+s.Pos+r)*o.HeadDim + d
						key := (g*(group+2)+group)*o.HeadDim + d
						c.k[at] = round(o.KV, in[0].at(r, key))
						c.v[at] = round(o.KV, in[0].at(r, key+o.HeadDim))
					}
				}
			}
		case op.Attention:
			group := o.Heads / o.KVHeads
			for r := range rows {
				for h := range o.Heads {
					g := h / group
					query := (g*(group+2) + h%group) * o.HeadDim
					share := make([]float64, s.Pos+r+1)
					top := math.Inf(-1)
					for p := range share {
						for d := range o.HeadDim {
							share[p] += in[0].at(r, query+d) * c.k[(g*c.maxContext+p)*o.HeadDim+d]
						}
						share[p] /= math.Sqrt(float64(o.HeadDim))
						top = math.Max(top, share[p])
					}
					sum, steep := 0.0, 1.0
					for p, v := range share {
						steep = math.Max(steep, math.Abs(v)) // an error of a score counts that often
						share[p] = math.Exp(v - top)
						sum += share[p]
					}
					for d := range o.HeadDim {
						v, size := 0.0, 0.0
						for p, e := range share {
							term := e / sum * c.v[(g*c.maxContext+p)*o.HeadDim+d]
							v, size = v+term, size+math.Abs(term)
						}
						out[0].set(r, h*o.HeadDim+d, v, size*steep)
					}
				}
			}
		default:
			panic(fmt.Sprintf("BUG: no oracle for operator %q", o.Kind))
		}
	}
}

// round is v as stored in type t.
func round(t op.Type, v float64) float64 {
	var b [4]byte
	encode(b[:], t, v)
	return decode(b[:], t)
}

// encode stores a number; f16 rounds to nearest, ties to even, bf16 must be exact.
func encode(b []byte, t op.Type, v float64) {
	switch t {
	case op.F32:
		binary.LittleEndian.PutUint32(b, math.Float32bits(float32(v)))
	case op.I32:
		binary.LittleEndian.PutUint32(b, uint32(int32(v)))
	case op.U8:
		b[0] = uint8(v)
	case op.I8:
		b[0] = uint8(int8(v))
	case op.BF16:
		binary.LittleEndian.PutUint16(b, uint16(math.Float32bits(float32(v))>>16))
	case op.F16:
		h, a := uint16(0), math.Abs(v)
		if math.Signbit(v) {
			h = 1 << 15
		}
		if a != 0 {
			e := max(-14, math.Ilogb(a))
			m := math.RoundToEven(math.Ldexp(a, 10-e)) // units of 2^(e-10); 1024..2048 unless subnormal
			if m < 1024 {
				h |= uint16(m)
			} else {
				h |= uint16(e+14)<<10 + uint16(m) // the implicit bit counts as one exponent step
			}
		}
		binary.LittleEndian.PutUint16(b, h)
	default:
		panic("BUG: type " + string(t))
	}
}

func decode(b []byte, t op.Type) float64 {
	switch t {
	case op.F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
	case op.I32:
		return float64(int32(binary.LittleEndian.Uint32(b)))
	case op.U8:
		return float64(b[0])
	case op.I8:
		return float64(int8(b[0]))
	case op.BF16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16))
	case op.F16:
		h := binary.LittleEndian.Uint16(b)
		e, m := int(h>>10&31), float64(h&1023)
		v := math.Ldexp(m, -24)
		if e > 0 {
			v = math.Ldexp(m+1024, e-25)
		}
		if h>>15 == 1 {
			v = -v
		}
		return v
	}
	panic("BUG: type " + string(t))
}
