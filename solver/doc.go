// Package solver knows which processor should execute which part of every operator: it prices the ways to execute them,
// poses the partition problem of each section and number of rows, has an engine solve it, and turns the answers into a
// plan that carries its alternatives, predictions and proofs.
//
// # What a call of Solve does
//
// Read Solve (solver.go) first, then session.solve below it. The steps, with the files that have them:
//
//   - choose buckets and batches, where the workload leaves them open (buckets_choose.go, fewer_buckets.go);
//   - choose a scheme for each class of products: schemes.go, then schemes_permit, schemes_list and schemes_search;
//   - pose each program: candidates and their prices (pricing.go, items.go), chains of choices (chain.go), branches
//     that run side by side (fork.go and fork_*.go);
//   - solve each program by itself (plan.go), and compare with restricted solutions on the timeline (fastest.go,
//     timeline.go, predict.go);
//   - where a limit is broken, solve all programs together (limits.go, within_limits.go, within_memory.go, smallest.go,
//     joint.go, joint_solve.go);
//   - extend the plan: shadow outliers (shadows.go, shadows_limits.go), head pipelines (heads.go), prompts beside
//     decoding (beside.go), drafts (drafts.go), chunks in flight (inflight.go), capacity tiers of experts (tiers.go and
//     tiers_*.go);
//   - check the plan with planir/check, which shares no code with the solver.
//
// Prices are those of solver/price, problems those of solver/problem, engines those of solver/exact and solver/highs.
// operator.go, grounds.go and proof.go answer questions about a finished plan.
//
// # Words
//
// A program is the model at one number of rows: a bucket of prompts, or a batch of sequences that decode. It has
// sections, which repeat for each layer, and these have nodes. A candidate is a way to execute a node, with its price.
// The problem of a program has a chain for each section, an item for each node, and a choice for each candidate.
// Choices that leave a node's result in the same places share a location class, on which the hand-over to the next node
// depends. Nodes that multiply by one weight share a product class, which has one scheme; an assignment gives every
// product class one.
//
// # Types
//
// The state of a solve is five structs. Each embeds the one before it and knows nothing of those after it:
//
//   - request (request.go): the input, and what follows from it alone;
//   - pricing (pricing.go): candidates, the problems posed of them, and the memory that both take;
//   - schemeChoice (solver.go): the schemes that operators may have, and the chosen ones;
//   - planner (plan.go): programs under chosen schemes, their plans and predictions;
//   - session (solver.go): programs that keep common limits.
package solver
