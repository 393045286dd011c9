"""The commands, each with the files that it may make. `m.onnx` is a stranger's model, `good.onnx` our own."""

from __future__ import annotations

from tests.hostile.promise import Call

_OUT = ("out.onnx", "out.onnx.????????????.data")
_OPTIMIZE = (0, 1, 2, 3)


def optimize(*more: str, makes: tuple[str, ...] = (), always: tuple[str, ...] = ()) -> Call:
    return Call(("optimize", "m.onnx", "out.onnx", "--memory", "2G", *more), (*_OUT, *makes), _OPTIMIZE, always)


def unverified(*more: str, makes: tuple[str, ...] = (), always: tuple[str, ...] = ()) -> Call:
    return optimize("--no-verify", *more, makes=makes, always=always)


# Commands of one process are cheap; others start a process that runs models.
CHEAP = [
    unverified(),
    unverified("-O3", "-v"),
    unverified("-O1", "--check-each"),
    unverified("-O0"),
    unverified("--external", "inline"),
    unverified("--external", "reuse", "-q"),
    unverified("--inline-functions", "--freeze-initializers"),
    unverified("--format", "json", "--provenance"),
    unverified("--dim", "N=3", "--shape", "x:2"),
    unverified("--report", "r.json", "--time-passes", "--journal", "j.json", makes=("r.json", "j.json")),
    unverified("--dump-dir", "d", "--print-ir-after", "changed", always=("d", "d/*")),
    unverified("--reproducer", "crash", always=("crash", "crash/*")),
    unverified("-O2", "--strict"),
    Call(("optimize", "m.onnx", "--check", "--no-verify", "--junit", "j.xml"), ("j.xml",), _OPTIMIZE, ("j.xml",)),
    Call(("stats", "m.onnx"),),
    Call(("stats", "m.onnx", "good.onnx", "--format", "json", "--top", "3")),
    Call(("stats", "good.onnx", "m.onnx", "--format", "json")),
    Call(("stats", "m.onnx", "--format", "csv")),
    Call(("report", "m.onnx", "m.onnx", "-o", "p.html", "--no-verify"), ("p.html",), _OPTIMIZE),
    Call(("report", "good.onnx", "m.onnx", "-o", "p.html", "--no-verify"), ("p.html",), _OPTIMIZE),
    Call(("find", "m.onnx", "Relu(x)")),
    Call(("find", "m.onnx", "Add|Mul(x, const(w), ...)", "--format", "json")),
    Call(("why", "m.onnx", "elim-identity")),
    Call(("why", "m.onnx", "constant-folding", "-O2")),
    Call(("extract", "m.onnx", "out.onnx", "--outputs", "y"), _OUT),
    Call(("extract", "m.onnx", "out.onnx", "--inputs", "x", "--external", "copy"), _OUT),
    Call(("partition", "m.onnx", "--ops", "Add,Relu,Mul,MatMul")),
]  # fmt: skip
COSTLY = [
    optimize("--timeout", "10", "-v"),
    optimize("-O3", "--timeout", "10", "--strict"),
    unverified("--target-opset", "21"),
    Call(("verify", "m.onnx", "m.onnx", "--memory", "2G", "--timeout", "10")),
    Call(("verify", "good.onnx", "m.onnx", "--memory", "2G", "--timeout", "10", "--format", "json")),
    Call(("report", "good.onnx", "m.onnx", "-o", "p.html", "--memory", "2G"), ("p.html",), _OPTIMIZE),
    Call(("partition", "m.onnx", "--ops", "Add,Relu", "--out-dir", "parts", "--memory", "2G"), ("parts", "parts/*")),
    Call(("partition", "m.onnx", "--ops", "Add,Relu", "--fuse", "out.onnx", "--memory", "2G"), _OUT),
    Call(("bisect", "m.onnx", "--memory", "2G"), ("*.onnx", "*.onnx.*.data")),
    Call(("bench", "m.onnx", "--runs", "2", "--memory", "2G", "--timeout", "10")),
    Call(("optimize", "m.onnx", "good.onnx", "--out-dir", "o", "--jobs", "2", "--cache-dir", "c", "--no-verify"),
         ("o", "o/*", "c", "c/*"), _OPTIMIZE, ("o", "o/good.onnx", "c", "c/*")),
]  # fmt: skip
# Invalid calls, whatever the model.
WRONG = [
    Call(("explain", "m.onnx"), (), (2,)),
    Call(("reproduce", "."), (), (2,)),
    Call(("optimize", "m.onnx"), (), (2,)),
    Call(("optimize", "m.onnx", "nowhere/out.onnx", "--no-verify"), (), (2,)),
    Call(("optimize", "m.onnx", "m.onnx/out.onnx", "--no-verify"), (), (2,)),
    Call(("optimize", "m.onnx", ".", "--no-verify"), (), (2,)),
    Call(("optimize", "m.onnx", "out.onnx", "--pipeline", "("), (), (2,)),
    Call(("optimize", "m.onnx", "out.onnx", "--pipeline", "fixpoint(" * 5000), (), (2,)),
    Call(("optimize", "m.onnx", "out.onnx", "--fail-if", "9**9**9**9 > 0"), (), (2,)),
    Call(("optimize", "m.onnx", "out.onnx", "--fail-if", "(" * 5000), (), (2,)),
    Call(("optimize", "m.onnx", "out.onnx", "--fail-if", "__import__('os').system('id')"), (), (2,)),
    Call(("optimize", "m.onnx", "out.onnx", "--dim", "N=" + "9" * 5000), (), (2,)),
    Call(("optimize", "m.onnx", "out.onnx", "--dim", "N=-1"), (), (2,)),
    Call(("optimize", "m.onnx", "out.onnx", "--shape", "x:1,,2"), (), (2,)),
    Call(("optimize", "m.onnx", "out.onnx", "--memory", "lots"), (), (2,)),
    Call(("optimize", "m.onnx", "out.onnx", "--memory", "-1"), (), (2,)),
    Call(("optimize", "m.onnx", "out.onnx", "--memory", "1"), (), (2,)),
    Call(("optimize", "m.onnx", "out.onnx", "--work", "nan", "--no-verify"), _OUT, (0, 2)),
    Call(("optimize", "m.onnx", "out.onnx", "--target-opset", "9" * 30), (), (2,)),
    Call(("optimize", "m.onnx", "out.onnx", "--config", "a.b.c=1"), (), (2,)),
    Call(("optimize", "m.onnx", "out.onnx", "--input", "x=m.onnx"), (), (1, 2)),
    Call(("find", "m.onnx", "(" * 5000), (), (2,)),
    Call(("find", "m.onnx", "Relu(" * 3000 + "x" + ")" * 3000), (), (1, 2)),
    Call(("find", "m.onnx", "(x) => (y) { y = Relu (x"), (), (2,)),
    Call(("find", "m.onnx", "@/dev/null"), (), (1, 2)),
    Call(("extract", "m.onnx", "out.onnx", "--outputs", "nobody"), (), (2,)),
    Call(("extract", "m.onnx", "out.onnx", "--outputs", ""), _OUT, (0, 2)),
    Call(("partition", "m.onnx", "--ops", ""), (), (0, 2)),
    Call(("partition", "m.onnx", "--ops", "Add", "--out-dir", "m.onnx"), (), (2,)),
    Call(("report", "m.onnx", "m.onnx", "-o", "m.onnx/p.html"), (), (2,)),
    Call(("report", "m.onnx", "m.onnx", "-o", "p.html", "--from", "m.onnx"), (), (2,)),
    Call(("verify", "m.onnx", "m.onnx", "--cases", "nothing"), (), (2,)),
    Call(("verify", "m.onnx", "m.onnx", "--inputs", "m.onnx"), (), (2,)),
    Call(("bench", "m.onnx", "--provider", "nothing"), (), (2,)),
    Call(("stats", "m.onnx", "--dim", "N"), (), (2,)),
    Call(("why", "m.onnx", "elim-identity", "--node", "nobody"), (), (2,)),
]
