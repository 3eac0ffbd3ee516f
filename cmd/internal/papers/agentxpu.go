package papers

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/hetc/hetc/models"
	"github.com/hetc/hetc/planir/op"
	"github.com/hetc/hetc/roofline"
	"github.com/hetc/hetc/socs"
)

// agentxpu are the items of that paper.
var agentxpu = []Item{
	sheetItem("agentxpu", "roofline", "the calibrated roofline's equations", "Eq. 1 to 11, appendix A", agentRoofline,
		"dc_eq4_knee", "dc_eq7_continuity", "dc_eq11_clip_caveat"),
	sheetItem("agentxpu", "chunks", "whole chunks and remainder of a prompt", "Table 2, sec. 4.4", agentChunks,
		"dc_alg1_chunk_math"),
	sheetItem("agentxpu", "alg1", "chunks on the NPU and on the GPU", "Algorithm 1, sec. 4.3", agentDispatch,
		"dc_alg1_n_npu", "dc_alg1_examples_38ms", "dc_alg1_defer", "dc_alg1_vs_makespan"),
	sheetItem("agentxpu", "alg2", "who decodes next", "Algorithm 2, sec. 4.5", agentBatch, "dc_alg2_batch",
		"dc_alg2_no_reactive"),
	sheetItem("agentxpu", "batching", "what batches gain in prefill and in decode", "sec. 3.2, 4.5, Fig. 5",
		agentBatching),
	sheetItem("agentxpu", "preemption", "how long a kernel holds a processor", "sec. 4.4, 6.3", agentPreemption,
		"dc_preemption_bound", "dc_preemption_bound_model", "dc_reactive_wait"),
	sheetItem("agentxpu", "mapping", "which processor an operator is for", "sec. 4.2, 6.4", agentMapping,
		"dc_op_mapping", "dc_power_order"),
	sheetItem("agentxpu", "reductions", "ranges of the abstract against sec. 6.2", "abstract, sec. 1, 6.2",
		agentReductions, "dc_mixed_reduction_range"),
	sheetItem("agentxpu", "serving", "hetserve's scheduler and the baselines on synthetic traces", "sec. 6.1, 6.2", agentServing,
		"dc_scheduler_replay"),
}

// agent is an entry of the paper's data.
func agent(id string) value { return fact("agentxpu", id) }

// agentRoofline checks the equations of appendix A on drawn anchors and kernels: which of their forms are equal,
// and what clipping changes.
func agentRoofline(rows *sheet) error {
	const draws = 1000
	random := rand.New(rand.NewPCG(11, 1))
	// drawn evenly on a logarithmic scale
	between := func(low, high float64) float64 { return low * math.Pow(high/low, random.Float64()) }
	same := func(x, y float64) bool { return math.Abs(x-y) <= 1e-9*max(math.Abs(x), math.Abs(y)) }
	// counts of draws: clipped P_eff; Eq. 4's forms equal, without and with clipping; Eq. 5 and 6
	// equal; Eq. 7 continuous; Eq. 1 holds; Eq. 11 closed, without and with clipping
	var clipped, three, third, times, pieces, bounded, eleven, elevenClipped int
	for range draws {
		anchors := roofline.Anchors{
			PeakOpsPerNS: between(100, 1e5), PeakBytesPerNS: between(5, 1000), MemoryShare: between(0.1, 1),
			ComputeShare: between(0.001, 1), ComputeIntensity: between(1, 1e4),
		}
		flops := between(1, 1e9)
		bytes := flops * between(0.01, 1e5)
		i := bytes / flops
		pEff, bEff := anchors.OpsPerNS(), anchors.BytesPerNS()
		knee := anchors.Knee()
		rate, bandwidth := min(pEff, bEff*i), min(bEff, pEff/i) // Eq. 9, 10
		piece := flops / (anchors.MemoryShare * anchors.PeakBytesPerNS)
		if i >= knee {
			piece = bytes / pEff // Eq. 7
		}
		used := bandwidth / anchors.PeakBytesPerNS
		took := anchors.NS(bytes, flops) // Eq. 5
		if same(took, bytes/rate) && same(took, flops/bandwidth) && same(took, flops/(anchors.PeakBytesPerNS*used)) &&
			same(took, bytes/(anchors.PeakBytesPerNS*used*i)) {
			times++
		}
		if same(took, piece) && same(flops/bEff, knee*flops/pEff) {
			pieces++
		}
		if rate <= min(anchors.PeakOpsPerNS, anchors.PeakBytesPerNS*i)*(1+1e-12) {
			bounded++
		}
		// the forms of Eq. 4: P_eff over u_m B, and the ratio of shares times I_c
		short := same(pEff/(anchors.MemoryShare*anchors.PeakBytesPerNS), knee)
		last := same(anchors.ComputeShare/anchors.MemoryShare*anchors.ComputeIntensity, knee)
		closed := same(min(anchors.MemoryShare, anchors.ComputeShare*anchors.ComputeIntensity/i), used) // Eq. 11
		if anchors.Clipped() {
			clipped++
			if short && !last {
				third++
			}
			if closed {
				elevenClipped++
			}
			continue
		}
		if short && last {
			three++
		}
		if closed {
			eleven++
		}
	}
	// what the draws found
	of := func(n, all int) float64 { return 100 * float64(n) / float64(all) }
	const drawn = "synthetic anchors and kernels, since no anchor is printed; P_eff and B_eff are those of package " +
		"roofline"
	rows.noted(Exact, "eq1_percent", "an upper bound", of(bounded, draws), "eq1_percent", drawn)
	rows.add(Exact, "eq4/three_forms_equal_percent", "equal", of(three, draws-clipped),
		"of the draws in which P_eff is not clipped")
	rows.noted(Exact, "eq4/third_form_when_clipped_percent", nil, 100-of(third, clipped),
		"eq4/third_form_when_clipped_percent")
	rows.noted(Exact, "eq5_eq6_equal_percent", "equal", of(times, draws), "eq5_eq6_equal_percent")
	rows.noted(Exact, "eq7_pieces_meet_percent", "one latency", of(pieces, draws), "eq7_pieces_meet_percent")
	rows.noted(Exact, "eq11/unclipped_percent", "equal", of(eleven, draws-clipped), "eq11/unclipped_percent")
	rows.noted(Exact, "eq11/clipped_percent", "equal", of(elevenClipped, clipped), "eq11/clipped_percent")
	rooflineExamples(rows)
	return rooflineKernels(rows)
}

// rooflineExamples are two anchors by hand, unclipped and clipped, and one that is not compute-bound.
func rooflineExamples(rows *sheet) {
	// Two examples by hand: 600 operations a byte reach 3000 a nanosecond, 1500 would reach 7500 of 5500.
	for _, kernel := range []struct {
		name      string
		intensity float64
	}{{"unclipped", 600}, {"clipped", 1500}} {
		anchors := roofline.Anchors{
			PeakOpsPerNS: 5500, PeakBytesPerNS: 50, MemoryShare: 0.8, ComputeShare: 0.1,
			ComputeIntensity: kernel.intensity,
		}
		rows.noted(Modelled, "example/"+kernel.name+"/P_eff_gops", nil, anchors.OpsPerNS(), "example/P_eff_gops",
			kernel.intensity)
		rows.noted(Modelled, "example/"+kernel.name+"/knee", nil, anchors.Knee(), "example/knee", anchors.BytesPerNS())
		rows.add(Modelled, "example/"+kernel.name+"/knee_third_form", nil,
			anchors.ComputeShare/anchors.MemoryShare*anchors.ComputeIntensity, "(u_c/u_m) I_c")
		rows.noted(Modelled, "example/"+kernel.name+"/memory_bound_us", nil, anchors.NS(50e6, 1e6)/1000,
			"example/memory_bound_us")
		rows.add(Modelled, "example/"+kernel.name+"/compute_bound_us", nil, anchors.NS(1e9, 1e6)/1000,
			"1e9 operations on 1e6 bytes, above it")
		rows.noted(Modelled, "example/"+kernel.name+"/compute_bound_eq11_us", nil,
			1e9/(1000*anchors.PeakBytesPerNS*min(anchors.MemoryShare,
				anchors.ComputeShare*anchors.ComputeIntensity/1000))/1000, "example/compute_bound_eq11_us",
			1e9/anchors.PeakOpsPerNS/1000)
	}
	// Remark (ii): an anchor that is not compute-bound. Half the knee's intensity reaches half the rate.
	truth := roofline.Anchors{PeakOpsPerNS: 5000, PeakBytesPerNS: 50, MemoryShare: 0.8, ComputeShare: 1,
		ComputeIntensity: 60}
	low := truth
	low.ComputeIntensity = truth.Knee() / 2
	low.ComputeShare = truth.MemoryShare
	w := truth.Knee() * 4
	rows.noted(Modelled, "remark2/time_over_true", "conservative", low.NS(w, 1)/truth.NS(w, 1),
		"remark2/time_over_true")
}

// rooflineKernels are what catalog anchors predict of the kernels whose bound is printed.
func rooflineKernels(rows *sheet) error {
	soc, err := socs.Open("core-ultra-5-125h")
	if err != nil {
		return err
	}
	model, err := models.Open("llama-3-8b")
	if err != nil {
		return err
	}
	bound := agent("hw_kernel_latency_bounds").at("values")
	chunk := int(agent("m_chunk_size").at("values", "chunk_in_latency_bound").num())
	for _, name := range []string{"npu", "gpu"} {
		total := 0.0
		for _, operator := range feedForward(model, chunk) {
			total += catalogNS(soc.Processor(name), operator)
		}
		rows.noted(Modelled, "ffn_256_"+name+"_ms", fmt.Sprintf("at most %v", bound.at("chunk_256_kernel_max").any()),
			total/1e6, "ffn_256/ms")
	}
	rows.noted(Modelled, "attention_2048_gpu_ms", fmt.Sprintf("at most %v", bound.at("mha_seq_2048_max").any()),
		catalogNS(soc.Processor("gpu"), attention(model, 2048))/1e6, "attention_2048_gpu_ms")
	return nil
}

// feedForward are the products of a dense model's feed-forward block, 8-bit weights per channel.
func feedForward(m *models.Model, rows int) []op.Op {
	return []op.Op{
		{Kind: op.MatMul, M: rows, K: m.Hidden, N: 2 * m.FFN, Scheme: op.A8TQ8C},
		{Kind: op.MatMul, M: rows, K: m.FFN, N: m.Hidden, Scheme: op.A8TQ8C},
	}
}

// qkv is the product that makes queries, keys and values.
func qkv(m *models.Model, rows int) op.Op {
	return op.Op{Kind: op.MatMul, M: rows, K: m.Hidden, N: (m.Heads + 2*m.KVHeads) * m.HeadDim, Scheme: op.A8TQ8C}
}

// attention is the attention of rows over a context of as many.
func attention(m *models.Model, rows int) op.Op {
	return op.Op{
		Kind: op.Attention, M: rows, Heads: m.Heads, KVHeads: m.KVHeads, HeadDim: m.HeadDim, Context: rows, KV: op.F16,
	}
}

// catalogNS is an operator's time on a catalog processor by Eq. 5, launch included.
func catalogNS(p *socs.Processor, o op.Op) float64 {
	rate := p.Sim.OtherGops
	if o.HasScheme() {
		rate = p.Sim.Schemes[o.Scheme].PeakGops
	}
	anchors := roofline.Anchors{
		PeakOpsPerNS: rate, PeakBytesPerNS: p.BandwidthGBps, MemoryShare: 1, ComputeShare: 1,
		ComputeIntensity: rate / p.BandwidthGBps,
	}
	return 1000*p.LaunchUS + anchors.NS(float64(o.Flops()), float64(o.Bytes()))
}

// agentChunks divides prompts into whole chunks and a remainder (Table 2).
func agentChunks(rows *sheet) error {
	chunk := int(agent("m_chunk_size").at("values", "chunk_in_latency_bound").num())
	context := int(agent("m_max_context").at("values").num())
	for _, n := range []int{1, 255, chunk, 300, 512, 1000, 2048, 4095, context} {
		rows.add(Exact, fmt.Sprintf("%d_tokens/N_chk", n), nil, n/chunk, "floor(S_len/%d)", chunk)
		rows.add(Exact, fmt.Sprintf("%d_tokens/S_rem", n), nil, n%chunk, "S_len mod %d", chunk)
	}
	whole := 0
	for n := 1; n <= context; n++ {
		if n < chunk {
			whole++
		}
	}
	rows.noted(Exact, "shorter_than_a_chunk_percent", nil, 100*float64(whole)/float64(context),
		"shorter_than_a_chunk_percent", context)
	return nil
}

// agentDispatch divides chunks between NPU and GPU by Algorithm 1 as printed, beside the division that ends first.
func agentDispatch(rows *sheet) error {
	each := int64(1000 * agent("hw_kernel_latency_bounds").at("values", "chunk_256_kernel_max").num())
	chunk, context := int(agent("m_chunk_size").at("values", "chunk_in_latency_bound").num()),
		int(agent("m_max_context").at("values").num())
	ms := func(us int64) float64 { return float64(us) / 1000 }
	for _, chunks := range []int{1, 4, 7, 8, context / chunk} {
		like := elastic{chunks: chunks, npu: each, gpu: each}
		rows.noted(Exact, fmt.Sprintf("like/%d_chunks/n_npu", chunks), nil, like.printed(), "like/chunks/n_npu",
			ms(each))
		rows.add(Exact, fmt.Sprintf("like/%d_chunks/makespan_ms", chunks), nil, ms(like.end(like.printed())),
			"when both have ended")
	}
	// Ties: an odd number of chunks splits two ways.
	like := elastic{chunks: 7, npu: each, gpu: each}
	rows.noted(Exact, "ties", nil, fmt.Sprintf("%d or %d of 7 chunks", like.printed(), like.printed()+1), "ties")
	// A remainder of 44 of 256 tokens on the GPU, in proportion.
	rest := each * 44 / int64(chunk)
	like = elastic{chunks: 8, npu: each, gpu: each, rest: rest}
	rows.noted(Modelled, "remainder/n_npu", nil, like.printed(), "remainder/n_npu", ms(rest))
	rows.add(Modelled, "remainder/makespan_ms", nil, ms(like.end(like.printed())), "when both have ended")
	// Decode is busy: everything on the NPU, the remainder deferred.
	rows.add(Exact, "busy/n_npu", "N_chk", like.chunks, "second scenario, 8 chunks and 44 tokens")
	rows.noted(Modelled, "busy/t_defer_ms", nil, ms(like.deferral()), "busy/t_defer_ms", ms(like.deferral()+like.rest))
	short := elastic{chunks: 0, npu: each, gpu: each, rest: rest}
	rows.noted(Modelled, "busy/short_prompt_t_defer_ms", nil, ms(short.deferral()), "busy/short_prompt_t_defer_ms")
	rows.noted(Exact, "idle/t_defer_ms", "not set", 0, "idle/t_defer_ms")
	// The listing's argmin of the difference against the prose's least makespan, over a grid.
	const most = 40
	var cases, other int
	worst, at := 1.0, elastic{}
	unlike := 0
	for chunks := 1; chunks <= context/chunk; chunks++ {
		for npu := int64(1); npu <= most; npu++ {
			for gpu := int64(1); gpu <= most; gpu++ {
				for _, rest := range []int64{0, gpu / 4, gpu / 2, 3 * gpu / 4} {
					split := elastic{chunks: chunks, npu: npu, gpu: gpu, rest: rest}
					printed, fastest := split.end(split.printed()), split.end(split.fastest())
					cases++
					if printed != fastest {
						other++
						if npu == gpu {
							unlike++
						}
						if r := float64(printed) / float64(fastest); r > worst {
							worst, at = r, split
						}
					}
				}
			}
		}
	}
	rows.noted(Exact, "makespan/other_split_percent", "least makespan", 100*float64(other)/float64(cases),
		"makespan/other_split_percent", cases, context/chunk, most)
	rows.noted(Exact, "makespan/worst_ratio", "least makespan", worst, "makespan/worst_ratio", at.chunks, at.npu,
		at.gpu, at.rest, at.end(at.printed()), at.end(at.fastest()))
	rows.noted(Exact, "makespan/other_split_when_like", nil, unlike, "makespan/other_split_when_like")
	return nil
}

// names joins requests' names.
func names(requests []served) string {
	var out []string
	for _, request := range requests {
		out = append(out, fmt.Sprintf("%s(%d)", request.name, request.length))
	}
	return strings.Join(out, " ")
}

// agentBatch chooses who decodes next by Algorithm 2, in the order of the listing and in that of the prose.
func agentBatch(rows *sheet) error {
	most := int(agent("m_b_cap").at("values").num())
	buffer := int(agent("m_max_decode_batch").at("values").num())
	batch := []served{{"R1", true, 500}, {"P1", false, 900}, {"P2", false, 300}}
	queued := []served{{"P3", false, 100}, {"P4", false, 2000}}
	const given = "synthetic: batch R1(500) P1(900) P2(300), queue P3(100) P4(2000), B_cap 3; R reactive, P proactive"
	// the listing admits the longest proactive requests beside the reactive one, the prose the shortest
	listing, _ := nextBatch(batch, nil, queued, most, true)
	prose, _ := nextBatch(batch, nil, queued, most, false)
	rows.noted(Exact, "conflict/listing", nil, names(listing), "conflict/listing", given)
	rows.noted(Exact, "conflict/prose", nil, names(prose), "conflict/prose")
	sum, longest := lengths(listing)
	rows.noted(Exact, "conflict/listing_tokens", nil, sum, "conflict/listing_tokens", longest)
	sum, longest = lengths(prose)
	rows.noted(Exact, "conflict/prose_tokens", nil, sum, "conflict/prose_tokens", longest)
	// more reactive requests than the cap has places
	crowd := []served{{"R1", true, 500}, {"R2", true, 100}, {"R3", true, 900}, {"R4", true, 200}, {"R5", true, 300}}
	next, waiting := nextBatch(crowd[:2], crowd[2:], queued, most, true)
	rows.noted(Exact, "more_reactive_than_cap", "unconditionally admitted", len(next), "more_reactive_than_cap",
		len(crowd), len(waiting))
	// proactive requests alone fill the buffer
	var many []served
	for i := range buffer + 8 {
		many = append(many, served{fmt.Sprintf("P%d", i), false, 100 + i})
	}
	next, _ = nextBatch(nil, nil, many, most, true)
	rows.noted(Exact, "no_reactive", buffer, len(next), "no_reactive", len(many))
	rows.noted(NotReproducible, "aged", "joins past the cap", nil, "aged")
	// How much more a listing's batch reads, over random queues.
	random := rand.New(rand.NewPCG(45, 2))
	var ratios []float64
	dropped := 0
	for range 1000 {
		var queue []served
		for i := range 3 + random.IntN(6) {
			queue = append(queue, served{fmt.Sprint(i), false, 64 + random.IntN(4000)})
		}
		reactive := []served{{"R", true, 64 + random.IntN(4000)}}
		reserved, _ := nextBatch(nil, reactive, queue, most, true)
		open, _ := nextBatch(nil, reactive, queue, most, false)
		if !slices.Contains(reserved, reactive[0]) || !slices.Contains(open, reactive[0]) {
			dropped++
		}
		la, _ := lengths(reserved)
		lb, _ := lengths(open)
		ratios = append(ratios, float64(la)/float64(lb))
	}
	rows.noted(Modelled, "listing_over_prose_tokens", nil, mean(ratios), "listing_over_prose_tokens")
	rows.add(Exact, "reactive_dropped", "none", dropped, "of the same queues, both orders")
	return nil
}

// layerNS is the time of a layer's products and its attention for so many sequences of so many rows on a catalog
// processor.
func layerNS(p *socs.Processor, m *models.Model, sequences, rows, context int) float64 {
	all := sequences * rows
	total := 0.0
	for _, operator := range append(feedForward(m, all), qkv(m, all),
		op.Op{Kind: op.MatMul, M: all, K: m.Heads * m.HeadDim, N: m.Hidden, Scheme: op.A8TQ8C}) {
		total += catalogNS(p, operator)
	}
	operator := attention(m, rows)
	operator.Context = context
	return total + float64(float64(sequences)*catalogNS(p, operator))
}

// agentBatching compares what batches gain in prefill with what they gain in decode (Fig. 5).
func agentBatching(rows *sheet) error {
	soc, err := socs.Open("core-ultra-5-125h")
	if err != nil {
		return err
	}
	model, err := models.Open("llama-3.2-3b")
	if err != nil {
		return err
	}
	gpu := soc.Processor("gpu")
	shape := agent("r_fig5_shape").at("values")
	most, limit := int(agent("m_max_decode_batch").at("values").num()), int(agent("m_b_cap").at("values").num())
	one := layerNS(gpu, model, 1, 512, 512)
	for _, n := range []int{2, 4, 8} {
		rows.noted(Modelled, fmt.Sprintf("prefill_%d/latency_x", n), shape.at("prefill_latency_vs_batch").any(),
			layerNS(gpu, model, n, 512, 512)/one, "prefill/latency_x", n)
	}
	one = layerNS(gpu, model, 1, 1, 1024)
	for _, batch := range []int{2, limit, 8, 16, most} {
		x := layerNS(gpu, model, batch, 1, 1024) / one
		rows.noted(Modelled, fmt.Sprintf("decode_%d/latency_x", batch), shape.at("decode_latency_vs_batch").any(), x,
			"decode/latency_x", batch)
		rows.add(Modelled, fmt.Sprintf("decode_%d/throughput_x", batch), nil, float64(batch)/x,
			"tokens a second over those of one sequence")
	}
	return nil
}

// agentPreemption bounds how long a kernel holds a processor, and with that how long a reactive request waits.
func agentPreemption(rows *sheet) error {
	v := agent("hw_kernel_latency_bounds").at("values")
	chunk, mha := v.at("chunk_256_kernel_max").num(), v.at("mha_seq_2048_max").num()
	limit := agent("hw_preemption_bound").at("values", "prefill_preemption_below").num()
	rows.noted(Exact, "longest_ms", fmt.Sprintf("below %v", limit), max(chunk, mha), "longest_ms", chunk, mha)
	size := agent("m_chunk_size").at("values", "chunk_in_latency_bound").num()
	largest := 0.0
	for n := size; n*chunk/size < limit; n += size {
		largest = n
	}
	rows.noted(Modelled, "largest_chunk", size, largest, "largest_chunk", size, largest*chunk/size)
	rows.noted(Modelled, "largest_attention", nil, math.Floor(2048*math.Sqrt(limit/mha)), "largest_attention")
	context := agent("m_max_context").at("values").num()
	rows.noted(Modelled, "attention_at_max_context_ms", fmt.Sprintf("below %v", limit),
		mha*(context/2048)*(context/2048), "attention_at_max_context_ms", context, mha*context/2048)
	wait := agent("r_prefill_pending").at("values", "reactive_average").num()
	rows.noted(Modelled, "wait_s", wait, mha/2/1000, "wait_s")
	// A request that comes at any time meets kernels in proportion to their time and waits for half of one: the
	// mean of squares over twice the mean.
	for _, each := range []float64{1, 8} {
		n := each + 1
		squares, sum := (float64(each*chunk*chunk)+float64(mha*mha))/n, (float64(each*chunk)+mha)/n
		rows.noted(Modelled, fmt.Sprintf("wait_%v_chunks_s", each), wait, squares/(2*sum)/1000, "wait_chunks_s", each,
			chunk, mha)
	}
	return nil
}

// agentMapping compares the processors by time and energy for each kind of operator (sec. 4.2).
func agentMapping(rows *sheet) error {
	power := agent("hw_power").at("values")
	npuW, prefillW, decodeW := power.at("npu_chunked_prefill").num(), power.at("igpu_prefill").num(),
		power.at("igpu_decode").num()
	rows.noted(Exact, "power_ratio", nil, prefillW/npuW, "power_ratio", prefillW, npuW)
	soc, err := socs.Open("core-ultra-5-125h")
	if err != nil {
		return err
	}
	model, err := models.Open("llama-3-8b")
	if err != nil {
		return err
	}
	npu, gpu := soc.Processor("npu"), soc.Processor("gpu")
	chunk := int(agent("m_chunk_size").at("values", "chunk_in_latency_bound").num())
	const static = "; the NPU's is its prefill's, and its graphs have one batch size, so that the paper decodes on " +
		"the GPU"
	const given = "modelled by Eq. 5 on catalog SoC core-ultra-5-125h, most rates of which are assumptions"
	// the paper's choice beside the one that Eq. 5 makes on the catalog's processors
	for _, mapping := range []struct {
		name, paper string
		ops         []op.Op
		watts       float64 // of the GPU
		note        string
	}{
		{"prefill_qkv", "npu", []op.Op{qkv(model, chunk)}, prefillW, ""},
		{"prefill_ffn", "npu", feedForward(model, chunk), prefillW, ""},
		{"prefill_attention", "gpu", []op.Op{attention(model, 2048)}, prefillW, ""},
		{"decode_qkv", "gpu", []op.Op{qkv(model, 1)}, decodeW, static},
		{"decode_ffn", "gpu", feedForward(model, 1), decodeW, static},
		{"decode_attention", "gpu", []op.Op{{
			Kind: op.Attention, M: 1, Heads: model.Heads, KVHeads: model.KVHeads, HeadDim: model.HeadDim, Context: 2048,
			KV: op.F16,
		}}, decodeW, static},
	} {
		tn, tg := 0.0, 0.0
		legal := true
		for _, operator := range mapping.ops {
			legal = legal && npu.Executes(operator.Kind)
			tn, tg = tn+catalogNS(npu, operator), tg+catalogNS(gpu, operator)
		}
		// the smaller figure wins, where the NPU can execute the operators at all
		choose := func(n, g float64) string {
			if legal && n < g {
				return "npu"
			}
			return "gpu"
		}
		why := fmt.Sprintf("npu %.3g ms, gpu %.3g ms", tn/1e6, tg/1e6)
		if !legal {
			why = "the NPU does not execute it"
		}
		rows.add(Modelled, mapping.name+"/fastest", mapping.paper, choose(tn, tg), "%s; %s", why, given)
		if legal {
			rows.add(Modelled, mapping.name+"/least_energy", mapping.paper, choose(tn*npuW, tg*mapping.watts),
				"%.3g against %.3g mJ with the printed powers%s", tn*npuW/1e6, tg*mapping.watts/1e6, mapping.note)
		}
	}
	rows.noted(NotReproducible, "prefill_on_npu", "by default", nil, "prefill_on_npu")
	return nil
}

// agentReductions compares the ranges of the abstract with the details of sec. 6.2.
func agentReductions(rows *sheet) error {
	// latency of reactive requests
	means := agent("r_mixed_reactive_mean").at("values")
	var all []float64
	for _, model := range means.keys() {
		all = append(all, means.at(model).nums()...)
	}
	headline := agent("r_mixed_headline").at("values")
	claimed := headline.at("reactive_latency_reduction").nums()
	rows.add(Exact, "reactive/least", claimed[0], slices.Min(all), "percent, of six printed in sec. 6.2")
	rows.add(Exact, "reactive/most", claimed[1], slices.Max(all), "percent, of six; 96.70 rounds to 97")
	rows.add(Exact, "reactive/abstract", agent("r_abstract").at("values", "reactive_latency_reduction_at_least").num(),
		slices.Min(all), "percent, at least")
	// throughput of proactive requests
	proactive := agent("r_mixed_proactive_mean").at("values")
	all = nil
	for _, model := range proactive.keys() {
		all = append(all, proactive.at(model).nums()...)
	}
	gain := headline.at("proactive_throughput_gain").nums()
	rows.noted(Exact, "proactive/least", gain[0], slices.Min(all), "proactive/least")
	rows.noted(Exact, "proactive/most", gain[1], slices.Max(all), "proactive/most")
	// the abstract's range is that over both baselines
	abstract, one := agent("r_abstract").at("values", "proactive_throughput").nums(),
		agent("r_proactive_only").at("values")
	both := append(one.at("vs_openvino_igpu").nums(), one.at("vs_serial_npu_igpu").nums()...)
	rows.add(Exact, "throughput/least", abstract[0], slices.Min(both), "x, of both baselines' ranges in sec. 1")
	rows.add(Exact, "throughput/most", abstract[1], slices.Max(both), "x, of both baselines' ranges in sec. 1")
	rows.noted(NotReproducible, "energy_percent", agent("r_energy").at("values", "vs_openvino_igpu").num(), nil,
		"energy_percent")
	rows.noted(NotReproducible, "igpu_utilization_percent",
		agent("r_igpu_utilization").at("values", "vs_openvino_igpu").num(), nil, "igpu_utilization_percent")
	return nil
}
