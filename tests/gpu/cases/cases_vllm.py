"""The cases about vLLM: a Llama of 8 B parameters with made-up weights, CUDA graphs, in engines of deploy/vllm_engine.py."""

import concurrent.futures
import contextlib
import importlib.util
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import sys
import time
import urllib.error
import urllib.request

from harness import MARKER, Failure, Skip, tail
from registry import case

# In a bundle it lies beside the other programs, in a checkout where people start it.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "deploy"))
import vllm_engine  # noqa: E402
import vllm_turns  # noqa: E402

TP = 8  # at most: as many heads of keys has the model
CACHE_GIB = 2  # a GPU
# Of amem's times, as shares of those of vLLM's own sleep mode; and what may be left on a GPU.
FIRST_SLEEP, SLEEP, WAKE = 1 / 20, 1.0, 0.7
LEFT_MIB = 1003
TURN_MS = 700
# The second model of two: as many parameters in other shapes, so that no block of the one has the size of a block of the other.
OTHER_MODEL = {"hf_overrides": {"num_hidden_layers": 40, "intermediate_size": 11008, "num_key_value_heads": 4}}


def tp_of(bench):
    """As many GPUs as there are and the model can be divided among, which are powers of two."""
    return 1 << (min(TP, bench.gpus.count()).bit_length() - 1)


def pool_of(tp):
    """Weights of 16 GiB, and each GPU's cache and NCCL."""
    return 24 + 5 * tp


def needs_vllm():
    if importlib.util.find_spec("vllm") is None:
        raise Skip("no vLLM")


@contextlib.contextmanager
def node_of(bench, *arguments, pool_gib, spare_idle=None):
    """What starts engines, with the broker of the cases, or one of its own where memory waits for a resume for `spare_idle`."""
    needs_vllm()
    pool = bench.pool if bench.one_pool else f"{pool_gib}GiB"
    broker = bench.broker_with(pool, "--spare-idle", spare_idle) if spare_idle else bench.broker(pool_gib)
    environment = {**bench.environment, MARKER: bench.marker, "AMEM_RUNTIME_DIR": str(broker.runtime)}
    options = vllm_turns.parse(["--prefix", str(bench.prefix), *map(str, arguments)])
    node = vllm_turns.Node(options, bench.folder, environment)
    try:
        yield node
    except vllm_turns.Failure as failure:
        raise Failure(str(failure)) from None
    finally:
        node.end()
        if spare_idle:
            bench.stop_broker()


def started(node, name, sleep):
    engine = node.start(name, sleep)
    engine.ask("start", vllm_turns.START_S)
    engine.ask("generate")
    return engine, engine.ask("generate")[0]


def must_give(engine, tokens, when):
    if engine.ask("generate")[0] != tokens:
        raise Failure(engine.why(f"generates other tokens {when}"))


def sleep_and_wake(bench, node, sleep):
    """Times of cycles, and what was left; the engine is awake at the end."""
    before = node.used_mib()
    engine, tokens = started(node, "A", sleep)
    must_give(engine, tokens, "without any sleep")
    slept, woke = [], []
    for cycle in range(1, bench.few + 1):
        slept.append(engine.ask("sleep")[1])
        if cycle == 1:
            left = max(now - then for now, then in zip(node.used_mib(), before))
        woke.append(engine.ask("wake")[1])
        must_give(engine, tokens, f"after sleep {cycle}")
    return engine, tokens, {"first": slept[0], "sleep": statistics.median(slept[1:]), "wake": statistics.median(woke),
                            "left": left}


def wakes_in_parts(engine, tokens):
    engine.ask("sleep")
    engine.ask("wake", parts=[["weights"], ["kv_cache"]])
    must_give(engine, tokens, "after a wake in parts")
    engine.ask("call", method="keep_weights", arguments=[])
    engine.ask("sleep", level=2)
    engine.ask("wake", parts=[["weights"]])
    engine.ask("call", method="restore_weights", arguments=[])
    engine.ask("wake", parts=[["kv_cache"]])
    must_give(engine, tokens, "after sleep level 2 and new weights")


def too_much(own, amem):
    """What is more than it may be; empty: nothing."""
    limits = {"first": own["first"] * FIRST_SLEEP, "sleep": own["sleep"] * SLEEP, "wake": own["wake"] * WAKE,
              "left": LEFT_MIB}
    return [f"{what} {amem[what]:.0f}, {limit:.0f} is the limit" for what, limit in limits.items() if amem[what] > limit]


def shown(times):
    return f"first sleep {times['first']:.0f}, later {times['sleep']:.0f}, wake {times['wake']:.0f} ms, {times['left']} MiB left"


@case(340)
def vllm_sleep(bench):
    """vLLM's sleep mode by amem beside its own, up to eight GPUs: levels 1 and 2, wake in parts, the same tokens."""
    with node_of(bench, "--tp", tp_of(bench), "--cache-gib", CACHE_GIB, pool_gib=pool_of(tp_of(bench))) as node:
        own = sleep_and_wake(bench, node, "own")[2]
        node.end_engines()
        engine, tokens, amem = sleep_and_wake(bench, node, "amem")
        wakes_in_parts(engine, tokens)
    wrong = too_much(own, amem) if bench.time_limits else []
    if wrong:
        raise Failure(f"{'; '.join(wrong)} (its own: {shown(own)})")
    return f"by amem {shown(amem)}; its own {shown(own)}"


@case(340)
def vllm_stream(bench):
    """vLLM as it is, up to eight GPUs, paused by amemctl in the middle of requests, gives the same tokens."""
    with node_of(bench, "--tp", tp_of(bench), "--cache-gib", CACHE_GIB, pool_gib=pool_of(tp_of(bench))) as node:
        engine, tokens = started(node, "A", "none")
        took = {"pause": [], "resume": []}
        for number in range(1, bench.operator_pauses + 1):
            engine.tell("generate")
            time.sleep(random.uniform(0, 0.3))
            for verb in took:
                began = time.monotonic()
                bench.broker().amemctl(verb, "vllm-A")
                took[verb].append((time.monotonic() - began) * 1000)
            if engine.answer()[0] != tokens:
                raise Failure(engine.why(f"generates other tokens after pause {number}"))
    return (f"{bench.operator_pauses} pauses within requests, all tokens equal; " + ", ".join(
        f"{verb} median {statistics.median(ms):.0f}, max {max(ms):.0f} ms" for verb, ms in took.items()))


@case(340)
def vllm_swap(bench):
    """Two vLLM engines as they are on one GPU, swapped by amemctl."""
    with node_of(bench, "--cache-gib", 20, pool_gib=96) as node:
        out, tokens = started(node, "A", "none")
        broker, took = bench.broker(), []
        broker.amemctl("pause", "vllm-A")
        awake, others = started(node, "B", "none")
        expected = {out: tokens, awake: others}
        for number in range(1, 2 * bench.few + 1):
            began = time.monotonic()
            broker.amemctl("swap", *(f"vllm-{engine.name[0]}" for engine in (awake, out)))
            took.append((time.monotonic() - began) * 1000)
            awake, out = out, awake
            must_give(awake, expected[awake], f"after swap {number}")
    return f"{len(took)} swaps, median {statistics.median(took):.0f} ms, max {max(took):.0f}; all tokens equal"


@case(340)
def vllm_engines(bench):
    """Two vLLM engines of one group, as with data parallelism, sleep and wake by tags unequally often, each by itself."""
    with node_of(bench, "--cache-gib", 20, pool_gib=96) as node:
        engines = [node.start(name, "amem", "vllm", AMEM_VLLM_SLEEP="tags") for name in "AB"]
        tokens = {}
        for engine in engines:
            engine.ask("start", vllm_turns.START_S)
            engine.ask("generate")
            tokens[engine] = engine.ask("generate")[0]
            engine.ask("sleep")
        for engine in engines:
            engine.ask("wake")
        often, seldom = engines
        seldom.tell("generate")
        took = [often.ask(verb)[1] for _ in range(bench.few) for verb in ("sleep", "wake")]
        if seldom.answer()[0] != tokens[seldom]:
            raise Failure(seldom.why("generates other tokens while the other engine sleeps"))
        seldom.ask("sleep")
        must_give(often, tokens[often], f"after {bench.few} sleeps")
        seldom.ask("wake")
        must_give(seldom, tokens[seldom], "after a sleep")
    return f"sleep median {statistics.median(took[::2]):.0f}, wake {statistics.median(took[1::2]):.0f} ms; all tokens equal"


class Server:
    """`vllm serve`, with amem found by its entry point as where it is installed. `sleep`: the backend of its sleep mode; None: it has
    none. `graphs`: it captures CUDA graphs. `brokered` False: without amem in it. `tp`: how many GPUs it uses, else as many as it can.
    It serves within `start_s`."""

    def __init__(self, bench, sleep="amem", graphs=False, brokered=True, arguments=(), group="vllm", tp=None, env=None, start_s=250):
        name = f"server-{group}-{sleep or 'plain'}-{'graphs' if graphs else 'eager'}"
        site, self.model = bench.folder / f"site-{name}", bench.folder / f"model-{name}"
        info = site / "amem-0.dist-info"
        for folder in (info, self.model):
            folder.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: amem\nVersion: 0\n")
        (info / "entry_points.txt").write_text("[vllm.general_plugins]\namem = amem.vllm:register\n")
        (self.model / "config.json").write_text(json.dumps(vllm_engine.LLAMA))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        environment = {name: value for name, value in vllm_engine.ENVIRONMENT.items() if "MULTIPROC" not in name}
        paths = [*([site] if brokered else []), pathlib.Path(vllm_engine.__file__).parent, bench.environment["PYTHONPATH"]]
        environment |= {"VLLM_SERVER_DEV_MODE": "1", "PYTHONPATH": ":".join(map(str, paths)), **(env or {})}
        modes = ["--compilation-config", json.dumps(vllm_engine.GRAPHS)]
        self.program = bench.start(
            [sys.executable, "-c", "import sys; from vllm.entrypoints.cli.main import main; sys.exit(main())", "serve", self.model,
             "--host", "127.0.0.1", "--port", port, "--load-format", "dummy", "--skip-tokenizer-init",
             "--max-model-len", 2048, "--generation-config", "vllm", "--tensor-parallel-size", tp or tp_of(bench), "--seed", 0,
             "--no-enable-prefix-caching", "--worker-extension-cls", "vllm_engine.Extension",
             "--kv-cache-memory-bytes", CACHE_GIB << 30, *(modes if graphs else ["--enforce-eager"]),
             *(["--enable-sleep-mode", "--sleep-mode-backend", sleep] if sleep else []), *arguments],
            env=environment, group=group, **({"scope": "heap"} if brokered else {"shim": False}))
        end = time.monotonic() + start_s
        while self.ask("GET", "/health") != 200:
            if not self.program.running():
                said = tail(self.program.err, 3)
                raise (Skip if "ModuleNotFoundError" in said else Failure)(f"vllm serve has ended: {said}")
            if time.monotonic() > end:
                raise Failure("vllm serve does not serve")
            time.sleep(0.2)

    def end(self):
        """Its processes have gone from the GPUs."""
        os.killpg(self.program.process.pid, signal.SIGTERM)
        self.program.wait_any(60)

    def ask(self, method, path):
        """The status; 0: no answer."""
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, method=method), timeout=100) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def post(self, path, body=None, timeout=100):
        """What it answers. Failure: it refuses."""
        request = urllib.request.Request(self.url + path, json.dumps(body or {}).encode(), {"Content-Type": "application/json"}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise Failure(f"{path}: {error.code} {error.read().decode(errors='replace')[:300]}; {tail(self.program.err, 2)}") from None
        except OSError as error:
            raise Failure(f"{path}: {error}; {tail(self.program.err, 2)}") from None

    def call(self, method, *arguments):
        """A method of vllm_engine.Extension, in each worker."""
        return self.post("/collective_rpc", {"method": method, "args": list(arguments)})

    def tokens(self, prompts=range(vllm_engine.PROMPTS), new=vllm_engine.MOST_NEW, timeout=100):
        """Of one prompt after the other, so that batches are the same each time."""
        return [self.post("/v1/completions", {"model": str(self.model), "prompt": vllm_engine.prompt(number), "max_tokens": new, "temperature": 0,
                                              "ignore_eos": True, "return_token_ids": True}, timeout)["choices"][0]["token_ids"]
                for number in prompts]

    def timed(self, path):
        """Milliseconds."""
        began = time.monotonic()
        self.post(path)
        return (time.monotonic() - began) * 1000

    def sleeps(self):
        with urllib.request.urlopen(self.url + "/is_sleeping", timeout=100) as answer:
            return json.loads(answer.read())["is_sleeping"]


PRESERVED = "model.norm.weight"  # of what sleep level 2 drops


def http_cycles(bench, server):
    """Level 1 as often as the run wants it. What vLLM's own backends can, too: (first sleep, later ones, wakes) in ms."""
    server.call("rescale")
    tokens = server.tokens()
    if server.tokens() != tokens:
        raise Failure("two undisturbed runs give different tokens: nothing can be said of one that slept")
    slept, woke = [], []
    for cycle in range(bench.few + 1):
        slept.append(server.timed("/sleep?level=1"))
        woke.append(server.timed("/wake_up"))
        if server.tokens() != tokens:
            raise Failure(f"other tokens after sleep {cycle + 1} of level 1")
    return tokens, {"first": slept[0], "sleep": statistics.median(slept[1:]), "wake": statistics.median(woke)}


def every_way(server, tokens):
    """Each way to sleep and wake that vLLM's HTTP API has."""
    def equal(after):
        if server.sleeps():
            raise Failure(f"it sleeps still, after {after}")
        if server.tokens() != tokens:
            raise Failure(f"other tokens after {after}")

    server.post("/sleep?level=0")
    server.post("/wake_up?tags=scheduling")
    equal("level 0")
    for order in (("weights", "kv_cache"), ("kv_cache", "weights")):
        server.post("/sleep?level=1")
        for tag in order:
            server.post(f"/wake_up?tags={tag}")
        equal(f"level 1 and a wake of {' and then '.join(order)}")
    server.post("/sleep?level=0")
    server.post("/release_kv_cache_memory")
    server.post("/wake_up?tags=kv_cache")
    equal("a discard of the KV cache")
    server.call("keep_weights")
    server.post("/sleep?level=2")
    server.post("/wake_up?tags=weights")
    server.call("restore_weights", PRESERVED)
    server.post("/wake_up?tags=kv_cache")
    equal(f"level 2 and new weights but for {PRESERVED}")
    return 6


@case(340)
def vllm_http(bench):
    """vllm serve by HTTP: levels 0 to 2, tags, discard, graphs, preserved parameters by amem's backend; vLLM's own beside it."""
    needs_vllm()
    options = ["--sleep-mode-offload-cudagraph", "--sleep-preserve-parameter-names", PRESERVED]
    server = Server(bench, "cumem", graphs=True, brokered=False, arguments=options)
    own = http_cycles(bench, server)[1]
    server.end()
    bench.broker(pool_of(tp_of(bench)))
    server = Server(bench, "amem", graphs=True, arguments=options)
    tokens, amem = http_cycles(bench, server)
    ways = every_way(server, tokens)
    text = ", ".join(f"{what} {amem[what]:.0f} ms (cumem {own[what]:.0f})" for what in amem)
    if bench.time_limits and amem["first"] > own["first"] / 10:
        raise Failure(f"the first sleep takes more than a tenth of cumem's: {text}")
    return f"{ways} ways, all tokens equal; {text}"


@case(340)
def vllm_http_stream(bench):
    """vllm serve as it is, paused by amemctl in the middle of requests, gives the same tokens."""
    needs_vllm()
    broker = bench.broker(pool_of(tp_of(bench)))
    server = Server(bench, None, graphs=True)
    server.call("rescale")
    tokens = server.tokens([0])
    if server.tokens([0]) != tokens:
        raise Failure("two undisturbed runs give different tokens")
    with concurrent.futures.ThreadPoolExecutor(1) as asking:
        for number in range(1, bench.operator_pauses + 1):
            answer = asking.submit(server.tokens, [0])
            time.sleep(random.uniform(0, 0.3))
            for verb in ("pause", "resume"):
                broker.amemctl(verb, "vllm")
            if answer.result() != tokens:
                raise Failure(f"other tokens after pause {number}")
    return f"{bench.operator_pauses} pauses within requests, all tokens equal"


@case(340)
def vllm_serve(bench):
    """vllm serve --sleep-mode-backend amem: /sleep, /wake_up, /is_sleeping, and what they refuse."""
    needs_vllm()
    broker = bench.broker(pool_of(tp_of(bench)))
    server = Server(bench)

    def must(path, status, sleeps, tags):
        got = server.ask("POST", path)
        there = {tag["tag"] for tag in broker.group("vllm")["tags"] if tag["resident_bytes"]} - {"nccl", "heap", "runtime"}
        if (got == 200) != (status == 200) or got == 0 or server.sleeps() != sleeps or there != set(tags):
            raise Failure(f"{path}: status {got}, sleeps {server.sleeps()}, {sorted(there)} on the GPUs; {status}, {sleeps}, "
                          f"{sorted(tags)} would be right")

    model = ["weights", "kv_cache"]
    steps = [("/sleep?level=7", 500, False, model), ("/wake_up?tags=nothing", 500, False, model),
             ("/sleep?level=1", 200, True, []), ("/sleep?level=1", 200, True, []),
             ("/wake_up?tags=nothing", 500, True, []), ("/wake_up?tags=weights", 200, True, ["weights"]),
             ("/wake_up?tags=kv_cache", 200, False, model), ("/wake_up", 200, False, model),
             ("/sleep?level=2", 200, True, []), ("/wake_up", 200, False, model),
             ("/sleep?level=0", 200, True, model), ("/wake_up?tags=scheduling", 200, False, model)]
    for step in steps:
        must(*step)
    return f"{len(steps)} calls"


def turns_by_sleep(bench, idle, *arguments):
    """{way: median ms from the telling to the other's first token} of two engines, MiB that a sleeping one leaves, and the last switches' memory."""
    with node_of(bench, "--turns", bench.few, "--no-own", *arguments, pool_gib=48, spare_idle=idle) as node:
        ways = vllm_turns.run(node, node.options, lambda text: None)
        done = json.loads(node.amemctl("history", "--json").stdout)["operations"]
    moved = [{what: round(int(size) / (1 << 30), 1) for what, size in each["memory"].items()} for each in done if "memory" in each]
    return {way: statistics.median(figures["turn_ms"]) for way, figures in ways.items()}, ways["amem"]["left_mib"], moved[-4:]


@case(500)
def vllm_take_turns(bench):
    """Two vLLM engines of 90 % of one GPU each take turns by sleep mode; from the telling to the other's first token."""
    texts, fastest = [], []
    for idle in (None, "1s"):
        medians, left_mib, _ = turns_by_sleep(bench, idle)
        texts.append(f"spare.idle = {idle or '0s'}: " + ", ".join(f"{way} {ms:.0f} ms" for way, ms in medians.items())
                     + f", {left_mib} MiB left of an engine that sleeps")
        fastest.append(min(medians.values()))
    text = "; ".join(texts)
    if bench.time_limits and fastest[0] > TURN_MS:
        raise Failure(f"{text}; {TURN_MS} is the limit")
    return f"{text}; all tokens equal"


@case(500)
def vllm_two_models(bench):
    """Two vLLM engines of 90 % of one GPU each, with different models, take turns by sleep mode; from the telling to the other's first token."""
    texts = []
    for idle in (None, "1s"):
        medians, left_mib, moved = turns_by_sleep(bench, idle, "--more-b", json.dumps(OTHER_MODEL))
        texts.append(f"spare.idle = {idle or '0s'}: " + ", ".join(f"{way} {ms:.0f} ms" for way, ms in medians.items())
                     + f", {left_mib} MiB left; GiB of the last: {moved}")
    return "; ".join(texts) + "; all tokens equal"
