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

			index := slices.IndexFunc(s.classes, func(c productClass) bool { return c.weight == node.W[0] })
			if index < 0 {
				index = len(s.classes)
				head := s.isHead(sec.Name)
				s.classes = append(s.classes,
					productClass{weight: node.W[0], k: operator.K, n: operator.N, head: head,
						shared: head && len(s.want.PrefillHead) == 0, expert: operator.Kind == op.ExpertMatMul})
			}

			class, name := &s.classes[index], sec.Name+"."+node.Name
			class.copies += max(1, sec.Layers) * max(1, operator.Experts)
			if !slices.Contains(class.nodes, name) {
				class.nodes = append(class.nodes, name)
			}
			s.classOf[name] = index
		}
	}
}

// tiedEmbedding is an embedding that looks rows up in the matrix of a tied head where that is packed in 8 or 6 bit: one
// copy serves both.
type tiedEmbedding struct {
	node   string      // "embed.embed"
	head   int         // class
	tables []op.Scheme // of the embedding, as the head's scheme may have them
	// refused says why the embedding does not use a table that a processor could look up.
	refused map[op.Scheme]error
}

// exists reports whether the embedding looks rows up in the head under at least one scheme.
func (t *tiedEmbedding) exists() bool { return t != nil && len(t.tables) > 0 }

// table returns the scheme of the embedding for a scheme of the head, "" if it reads rows as they are stored.
func (t *tiedEmbedding) table(head op.Scheme) op.Scheme {
	if t != nil && slices.Contains(t.tables, head.Table()) {
		return head.Table()
	}
	return ""
}

// warnUntiedEmbedding warns if the embedding could have been looked up in the packed head, and why it is not. Its table
// then takes memory beside the head.
func (s *schemeChoice) warnUntiedEmbedding() {
	if s.tied == nil {
		return
	}
	err := s.tied.refused[s.decode[s.tied.head].Table()]
	if err == nil && s.prefill != nil {
		err = s.tied.refused[s.prefill[s.tied.head].Table()]
	}
	if err != nil {
		s.warn("the embedding is not looked up in the packed head, and takes memory beside it: %v", err)
	}
}

// findTiedEmbedding decides whether the embedding reads its rows from the packed head. At least one processor must be
// able to, its price must be known, and if quality is limited its loss must be known.
func (s *schemeChoice) findTiedEmbedding() {
	for i := range s.graph.Sections {
		sec := &s.graph.Sections[i]
		for j := range sec.Nodes {
			node := &sec.Nodes[j]
			head := slices.IndexFunc(s.classes, func(c productClass) bool { return c.weight == node.Packed })
			if node.Packed == "" || head < 0 || s.foldsInto(node.Packed) {
				continue
			}
			if tied := s.tie(sec.Name+"."+node.Name, node, head); len(tied.tables)+len(tied.refused) > 0 {
				s.tied = tied
			}
		}
	}
}

// foldsInto reports whether the calibration multiplies a fold into a weight, which then no longer holds the embedding's
// values.
func (s *request) foldsInto(weight string) bool {
	cal := s.in.Calibration
	return cal != nil && slices.ContainsFunc(s.graph.Folds(), func(fold models.FoldGroup) bool {
		return slices.Contains(fold.Multiply, weight) && slices.Contains(cal.Groups(), fold.Name)
	})
}

// tie finds out which tables an embedding may use, of those that the schemes permitted for the head give.
func (s *schemeChoice) tie(name string, node *models.Node, head int) *tiedEmbedding {
	tied := &tiedEmbedding{node: name, head: head, refused: map[op.Scheme]error{}}
	needsLoss := s.in.Calibration != nil && s.want.MaxKL != (workload.KLLimit{})
	for _, scheme := range s.permittedInAny(&s.classes[head]) {
		table := scheme.Table()
		if table == "" || slices.Contains(tied.tables, table) {
			continue
		}

		ok, err := s.looksUp(node, table)
		if ok && needsLoss && s.tableLoss(name, table) == nil {
			ok, err = false, errors.New("the calibration does not say what that loses")
		}
		if ok {
			tied.tables = append(tied.tables, table)
		} else if err != nil {
			tied.refused[table] = err
		}
	}
	return tied
}

// looksUp reports whether some processor looks rows up in packed tiles. The error says why the price of one that could
// is not known.
func (s *request) looksUp(node *models.Node, table op.Scheme) (ok bool, err error) {
	for _, proc := range s.Procs {
		otherKinds := len(proc.Kinds) > 0 && !slices.Contains(proc.Kinds, op.Embed)
		if otherKinds || proc.Layouts[table.Weight()] != op.TilesLayout {
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
		if tied := s.tied; tied != nil && node == tied.node {
			if table := tied.table(schemes[tied.head]); table != "" {
				return table
			}
		}
		if class, ok := s.classOf[lower.ClassOf(node)]; ok {
			return schemes[class]
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

	if tied := s.tied; tied.table(scheme) != "" && class == &s.classes[tied.head] {
		loss := s.tableLoss(tied.node, tied.table(scheme))
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
