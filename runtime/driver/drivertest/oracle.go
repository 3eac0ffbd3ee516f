package drivertest

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

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
	// slack is what a processor that rounds activations again may differ by; of an activation function, the magnitude
	// of its argument (times what the result is multiplied by).
	slack []float64
	// doubt is a further permitted difference: where the exact value lies between two that a result is rounded to.
	doubt []float64
}

func newArray(v op.Value) *array {
	elems := v.Rows * v.Cols
	return &array{value: v, v: make([]float64, elems), size: make([]float64, elems), slack: make([]float64, elems), doubt: make([]float64, elems)}
}

func (a *array) at(r, c int) float64 { return a.v[r*a.value.Cols+c] }

// set stores a float32 result and the magnitude of its terms.
func (a *array) set(r, c int, v, size float64) {
	i := r*a.value.Cols + c
	a.v[i], a.size[i] = float64(float32(v)), math.Max(math.Abs(v), size)
}

// stored is a weight as its packed bytes stand for it: [K,N], or as many of them one behind the other as it has
// experts.
type stored struct {
	k, n int
	v    []float32
}

// rowsInUse is the number of rows of a value that a call of that many tokens uses: nodes compute tokens, and
// have one row or fan rows for each.
func rowsInUse(g *op.Graph, name string, tokens int) int {
	rows := 0
	note := func(names []string, values []op.Value, m int) {
		for i, value := range values {
			if names[i] == name {
				rows = max(rows, min(m, value.Rows, tokens)*max(1, value.Rows/m))
			}
		}
	}
	for _, node := range g.Nodes {
		sig := node.Op.Sig()
		note(node.In, sig.In, node.Op.M)
		note(node.Out, sig.Out, node.Op.M)
	}
	return rows
}

// cache is one layer's keys and values of some sequences, [sequences*kvHeads*maxContext, headDim] each.
type cache struct {
	typ          op.Type
	heads, dim   int
	maxContext   int
	sequences    int
	k, v         []float64
	kbuf, vbuf   driver.Buffer
	kview, vview driver.View
}

// row is the row of a position and head in the caches of all sequences.
func (c *cache) row(at driver.Place, head int) int {
	return (at.Sequence*c.heads+head)*c.maxContext + at.Pos
}

// placeOf is where row r of a node lies.
func placeOf(o op.Op, s *driver.Scalars, r int) driver.Place {
	if o.Batch {
		return s.Batch[r]
	}
	return driver.Place{Sequence: s.Sequence, Pos: s.Pos + r}
}

// reroundSlack is how far column j of a product with weight w [K,N] is off at most when the activations x are rounded
// to 8 bits with a scale per block.
func reroundSlack(o op.Op, j int, w []float32, x []float64) (slack float64) {
	block := o.Scheme.BlockK()
	if block < 2 {
		return 0
	}
	for from := 0; from < o.K; from += block {
		largest, sum := 0.0, 0.0
		for place := from; place < min(o.K, from+block); place++ {
			largest, sum = math.Max(largest, math.Abs(x[place])), sum+math.Abs(float64(w[place*o.N+j]))
		}
		slack += largest / 127 / 2 * sum
	}
	return slack
}

// evaluate computes every node of g in double precision, straight from the definitions, for the rows
// in use. It rounds values to float32 between nodes, as every processor stores them.
func evaluate(g *op.Graph, vals map[string]*array, weights map[string]stored, c *cache, s driver.Scalars) {
	for i := range g.Nodes {
		n := &g.Nodes[i]
		o := n.Op
		tokens := min(o.M, s.Rows)
		rows := tokens * max(1, o.Fan)
		var in, out []*array
		for _, name := range n.In {
			in = append(in, vals[name])
		}
		for _, name := range n.Out {
			out = append(out, vals[name])
		}
		var w, w1 stored
		if len(n.W) > 0 {
			w, w1 = weights[n.W[0]], weights[n.W[len(n.W)-1]]
		}
		switch o.Kind {
		case op.Embed:
			for r := range rows {
				id := int(in[0].at(r, 0))
				for j := range o.N {
					at := id*o.N + j
					if o.Scheme != "" {
						at = j*o.K + id
					}
					v := float64(w.v[at])
					if o.Scale != 0 {
						v *= o.Scale
					}
					out[0].set(r, j, v, 0)
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
		case op.LayerNorm:
			for r := range rows {
				mean, sum := 0.0, 0.0
				for j := range o.N {
					mean += in[0].at(r, j) / float64(o.N)
				}
				for j := range o.N {
					sum += (in[0].at(r, j) - mean) * (in[0].at(r, j) - mean)
				}
				root := math.Sqrt(sum/float64(o.N) + o.Eps)
				for j := range o.N {
					x, gain, bias := in[0].at(r, j), float64(w.v[j]), float64(w1.v[j])
					v, size := 0.0, 0.0
					if x != mean {
						v, size = (x-mean)/root*gain, (math.Abs(x)+math.Abs(mean))/root*math.Abs(gain)
					}
					out[0].set(r, j, v+bias, size+math.Abs(bias))
				}
			}
		case op.QKNorm:
			group := o.Heads / o.KVHeads
			head := func(h int) int { return (h/(group+1)*(group+2) + h%(group+1)) * o.HeadDim } // queries, then a key, of each group
			x, y := in[0], out[0]
			for r := range rows {
				row := append([]float64(nil), x.v[r*x.value.Cols:(r+1)*x.value.Cols]...)
				for j, v := range row {
					y.set(r, j, v, 0)
				}
				squares := make([]float64, o.Heads+o.KVHeads)
				queries, keys := 0.0, 0.0
				for h := range squares {
					for _, v := range row[head(h) : head(h)+o.HeadDim] {
						squares[h] += v * v
					}
					if h%(group+1) == group {
						keys += squares[h]
					} else {
						queries += squares[h]
					}
				}
				for h := range squares {
					g, i := h/(group+1), h%(group+1)
					mean, gain := squares[h]/float64(o.HeadDim), w.v
					if i == group {
						gain = w1.v
					}
					switch {
					case o.Joint && i < group:
						mean, gain = queries/float64(o.Heads*o.HeadDim), gain[(g*group+i)*o.HeadDim:]
					case o.Joint:
						mean, gain = keys/float64(o.KVHeads*o.HeadDim), gain[g*o.HeadDim:]
					}
					for d := range o.HeadDim {
						if v := row[head(h)+d]; v != 0 {
							y.set(r, head(h)+d, v/math.Sqrt(mean+o.Eps)*float64(gain[d]), 0)
						}
					}
				}
			}
		case op.QuantRows:
			for r := range rows {
				top := 0.0
				for j := range o.N {
					top = math.Max(top, math.Abs(in[0].at(r, j)))
				}
				scale := float64(float32(top / 127))
				if o.Static {
					scale = float64(op.StaticScale(w.v, float32(top)))
				}
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
			if o.Scheme == op.A16FW16 {
				half := make([]float32, o.K*o.N)
				for i := range half {
					half[i] = float32(round(op.F16, float64(w.v[i])))
				}
				w.v = half
			}
			for r := range rows {
				scale, zero := 1.0, 0.0
				if o.Scheme.QuantisedRows() {
					scale, zero = in[1].at(r, 0), 128
				}
				narrow, after := narrowing(o, w1)
				x, off := make([]float64, o.K), make([]float64, o.K)
				for p := range x {
					x[p] = (in[0].at(r, p) - zero) * scale
				}
				exact := x
				if narrow != nil {
					x = make([]float64, o.K)
					for p, v := range exact {
						x[p], off[p] = narrow(v, 1e-7*math.Abs(v))
					}
				}
				for j := range o.N {
					sum, size, doubt := 0.0, 0.0, 0.0
					for p, x := range x {
						weight := float64(w.v[p*o.N+j])
						sum, size, doubt = sum+x*weight, size+math.Abs(x*weight), doubt+off[p]*math.Abs(weight)
					}
					if o.Bias {
						bias := float64(weights[n.W[1]].v[j])
						sum, size = sum+bias, size+math.Abs(bias)
					}
					if narrow != nil {
						sum, doubt = after(sum, doubt+1e-5*size)
					}
					out[0].doubt[r*o.N+j] = doubt
					out[0].set(r, j, sum, size)
					out[0].slack[r*o.N+j] = reroundSlack(o, j, w.v, exact)
				}
			}
		case op.ExpertMatMul:
			ids := in[len(in)-1]
			for r := range rows {
				from := r
				if o.Spread {
					from = r / o.Fan
				}
				scale, zero := 1.0, 0.0
				if o.Scheme.QuantisedRows() {
					scale, zero = in[1].at(from, 0), 128
				}
				expert := w.v[int(ids.at(r/o.Fan, r%o.Fan))*o.K*o.N:]
				for j := range o.N {
					sum, size := 0.0, 0.0
					for p := range o.K {
						v := (in[0].at(from, p) - zero) * scale * float64(expert[p*o.N+j])
						sum, size = sum+v, size+math.Abs(v)
					}
					out[0].set(r, j, sum, size)
				}
			}
		case op.Route:
			for r := range tokens {
				logits := in[0].v[r*o.Experts : (r+1)*o.Experts]
				for j, c := range chooseExperts(o, logits) {
					out[0].set(r, j, float64(c.expert), 0)
					out[1].set(r, j, c.weight, c.size)
				}
			}
		case op.Combine:
			for r := range tokens {
				for j := range o.N {
					sum, size := 0.0, 0.0
					for i := range o.Fan {
						v := in[0].at(r*o.Fan+i, j) * in[1].at(r, i)
						sum, size = sum+v, size+math.Abs(v)
					}
					out[0].set(r, j, sum, size)
				}
			}
		case op.GLU:
			for r := range rows {
				for j := range o.N {
					at := j/o.Interleave*2*o.Interleave + j%o.Interleave
					y, size := activation(o.Act, in[0].at(r, at))
					up := in[0].at(r, at+o.Interleave)
					out[0].set(r, j, y*up, size*math.Abs(up))
					out[0].slack[r*o.N+j] = math.Abs(in[0].at(r, at) * up)
				}
			}
		case op.Activate:
			for r := range rows {
				for j := range o.N {
					y, size := activation(o.Act, in[0].at(r, j))
					out[0].set(r, j, y, size)
					out[0].slack[r*o.N+j] = math.Abs(in[0].at(r, j))
				}
			}
		case op.Softcap:
			for r := range rows {
				for j := range o.N {
					out[0].set(r, j, o.Cap*math.Tanh(in[0].at(r, j)/o.Cap), 0)
				}
			}
		case op.Clip:
			for r := range rows {
				for j := range o.N {
					out[0].set(r, j, min(max(in[0].at(r, j), -o.Cap), o.Cap), 0)
				}
			}
		case op.Gate:
			for r := range rows {
				gate := in[1].at(r, 0)
				for j := range o.N {
					v := in[0].at(r, j) / (1 + math.Exp(-gate))
					out[0].set(r, j, v, math.Abs(v*gate)) // the exponential's error grows with its argument
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
			group, half := o.Heads/o.KVHeads, o.Rotary()/2
			x, y := in[0], out[0]
			for r := range rows {
				at, seq := placeOf(o, &s, r), s.Seq
				if o.Batch {
					seq = at.Pos + 1
				}
				freq, amplitude := rotation(o, w.v, seq)
				row := append([]float64(nil), x.v[r*x.value.Cols:(r+1)*x.value.Cols]...)
				for j, v := range row {
					y.set(r, j, v, 0)
				}
				for h := range o.Heads + o.KVHeads {
					// The group's queries, then its key; its value is not rotated.
					from := (h/(group+1)*(group+2) + h%(group+1)) * o.HeadDim
					for i := range half {
						angle := float64(float32(at.Pos) * freq[i])
						sin, cos := math.Sincos(angle)
						a, b := row[from+i]*amplitude, row[from+i+half]*amplitude
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
						at := c.row(placeOf(o, &s, r), g)*o.HeadDim + d
						key := (g*(group+2)+group)*o.HeadDim + d
						c.k[at] = round(o.KV, in[0].at(r, key))
						c.v[at] = round(o.KV, in[0].at(r, key+o.HeadDim))
					}
				}
			}
		case op.Attention:
			group := o.Heads / o.KVHeads
			for r := range rows {
				end := placeOf(o, &s, r)
				for h := range o.Heads {
					g := h / group
					begin := c.row(driver.Place{Sequence: end.Sequence}, g)
					query := (g*(group+2) + h%group) * o.HeadDim
					share := make([]float64, end.Pos+1)
					top, scale := math.Inf(-1), o.Scale
					if scale == 0 {
						scale = 1 / math.Sqrt(float64(o.HeadDim))
					}
					first := 0
					if o.Window > 0 {
						first = max(0, len(share)-o.Window)
					}
					for p := range share {
						for d := range o.HeadDim {
							share[p] += in[0].at(r, query+d) * c.k[(begin+p)*o.HeadDim+d]
						}
						share[p] *= scale
						if o.Cap > 0 {
							share[p] = o.Cap * math.Tanh(share[p]/o.Cap)
						}
						if p < first {
							share[p] = math.Inf(-1)
							continue
						}
						top = math.Max(top, share[p])
					}
					sum, steep := 0.0, 1.0
					for p, v := range share {
						if p < first {
							share[p] = 0
							continue
						}
						steep = math.Max(steep, math.Abs(v)) // an error of a score counts that often
						share[p] = math.Exp(v - top)
						sum += share[p]
					}
					for d := range o.HeadDim {
						v, size := 0.0, 0.0
						for p, e := range share {
							term := e / sum * c.v[(begin+p)*o.HeadDim+d]
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

// narrowing is how a product rounds its activations and its results to 16 bits, nil where it does not: each returns the
// rounded value, and how far off one may be whose exact value is known up to an error. steps are those of a grid.
func narrowing(operator op.Op, steps stored) (x, y func(v, err float64) (float64, float64)) {
	with := func(to func(v float64) float64) func(v, err float64) (float64, float64) {
		return func(v, err float64) (float64, float64) {
			mid := to(v)
			return mid, math.Max(to(v+err)-mid, mid-to(v-err))
		}
	}
	grid := func(step float32) func(v float64) float64 {
		return func(v float64) float64 {
			return math.Max(-32767, math.Min(32767, math.RoundToEven(v/float64(step)))) * float64(step)
		}
	}
	switch {
	case operator.Scheme.Grid():
		return with(grid(steps.v[0])), with(grid(steps.v[operator.N]))
	case operator.Scheme.Half():
		half := with(func(v float64) float64 { return round(op.F16, v) })
		return half, half
	}
	return nil, nil
}

// activation is act(x), and the magnitude of its terms: exponentials have the errors of their arguments.
func activation(act string, input float64) (output, size float64) {
	sigmoid := func(u float64) (y, size float64) {
		y = input / (1 + math.Exp(-u))
		return y, math.Abs(y) * math.Max(1, math.Abs(u))
	}
	switch act {
	case op.SiLU:
		return sigmoid(input)
	case op.GELU:
		output = input * (1 + math.Erf(input/math.Sqrt2)) / 2
		return output, math.Abs(input)
	case op.GELUTanh:
		return sigmoid(2 * math.Sqrt(2/math.Pi) * (input + 0.044715*input*input*input))
	case op.ReLU:
		return math.Max(input, 0), 0
	}
	panic("BUG: no oracle for activation function " + act)
}

// rotation is the frequencies and the amplitude of a Rope for a sequence of seq positions.
func rotation(o op.Op, table []float32, seq int) (freq []float32, amplitude float64) {
	half := o.Rotary() / 2
	freq, amplitude = table[:half], o.Amplitude
	if o.LongFrom > 0 && seq > o.LongFrom {
		if o.NTK == 0 {
			freq, amplitude = table[half:], o.LongAmplitude
		} else {
			stretch := o.NTK*float64(seq)/float64(o.LongFrom) - (o.NTK - 1)
			freq = make([]float32, half)
			for i := range freq {
				freq[i] = float32(float64(table[i]) * math.Pow(stretch, -float64(i)/float64(half-1)))
			}
		}
	}
	if amplitude == 0 {
		amplitude = 1
	}
	return freq, amplitude
}

type choice struct {
	expert       int
	weight, size float64
}

// chooseExperts sorts the experts of one token by logit, of equal ones the lower index first, and weighs the
// first ones.
func chooseExperts(operator op.Op, logits []float64) []choice {
	order := make([]int, len(logits))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(logits[b], logits[a]) })
	out := make([]choice, operator.Fan)
	for j := range out {
		among := order // the experts of the softmax
		switch operator.Router {
		case op.RouteSoftmaxNorm:
			among = order[:operator.Fan]
		case op.RouteSparseMixer:
			among = nil
			top := float32(logits[order[j]])
			for _, i := range order[j:] {
				logit := float32(logits[i])
				if !((top-logit)/max(float32(math.Abs(logits[i])), top) > float32(2*operator.Jitter)) {
					among = append(among, i)
				}
			}
		}
		own, sum, steep := logits[order[j]], 0.0, 1.0
		for _, i := range among {
			sum += math.Exp(logits[i] - own)
			steep = math.Max(steep, math.Abs(logits[i]-own))
		}
		out[j] = choice{order[j], 1 / sum, steep / sum}
	}
	return out
}

// round is v as stored in type t.
func round(t op.Type, v float64) float64 {
	var b [4]byte
	encode(b[:], t, v)
	return decode(b[:], t)
}

// encode stores a number; f16 rounds to nearest, ties to even, bf16 must be exact.
func encode(dst []byte, elem op.Type, value float64) {
	switch elem {
	case op.F32:
		binary.LittleEndian.PutUint32(dst, math.Float32bits(float32(value)))
	case op.I32:
		binary.LittleEndian.PutUint32(dst, uint32(int32(value)))
	case op.U8:
		dst[0] = uint8(value)
	case op.I8:
		dst[0] = uint8(int8(value))
	case op.BF16:
		binary.LittleEndian.PutUint16(dst, uint16(math.Float32bits(float32(value))>>16))
	case op.F16:
		half, size := uint16(0), math.Abs(value)
		if math.Signbit(value) {
			half = 1 << 15
		}
		if size != 0 {
			exponent := max(-14, math.Ilogb(size))
			fraction := math.RoundToEven(math.Ldexp(size, 10-exponent)) // units of 2^(e-10); 1024..2048 unless subnormal
			if fraction < 1024 {
				half |= uint16(fraction)
			} else {
				half |= uint16(exponent+14)<<10 + uint16(fraction) // the implicit bit counts as one exponent step
			}
		}
		binary.LittleEndian.PutUint16(dst, half)
	default:
		panic("BUG: type " + string(elem))
	}
}

func decode(src []byte, elem op.Type) float64 {
	switch elem {
	case op.F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(src)))
	case op.I32:
		return float64(int32(binary.LittleEndian.Uint32(src)))
	case op.U8:
		return float64(src[0])
	case op.I8:
		return float64(int8(src[0]))
	case op.BF16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(src)) << 16))
	case op.F16:
		half := binary.LittleEndian.Uint16(src)
		exponent, fraction := int(half>>10&31), float64(half&1023)
		value := fraction * 0x1p-24
		if exponent > 0 {
			value = (fraction + 1024) * math.Float64frombits(uint64(1023+exponent-25)<<52) // 2^(e-25)
		}
		if half>>15 == 1 {
			value = -value
		}
		return value
	}
	panic("BUG: type " + string(elem))
}
