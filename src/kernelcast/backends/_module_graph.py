"""Child-side: the operators of a PyTorch module beside those of the reference, by `torch.fx`.

For the process that reads a module (`_reading_worker`). Functions of extensions stand in a graph as
calls of their own. Nothing is computed: shapes follow from tensors of the `meta` device.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_FREE = {
    *("getattr", "getitem", "setitem", "size", "dim", "numel", "is_contiguous", "stride", "eq"),
    *("view", "reshape", "permute", "transpose", "unsqueeze", "squeeze", "expand", "flatten", "t"),
    *("view_as", "expand_as", "detach", "contiguous", "cuda", "to", "chunk", "split", "unbind"),
    *("empty", "empty_like", "narrow", "select", "data_ptr", "Identity", "Dropout", "_assert"),
}
"""Names in a graph that compute nothing, or only say where the next operator reads."""


def compared(
    job: "dict[str, Any]", entry: "Any", extensions: "list[Any]", module: "Any"
) -> "dict[str, Any] | None":
    """What a module calls beside what the reference calls; None if one of them is not traced."""
    torch: Any = sys.modules["torch"]
    torch.autograd.Function.apply = classmethod(_apply)
    case = job["timed"]
    try:
        with torch.device("meta"):
            space = module.namespace_of(job["reference_source"], "reference.py", {})
            theirs = _Graph(_made(space[job["reference"]], case, module))
            for extension in extensions:
                extension.traced = True
            ours = _Graph(_made(entry, case, module))
            outputs = theirs.follow(case, module, [])
            ours.follow(case, module, outputs)
    except BaseException:
        return None
    return {
        "left": ours.counts,
        "own": ours.own,
        "replaced": {
            name: count - ours.counts.get(name, 0)
            for name, count in theirs.counts.items()
            if count > ours.counts.get(name, 0)
        },
        "moved_bytes": ours.moved_bytes,
        "reference_moved_bytes": theirs.moved_bytes,
    }


def call(function: "Any", args: "tuple[Any, ...]", kwargs: "dict[str, Any]") -> "Any":
    """A node for a call of an extension."""
    torch: Any = sys.modules["torch"]
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.fx.Proxy):
            return value.tracer.create_proxy("call_function", function, args, kwargs)
    raise TypeError("no argument is traced")


def _made(entry: "Any", case: "dict[str, Any]", module: "Any") -> "Any":
    return entry if case["init"] is None else module.seeded(entry, case["init"], 0)


class _Context:
    """In place of what an autograd function keeps for its backward."""

    def save_for_backward(self, *_: "Any") -> None:
        pass


def _apply(function: "Any", *args: "Any") -> "Any":
    return function.forward(_Context(), *args)


class _Graph:
    """A graph: operators with counts, and the bytes that they read and write."""

    def __init__(self, function: "Any") -> None:
        torch: Any = sys.modules["torch"]
        tracer = torch.fx.Tracer()
        self._graph = tracer.trace(function)
        self._root = torch.fx.GraphModule(tracer.root, self._graph)
        self.counts: dict[str, int] = {}
        self.own: dict[str, int] = {}
        self.moved_bytes: int | None = None
        for node in self._graph.nodes:
            if node.op.startswith("call_"):
                name, is_own = self.name_of(node)
                counts = self.own if is_own else self.counts
                if is_own or name not in _FREE:
                    counts[name] = counts.get(name, 0) + 1

    def name_of(self, node: "Any") -> "tuple[str, bool]":
        """What a node calls, and whether that is an extension's."""
        if node.op == "call_module":
            return type(self._root.get_submodule(node.target)).__name__, False
        if node.op == "call_method":
            return str(node.target), False
        name = getattr(node.target, "__name__", str(node.target))
        return name, getattr(node.target, "__module__", "") == "extension"

    def follow(self, case: "dict[str, Any]", module: "Any", known: "list[Any]") -> "list[Any]":
        """Follow the shapes of a case and add up bytes; return the outputs.

        An extension is taken to return the known outputs where nothing follows its call.
        """
        torch: Any = sys.modules["torch"]
        tensors = {
            name: torch.empty(shape, dtype=getattr(torch, dtype))
            for name, dtype, shape in case["arrays"]
        }
        last = [node.args[0] for node in self._graph.nodes if node.op == "output"]
        total = 0
        graph = self

        class Follower(torch.fx.Interpreter):  # type: ignore[misc]
            def run_node(self, node: "Any") -> "Any":
                nonlocal total
                if not node.op.startswith("call_"):
                    return super().run_node(node)
                name, is_own = graph.name_of(node)
                if is_own:
                    if node not in last or len(known) != 1:
                        raise TypeError("what an extension returns is not known")
                    result = known[0]
                else:
                    result = super().run_node(node)
                if is_own or name not in _FREE:
                    read = [*self.fetch_args_kwargs_from_env(node)]
                    if node.op == "call_module":
                        read.append([*graph._root.get_submodule(node.target).parameters()])
                    total += sum(each.nbytes for each in _tensors([*read, result]))
                return result

        try:
            result = Follower(self._root).run(*module.build(case["call"], tensors))
        except Exception:
            return []
        self.moved_bytes = total
        return [*_tensors(result)]


def _tensors(value: "Any") -> "Iterator[Any]":
    if isinstance(value, sys.modules["torch"].Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors([*value.values()])
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
