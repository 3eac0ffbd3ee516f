package solver

import (
	"errors"
	"slices"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/calibration"
	"github.com/hetc/hetc/planir/lower"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/solver/price"
	"github.com/hetc/hetc/solver/workload"
)

// productClass is a weight whose scheme is a choice. Every node that multiplies by it has the same scheme, so that
// its packed copies are shared.
type productClass struct {
	weight string
	nodes  []string // as decisions name them
	head   bool     // one row whatever the bucket is
	shared bool     // prefill has it in decode's scheme: the head, unless the workload lists prefill's
	k, n   int
	copies int // matrices of that size: layers and experts
	expert bool
}

// bytes returns what the class takes in a weight format, without padding.
func (c *productClass) bytes(format string) int64 {
	return int64(c.copies) * op.WeightBytes(format, c.k, c.n)
}

// findClasses lists the classes in the order of the graph, with classOf for their nodes. Nodes that must be exact
// have no class.
func (s *schemeChoice) findClasses() {
	s.classOf = map[string]int{}
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for _, node := range sec.Nodes {
			operator := node.Ops[len(node.Ops)-1]
			if !operator.HasScheme() || node.Exact {
				continue
			}
			k := slices.IndexFunc(s.classes, func(c productClass) bool { return c.weight == node.W[0] })
			if k < 0 {
				k = len(s.classes)
				head := s.isHead(sec.Name)
				s.classes = append(s.classes,
					productClass{weight: node.W[0], k: operator.K, n: operator.N, head: head,
						shared: head && len(s.want.PrefillHead) == 0, expert: operator.Kind == op.ExpertMatMul})
			}
			class, name := &s.classes[k], sec.Name+"."+node.Name
			class.copies += max(1, sec.Layers) * max(1, operator.Experts)
			if !slices.Contains(class.nodes, name) {
				class.nodes = append(class.nodes, name)
			}
			s.classOf[name] = k
		}
	}
}

// tiedEmbedding is an embedding that looks rows up in the matrix of a tied head where that is packed in 8 or 6 bit: one
// copy serves both.
type tiedEmbedding struct {
	node   string      // "embed.embed"
	head   int         // class
	tables []op.Scheme // of the embedding, as the head's scheme may have them
	// why the embedding reads rows as they are stored under other schemes of the head, though a processor could
	not map[op.Scheme]error
}

// exists reports whether the embedding looks rows up in the head under at least one scheme.
func (p *tiedEmbedding) exists() bool { return p != nil && len(p.tables) > 0 }

// table returns the scheme of the embedding for a scheme of the head, "" if it reads rows as they are stored.
func (p *tiedEmbedding) table(head op.Scheme) op.Scheme {
	if p != nil && slices.Contains(p.tables, head.Table()) {
		return head.Table()
	}
	return ""
}

// findTiedEmbedding decides whether the embedding reads its rows from the packed head. At least one processor must be
// able to, its price must be known, and if quality is limited its loss must be known.
func (s *schemeChoice) findTiedEmbedding() {
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for _, node := range sec.Nodes {
			k := slices.IndexFunc(s.classes, func(c productClass) bool { return c.weight == node.Packed })
			if node.Packed == "" || k < 0 {
				continue
			}
			cal := s.in.Calibration
			if cal != nil && slices.ContainsFunc(s.graph.Folds(), func(f models.FoldGroup) bool {
				return slices.Contains(f.Multiply, node.Packed) && slices.Contains(cal.Groups(), f.Name)
			}) {
				continue // the head no longer holds the table's values
			}
			found := &tiedEmbedding{node: sec.Name + "." + node.Name, head: k, not: map[op.Scheme]error{}}
			for _, scheme := range s.permittedInAny(&s.classes[k]) {
				table := scheme.Table()
				if table == "" || slices.Contains(found.tables, table) {
					continue
				}
				ok, err := s.looksUp(&node, table)
				if ok && cal != nil && s.want.MaxKL != (workload.KLLimit{}) && s.tableLoss(found.node, table) == nil {
					ok, err = false, errors.New("the calibration does not say what that loses")
				}
				if ok {
					found.tables = append(found.tables, table)
				} else if err != nil {
					found.not[table] = err
				}
			}
			if len(found.tables)+len(found.not) > 0 {
				s.tied = found
			}
		}
	}
}

// looksUp reports whether some processor looks rows up in packed tiles. The error says why the price of one that could
// is not known.
func (s *request) looksUp(node *models.Node, table op.Scheme) (ok bool, err error) {
	for _, proc := range s.Procs {
		if len(proc.Kinds) > 0 && !slices.Contains(proc.Kinds, op.Embed) ||
			proc.Layouts[table.Weight()] != op.TilesLayout {
			continue
		}
		var unknown error
		for _, rows := range s.want.Rows() {
			operator := node.Ops[0]
			operator.M, operator.Scheme, operator.Table = rows, table, ""
			if _, unknown = s.prices.Together([]price.Task{{Proc: proc.Name, Op: operator}}); unknown != nil {
				break
			}
		}
		if unknown == nil {
			return true, nil
		}
		err = unknown
	}
	return false, err
}

// tableLoss returns the loss of looking rows up in the head, by the calibration; nil if that was not measured.
func (s *request) tableLoss(node string, table op.Scheme) *calibration.Loss {
	return s.in.Calibration.Loss(node, table, false)
}

// schemeOf returns a function that tells the scheme of a node under an assignment; nodes that must be exact ignore it.
// Nodes that move rows of a group of experts have the scheme of the group's products.
func (s *schemeChoice) schemeOf(schemes assignment) func(node string) op.Scheme {
	return func(node string) op.Scheme {
		if p := s.tied; p != nil && node == p.node {
			if table := p.table(schemes[p.head]); table != "" {
				return table
			}
		}
		if k, ok := s.classOf[lower.ClassOf(node)]; ok {
			return schemes[k]
		}
		return op.A32W32
	}
}

// loss returns the loss of a class in a scheme by the calibration: the KL divergence added up over its nodes. It
// returns false if that was not measured. The head's scheme includes the embedding that reads rows from it.
func (s *schemeChoice) loss(class *productClass, scheme op.Scheme) (float64, bool) {
	if scheme == op.A32W32 {
		return 0, true
	}
	cal := s.in.Calibration
	if cal == nil {
		return 0, false
	}
	total := 0.0
	for _, node := range class.nodes {
		loss := cal.Loss(node, scheme, len(cal.Folds) > 0)
		if loss == nil && len(cal.Folds) > 0 {
			loss = cal.Loss(node, scheme, false) // of a class that no fold touches
		}
		if loss == nil {
			return 0, false
		}
		total += max(0, loss.KL)
	}
	if packed := s.tied; packed.table(scheme) != "" && class == &s.classes[packed.head] {
		loss := s.tableLoss(packed.node, packed.table(scheme))
		if loss == nil {
			return 0, false
		}
		total += max(0, loss.KL)
	}
	return total, true
}

// permitted returns the schemes that the workload permits a class in a phase, none where prefill has the scheme of
// decode.
func (s *request) permitted(class *productClass, phase string) []op.Scheme {
	switch {
	case phase == "prefill" && class.shared:
		return nil
	case phase == "prefill" && class.head:
		return s.want.PrefillHead
	case phase == "prefill":
		return s.want.Prefill
	case class.head && len(s.want.Head) > 0:
		return s.want.Head
	}
	return s.want.Decode
}

// permittedInAny returns the schemes that the workload permits a class in some phase.
func (s *request) permittedInAny(class *productClass) []op.Scheme {
	return slices.Concat(s.permitted(class, "decode"), s.permitted(class, "prefill"))
}

// countHeads returns how many classes have decode's scheme in prefill, too.
func (s *schemeChoice) countHeads() (count int) {
	for i := range s.classes {
		if s.classes[i].shared {
			count++
		}
	}
	return count
}
