#!/usr/bin/env python3
"""Compares hetc's solver with HiGHS from PyPI, which hetc neither contains nor calls.

Random workloads are drawn for models and SoCs of the catalog (a seed gives the same one every time), profiled on the
virtual clock and solved by `hetc solve --write-models`, first without and then with limits. Linear programs are sampled
from what each solve poses; HiGHS solves the written files, and its optimum is compared with the answer of hetc that
index.jsonl has for the file.

    python3 .ci/oracle.py --hetc bin/hetc                # 400 linear programs
    python3 .ci/oracle.py --hetc bin/hetc --count 20     # a first look

The exit code is 0 when nothing contradicts, 1 at a mismatch, 2 when too few programs could be compared. highspy is taken
from the environment, else installed (pinned) into a virtual environment below .deps/oracle.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

HIGHSPY = "highspy==1.15.1"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

DENSE = ["gemma-2b", "internlm2-1.8b", "llama-3.2-1b", "llama-3.2-3b", "phi-2", "qwen1.5-1.8b", "qwen2-0.5b", "tinyllama-1.1b"]
EXPERTS = ["olmoe-1b-7b", "phi-tiny-moe"]
SOCS = [
    "apple-m2-max", "apple-m2-ultra", "core-ultra-5-125h", "redmi-k60-champion", "redmi-k60-pro", "redmi-k70-pro", "snapdragon-8-elite",
    "snapdragon-8-elite-gen5", "snapdragon-8gen1", "snapdragon-8gen2", "snapdragon-8gen3", "snapdragon-x-elite", "xiaomi-14",
]
PREFILL = ["a32/w32", "a8t/q8c", "a8t/q4b32"]
DECODE = ["a8t/q8c", "a8t/q4b32"]

SAME = 1e-6  # relative difference of objectives that count as equal; HiGHS is asked for a gap of a tenth of it


def highs():
    """Returns the module highspy; without one the script starts itself again in a virtual environment that has it."""
    try:
        import highspy
        return highspy
    except ImportError:
        pass
    home = os.path.join(ROOT, ".deps", "oracle")
    python = os.path.join(home, "Scripts" if os.name == "nt" else "bin", "python")
    if os.path.abspath(sys.executable) == python:
        sys.exit("oracle: %s cannot be imported even where it was installed, in %s" % (HIGHSPY, home))
    if not os.path.exists(python):
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", HIGHSPY], check=True)
    sys.exit(subprocess.run([python] + sys.argv).returncode)


class Draw:
    """One random case: a model, a SoC, and a workload that is limited once its unlimited plan is known."""

    def __init__(self, seed):
        self.seed = seed
        self.random = random.Random(seed)
        r = self.random
        self.experts = r.random() < 0.15
        self.model = r.choice(EXPERTS if self.experts else DENSE)
        self.soc = r.choice(SOCS)
        context = r.choice([1024, 2048])
        prompts = [{"tokens": r.randint(20, 700), "share": round(r.uniform(0.1, 1), 2)} for _ in range(r.randint(1, 4))]
        self.workload = {
            "schema": "hetc.workload/1", "name": "seed-%d" % seed, "prompts": prompts, "output_tokens": r.randint(20, 400), "context": context,
            "schemes": {"prefill": sorted(r.sample(PREFILL, 1)), "decode": sorted(r.sample(DECODE, 1 if self.experts else r.randint(1, 2)))},
            "buckets": {"max": r.randint(1, 3)} if r.random() < 0.25 else sorted(r.sample([16, 24, 32, 64, 96, 128, 192, 256, 384, 512, 640], r.randint(1, 3))),
        }
        if r.random() < 0.3:
            self.workload["batches"] = {"max": 2}
            self.workload["parallel"] = [{"sequences": 1, "share": 0.5}, {"sequences": r.choice([2, 3, 4, 6]), "share": round(r.uniform(0.2, 1), 2)}]

    def limited(self, base):
        """Returns the workload with one to three limits near what the unlimited plan takes."""
        r = self.random
        worst = lambda decode: max([p["plan_ns"] for p in base["predictions"] if p["program"].startswith("decode") == decode], default=0)
        limits = {
            "memory": lambda w: w.update(memory=int(base["memory"]["total_bytes"] * r.uniform(0.75, 1.0))),
            "decode_ms": lambda w: w["limits"].update(decode_ms=round(worst(True) / 1e6 * r.uniform(0.97, 1.1), 6)),
            "prefill_ms": lambda w: w["limits"].update(prefill_ms=round(worst(False) / 1e6 * r.uniform(0.97, 1.1), 6)),
            "energy_mj": lambda w: w["limits"].update(energy_mj=round(base["expected_nj_modelled"] / 1e6 * r.uniform(0.9, 1.02), 6)),
            "address_bytes": lambda w: w["limits"].update(address_bytes={r.choice(["npu", "gpu"]): r.choice(["256MiB", "512MiB", "1GiB"])}),
            "max_graphs": lambda w: w["limits"].update(max_graphs={r.choice(["npu", "gpu"]): r.choice([4, 16, 64])}),
            "minimise": lambda w: w.update(minimise=r.choice(["energy", "memory"])),
        }
        out = dict(self.workload, limits={})
        for name in sorted(r.sample(sorted(limits), r.randint(1, 3))):
            limits[name](out)
        if not out["limits"]:
            del out["limits"]
        return out


class Hetc:
    """Runs hetc in a directory of its own."""

    def __init__(self, program, seconds):
        self.program, self.seconds = os.path.abspath(program), seconds

    def run(self, cwd, *args):
        """Returns the exit code (None: out of time) and the result."""
        try:
            p = subprocess.run([self.program, "--json"] + list(args), cwd=cwd, capture_output=True, text=True, timeout=self.seconds)
        except subprocess.TimeoutExpired:
            return None, {}
        try:
            return p.returncode, json.loads(p.stdout)
        except ValueError:
            return p.returncode, {}

    def solve(self, draw, workload, at, name):
        with open(os.path.join(at, name + ".yaml"), "w") as f:
            json.dump(workload, f)
        return self.run(at, "solve", "--soc", draw.soc, "--record", "rec.jsonl", "--model", draw.model, "--workload", name + ".yaml",
                        "-o", name + ".plan.yaml", "--write-models", name + ".models")


def problems(folder, most, rng):
    """Samples problems of a solve: a list of (answer, files). Few solves pose those of some kind, which come first."""
    groups, order = {}, []
    try:
        lines = open(os.path.join(folder, "index.jsonl")).read().splitlines()
    except OSError:
        return []
    for number, line in enumerate(lines):
        x = json.loads(line)
        if x["status"] not in ("optimal", "feasible", "infeasible"):
            continue  # hetc has no answer either
        key = (x["problem"], x["of"]) if x["of"] > 1 else number
        if key not in groups:
            groups[key] = (x, [])
            order.append(key)
        groups[key][1].append(os.path.join(folder, x["file"]))
    whole = [groups[k] for k in order if len(groups[k][1]) == groups[k][0]["of"]]
    rng.shuffle(whole)
    whole.sort(key=lambda g: g[0]["problem"].startswith("partition"))
    return whole[:most]


def optimum(highspy, files, seconds):
    """Solves the files and returns status, objective and bound of the best of them, in hetc's whole units."""
    results = []
    for path in files:
        unit = 1.0
        with open(path) as f:
            for line in f:
                if not line.startswith("\\"):
                    break
                found = re.search(r"the objective times ([0-9.eE+-]+) is in", line)
                if found:
                    unit = float(found.group(1))
        h = highspy.Highs()
        h.silent()
        for option, value in (("threads", 1), ("mip_rel_gap", SAME / 10), ("mip_abs_gap", 0.0), ("time_limit", float(seconds))):
            h.setOptionValue(option, value)
        h.readModel(path)
        h.run()
        status, info = h.getModelStatus(), h.getInfo()
        if status == highspy.HighsModelStatus.kInfeasible:
            results.append(("infeasible", float("inf"), float("inf")))
            continue
        found = float("inf")
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            found = info.objective_function_value * unit
        whole = h.getLp().integrality_
        bound = (info.mip_dual_bound if len(whole) else info.objective_function_value) * unit
        results.append(("optimal" if status == highspy.HighsModelStatus.kOptimal else "open", found, bound))
    if all(s == "infeasible" for s, _, _ in results):
        return "infeasible", float("inf"), float("inf")
    status = "optimal" if all(s != "open" for s, _, _ in results) else "open"
    return status, min(f for _, f, _ in results), min(b for _, _, b in results)


def verdict(answer, other):
    """Returns "equal", "closed" (hetc left a gap that HiGHS closes within it), "open" (HiGHS did), or what contradicts."""
    status, found, bound = other
    slack = SAME * max(1.0, abs(answer["objective"]))
    if answer["status"] == "infeasible":
        return {"infeasible": "equal", "open": "open"}.get(status, "hetc says infeasible, HiGHS finds %.10g" % found)
    if status == "infeasible":
        return "hetc has %d, HiGHS says infeasible" % answer["objective"]
    if found < answer["bound"] - slack:
        return "hetc's bound is %d, HiGHS finds %.10g" % (answer["bound"], found)
    if bound > answer["objective"] + slack:
        return "hetc has %d, HiGHS's bound is %.10g" % (answer["objective"], bound)
    if status == "open":
        return "open"
    return "equal" if abs(found - answer["objective"]) <= slack else "closed"


def kind(problem):
    """Names a row of the table."""
    words = problem.split()
    if words[0] == "partition":
        return "one program"
    return {"joint": "all programs together", "buckets": "buckets and batches", "batches": "buckets and batches", "tiers": "capacity tiers"}.get(words[0], words[0])


class Tally:
    """Counts verdicts by kind of problem and says what contradicts."""

    columns = ["equal", "closed", "open", "mismatch"]

    def __init__(self):
        self.rows, self.mismatches, self.solves, self.skipped = {}, [], 0, {}

    def add(self, where, answer, says):
        row = self.rows.setdefault(kind(answer["problem"]), dict.fromkeys(self.columns, 0))
        if says not in row:
            self.mismatches.append("%s, %s: %s" % (where, answer["problem"], says))
            says = "mismatch"
        row[says] += 1

    def skip(self, why):
        self.skipped[why] = self.skipped.get(why, 0) + 1

    def count(self):
        return sum(sum(r.values()) for r in self.rows.values())

    def show(self):
        print("| problem | linear programs | equal | gap of hetc closed by HiGHS | left open by HiGHS | mismatch |")
        print("| --- | --: | --: | --: | --: | --: |")
        for name in sorted(self.rows):
            r = self.rows[name]
            print("| %s | %d | %s |" % (name, sum(r.values()), " | ".join(str(r[c]) for c in self.columns)))
        total = [sum(r[c] for r in self.rows.values()) for c in self.columns]
        print("| all | %d | %s |" % (sum(total), " | ".join(map(str, total))))
        print("%d solves%s" % (self.solves, "".join("; %d %s" % (n, why) for why, n in sorted(self.skipped.items()))))
        for m in self.mismatches:
            print("MISMATCH " + m)


def compare(highspy, hetc, seed, tally, options, at):
    """Draws a case, solves it twice, and compares samples of what both posed."""
    draw = Draw(seed)
    with open(os.path.join(at, "w.yaml"), "w") as f:
        json.dump(draw.workload, f)
    code, _ = hetc.run(at, "profile", "--soc", draw.soc, "--model", draw.model, "--workload", "w.yaml", "-o", "rec.jsonl", "--rounds", "1")
    if code != 0:
        tally.skip("workloads refused" if code is not None else "profiles out of time")
        return
    base = None
    for name in ("free", "limited"):
        workload = draw.workload if base is None else draw.limited(base)
        code, result = hetc.solve(draw, workload, at, name)
        if code is None:
            tally.skip("solves out of time")
            return
        tally.solves += 1
        if code not in (0, 6):  # 6: no plan keeps the limits, and what showed it was posed
            tally.skip("solves refused")
            return
        where = "seed %d %s (%s, %s)" % (seed, name, draw.model, draw.soc)
        for answer, files in problems(os.path.join(at, name + ".models"), options.per_solve, draw.random):
            if tally.count() >= options.count:
                return
            says = verdict(answer, optimum(highspy, files, options.seconds))
            before = len(tally.mismatches)
            tally.add(where, answer, says)
            if len(tally.mismatches) > before:
                keep = os.path.join(options.keep, "seed-%d-%s" % (seed, name))
                os.makedirs(keep, exist_ok=True)
                for f in files + [os.path.join(at, name + ".models", "index.jsonl"), os.path.join(at, name + ".yaml"), os.path.join(at, "rec.jsonl")]:
                    shutil.copy(f, keep)
        if code != 0:
            return
        base = result


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--hetc", default=os.path.join(ROOT, "bin", "hetc"), help="program to test (default bin/hetc)")
    p.add_argument("--count", type=int, default=400, help="linear programs to compare")
    p.add_argument("--seed", type=int, default=1, help="first seed")
    p.add_argument("--seeds", type=int, default=0, help="most seeds to draw; default: as many as linear programs")
    p.add_argument("--per-solve", type=int, default=6, help="most linear programs of one solve")
    p.add_argument("--seconds", type=float, default=60, help="time limit of HiGHS for one linear program")
    p.add_argument("--solve-seconds", type=float, default=120, help="time limit of hetc for one command")
    p.add_argument("--keep", default="hetc-mismatches", help="where inputs of a mismatch are kept")
    options = p.parse_args()
    highspy = highs()
    if not os.path.exists(options.hetc):
        print("oracle: no program %r: make build, or --hetc" % options.hetc, file=sys.stderr)
        return 2
    hetc, tally, begun = Hetc(options.hetc, options.solve_seconds), Tally(), time.time()
    last = options.seed + (options.seeds or options.count)
    for seed in range(options.seed, last):
        if tally.count() >= options.count:
            break
        with tempfile.TemporaryDirectory(prefix="oracle-") as at:
            compare(highspy, hetc, seed, tally, options, at)
        print("seed %d: %d linear programs, %d mismatches, %.0f s" % (seed, tally.count(), len(tally.mismatches), time.time() - begun), file=sys.stderr, flush=True)
    print("hetc against HiGHS %s, seeds %d to %d" % (highspy.Highs().version(), options.seed, seed))
    tally.show()
    if tally.mismatches:
        return 1
    return 0 if tally.count() >= options.count else 2


if __name__ == "__main__":
    sys.exit(main())
