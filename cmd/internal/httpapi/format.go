package httpapi

// head is what every document of an answer begins with.
type head struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Created     int64  `json:"created"` // Unix seconds
	Model       string `json:"model"`
	Fingerprint string `json:"system_fingerprint"`
	Tier        string `json:"service_tier,omitempty"`
}

// usage counts tokens.
type usage struct {
	Prompt     int           `json:"prompt_tokens"`
	Completion int           `json:"completion_tokens"`
	Total      int           `json:"total_tokens"`
	Details    promptDetails `json:"prompt_tokens_details"`
}

// promptDetails say how much of the prompt was computed before.
type promptDetails struct {
	Cached int `json:"cached_tokens"`
}

// part is a piece of an answer, or all of it.
type part struct {
	text   string
	scores []scored
	finish *string // nil: more follows
	first  bool
}

// format is how an endpoint writes answers.
type format interface {
	// whole is the document of an answer at once.
	whole(h head, p part, scored bool, u usage) any
	// event is one of a stream. u is nil where no usage was asked for, and points to nil in events before the last.
	event(h head, p part, scored bool, u **usage) any
	// last is the event with the usage.
	last(h head, u usage) any
}

// document is what both endpoints write; C is the type of the choice.
type document[C any] struct {
	head
	Choices []C     `json:"choices"`
	Usage   **usage `json:"usage,omitempty"`
}

// documentOf returns a document with one choice.
func documentOf[C any](h head, object string, choice C, u **usage) document[C] {
	h.Object = object
	return document[C]{h, []C{choice}, u}
}

// usageOf returns an event with the usage and no choice.
func usageOf[C any](h head, object string, u usage) document[C] {
	h.Object = object
	counted := &u
	return document[C]{h, []C{}, &counted}
}

// chatFormat is that of chat completions.
type chatFormat struct{}

const (
	chatObject  = "chat.completion"
	chunkObject = "chat.completion.chunk"
	role        = "assistant"
)

type chatMessage struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"`
}

type chatChoice struct {
	Index    int         `json:"index"`
	Message  chatMessage `json:"message"`
	LogProbs *chatScores `json:"logprobs"`
	Finish   *string     `json:"finish_reason"`
}

type chatDelta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

type chatChunk struct {
	Index    int         `json:"index"`
	Delta    chatDelta   `json:"delta"`
	LogProbs *chatScores `json:"logprobs"`
	Finish   *string     `json:"finish_reason"`
}

type chatScores struct {
	Content []chatScore `json:"content"`
	Refusal *string     `json:"refusal"`
}

type chatLikely struct {
	Token   string  `json:"token"`
	LogProb float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

type chatScore struct {
	chatLikely
	Likely []chatLikely `json:"top_logprobs"`
}

// chatScoresOf writes scores, nil where none are asked for.
func chatScoresOf(scores []scored, asked bool) *chatScores {
	if !asked {
		return nil
	}
	out := &chatScores{Content: []chatScore{}}
	one := func(s *scored) chatLikely { return chatLikely{s.text, finite(s.logProb), bytesOf(s.text)} }
	for i := range scores {
		score := chatScore{one(&scores[i]), []chatLikely{}}
		for j := range scores[i].likely {
			score.Likely = append(score.Likely, one(&scores[i].likely[j]))
		}
		out.Content = append(out.Content, score)
	}
	return out
}

func (chatFormat) whole(h head, p part, asked bool, u usage) any {
	counted := &u
	return documentOf(h, chatObject, chatChoice{
		Message: chatMessage{Role: role, Content: p.text}, LogProbs: chatScoresOf(p.scores, asked), Finish: p.finish,
	}, &counted)
}

func (chatFormat) event(h head, p part, asked bool, u **usage) any {
	delta := chatDelta{}
	if p.first {
		delta.Role = role
	}
	if p.first || p.text != "" {
		delta.Content = &p.text
	}
	return documentOf(h, chunkObject,
		chatChunk{Delta: delta, LogProbs: chatScoresOf(p.scores, asked && len(p.scores) > 0), Finish: p.finish}, u)
}

func (chatFormat) last(h head, u usage) any { return usageOf[chatChunk](h, chunkObject, u) }

// textFormat is that of completions.
type textFormat struct{}

const textObject = "text_completion"

type textChoice struct {
	Index    int         `json:"index"`
	Text     string      `json:"text"`
	LogProbs *textScores `json:"logprobs"`
	Finish   *string     `json:"finish_reason"`
}

type textScores struct {
	Tokens   []string             `json:"tokens"`
	LogProbs []float64            `json:"token_logprobs"`
	Likely   []map[string]float64 `json:"top_logprobs"`
	Offsets  []int                `json:"text_offset"` // in bytes
}

// textScoresOf writes scores, nil where none are asked for.
func textScoresOf(scores []scored, asked bool) *textScores {
	if !asked {
		return nil
	}
	out := &textScores{Tokens: []string{}, LogProbs: []float64{}, Likely: []map[string]float64{}, Offsets: []int{}}
	for i := range scores {
		likely := map[string]float64{}
		for _, other := range scores[i].likely {
			if _, there := likely[other.text]; !there { // the likelier of two with the same text
				likely[other.text] = finite(other.logProb)
			}
		}
		// The token itself is always among them, as clients that look it up want: one more than was asked for.
		if _, there := likely[scores[i].text]; !there {
			likely[scores[i].text] = finite(scores[i].logProb)
		}
		out.Tokens = append(out.Tokens, scores[i].text)
		out.LogProbs = append(out.LogProbs, finite(scores[i].logProb))
		out.Likely = append(out.Likely, likely)
		out.Offsets = append(out.Offsets, scores[i].from)
	}
	return out
}

func (textFormat) whole(h head, p part, asked bool, u usage) any {
	counted := &u
	return documentOf(h, textObject,
		textChoice{Text: p.text, LogProbs: textScoresOf(p.scores, asked), Finish: p.finish}, &counted)
}

func (textFormat) event(h head, p part, asked bool, u **usage) any {
	return documentOf(h, textObject,
		textChoice{Text: p.text, LogProbs: textScoresOf(p.scores, asked && len(p.scores) > 0), Finish: p.finish}, u)
}

func (textFormat) last(h head, u usage) any { return usageOf[textChoice](h, textObject, u) }
