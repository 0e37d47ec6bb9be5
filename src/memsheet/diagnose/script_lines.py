"""What a script's own lines keep on the card from one round of a loop to the next, by what is assigned to
what.

The lines are read as Python's grammar has them, one by one, since a text holds pieces of a script; nothing of
them runs. A value is a tensor where a model, a loss or ``torch`` made it, or something of such a value; it
leaves the card by ``.item()``, ``.cpu()`` and the like. It is kept where a list, a table, a sum or another
tensor that was made before the loop takes it in.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from memsheet.frozen import NamedTuple
from memsheet.patterns import late_pattern

if TYPE_CHECKING:
    import ast

_MARK = late_pattern(
    r"^(?:>>> ?|\.\.\. ?|> ?|In ?\[\d{0,4}\]: ?|(?:-{1,4}>|❱)? ?\d{1,5}[ :|│]{1,3}(?=[A-Za-z_ ]))"
)
"""What stands before a line of code where people quote it."""
_SINK = r"\.(?:append|extend|add|update|put|insert|appendleft|push|store)\(|\+=|\b(\w+)\s?=\s?(?:self\.)?\1\s?\+|\bcat\(|stack\(|\]\s?=(?!=)|retain_graph"  # fmt: skip
_MAY_KEEP = late_pattern(_SINK)
_SIGNS = ("append", "extend(", ".add(", ".update(", ".put(", ".insert(", ".push(", ".store(", "+=", " + ", "cat(", "stack(", "]=", "] =", "retain_graph")  # fmt: skip
_MAY_MATTER = late_pattern(
    rf"{_SINK}|^(?:async )?(?:for|while|def|with|class|if|@)|=\s?[\w.]+\(|=\s?(?:\[|\{{|0|None|list|dict|torch)|backward"
)  # fmt: skip
_QUOTED = late_pattern(r"`([^`\n]{4,120})`")
_SENTENCE_PARTS = late_pattern(
    r"[;:.!?] +|, (?=\w+(?:\.\w+|\[)|self)|\b(?:with|do|call|calls|use|and|like|line|have|is|to|into|in|at) (?=\w+[.\[(])"
)  # fmt: skip
"""What stands around a statement in a sentence."""
_OF_LIBRARY = late_pattern(
    r"""\W{0,4}File "[^"\n]{0,300}(?:(?:site|dist)-packages|/lib/python|/(?:torch\w*|deepspeed|transformers|accelerate|trl|peft|megatron|(?:pytorch_)?lightning|verl|vllm|sglang|fairseq|diffusers|timm|keras|jax|flax)/)"""
)  # fmt: skip
"""A traceback's frame of a library, whose line of code is no script's."""
LONGEST, MOST_LINES = 240, 4_000
"""Letters of a line, and lines, that are read."""
_OFF_CARD = (
    "item",
    "cpu",
    "numpy",
    "tolist",
    "size",
    "dim",
    "numel",
    "backward",
    "step",
    "join",
    "format",
    "keys",
)
_OFF_CARD_CALLS = (
    "float", "int", "len", "str", "round", "bool", "print", "range", "open", "zip", "enumerate", "tqdm", "sorted",
    "type", "isinstance", "time", "hash", "id",
)  # fmt: skip
_NO_TENSOR = ("shape", "dtype", "device", "requires_grad", "grad_fn", "ndim", "name", "data_ptr")
_MAKERS = late_pattern(
    r"model|net(?!work_name)|backbone|encod|decod|extract|clip|vit|bert|gpt|llm|generat|policy|critic|actor|unet|crit|loss|objective|forward"
    r"|cross_entropy|mse|features?$|embed|predict|infer",
    re.IGNORECASE,
)  # fmt: skip
"""What functions are called that make tensors of a model; ``F.…`` and ``torch.…`` do, too."""
_TENSORS = late_pattern(
    r"^(?:\w{0,20}loss\w{0,8}|l|outs?|outputs?|res(?:ults?)?|preds?|predictions?|y_?hat|y_pred|logits|probs|hidden\w{0,8}|h|z|latents?|feats?|features?|emb(?:edding)?s?"
    r"|attn\w{0,10}|attentions?|activations?|acts?|grads?|score(?:s)?|reward(?:s)?|value(?:s)?|log_?probs?|state(?:s)?)$",
    re.IGNORECASE,
)  # fmt: skip
"""What tensors are called whose making the text does not show."""
_ROUNDLESS = late_pattern(
    r"layer|block|module|head|scale|level|stage|group|param|chunk|task|view|crop|timestep|micro|name|key|class|branch|expert|split|range\((?:[2-9]|1\d)\)"
)  # fmt: skip
"""What loops run over within one step."""
_LOSS = late_pattern(r"loss|err|cost|crit|objective|entropy|mse", re.IGNORECASE)
_WITHOUT_GRAPH = late_pattern(r"\bno_grad\b|\binference_mode\b|set_grad_enabled\(False\)")
_WITHOUT_GRAPH_WITHIN = 12
"""Lines before another in which a script says that nothing is kept for backward."""


class Kept(NamedTuple):
    """``name``: what keeps it; ``what``: ``sum``, ``losses``, ``outputs`` or ``graph`` (a state that goes
    from round to round with the graph of all rounds before).
    """

    name: str
    what: str
    looped: bool
    """Whether the text shows that it was made before the loop."""
    several: bool = False
    """Whether the text shows that several rounds ran."""


class _Line(NamedTuple):
    place: int
    node: ast.stmt
    said: str


def kept_by_script(text: str) -> tuple[Kept, ...]:
    """What each line of a script keeps, in their order; nothing of a text without code."""
    told = _ends_of_text(text)
    if not any(sign in line for line in told for sign in _SIGNS):
        return ()
    sinks = _lines_of_code(told, _MAY_KEEP)
    if "retain_graph" not in text and not any(True for each in sinks for _ in _taken_in(each.node)):
        return ()
    lines = list(_lines_of_code(told, _MAY_MATTER))
    return tuple(dict.fromkeys(kept for line in lines for kept in _kept_by_line(line, lines, text)))


def _ends_of_text(text: str) -> Sequence[str]:
    """The first lines and the last, where people quote their script."""
    told = text.splitlines()
    return told if len(told) <= MOST_LINES else (*told[: MOST_LINES // 2], *told[-MOST_LINES // 2 :])


def _lines_of_code(told: Sequence[str], wanted: re.Pattern[str]) -> Iterator[_Line]:
    """Each line that is a statement by itself, or the head of one, or stands between backticks."""
    own = [line for before, line in itertools.pairwise(("", *told)) if not _OF_LIBRARY.match(before)]
    quoted = [each for line in own if "`" in line for each in _QUOTED.findall(line)]
    for place, raw in enumerate((*own, *quoted)):
        said = _MARK.sub("", raw.strip().strip("`")).strip()
        if len(said) <= LONGEST and wanted.search(said):
            nodes = _statements_of(said)
            if not nodes and _MAY_KEEP.search(said):  # code in the midst of a sentence
                nodes = [node for part in _SENTENCE_PARTS.split(said) for node in _statements_of(part)]
            for node in nodes:
                yield _Line(place, node, said)


def _statements_of(said: str) -> Sequence[ast.stmt]:
    import ast

    bare = said.split("#", 1)[0].strip() if "#" in said else said
    source = (
        f"{bare}\ndef decorated(): pass"
        if bare[:1] == "@"
        else f"{bare} pass"
        if bare.endswith(":")
        else bare
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            body = ast.parse(source).body
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return ()
    inner = [each for node in body if isinstance(node, ast.For | ast.While | ast.If) for each in node.body]
    return [*body, *(each for each in inner if not isinstance(each, ast.Pass))]


def _kept_by_line(line: _Line, lines: Sequence[_Line], text: str) -> Iterator[Kept]:
    """What one line keeps, of which the loop around it takes nothing back."""
    for name, value, grows in _taken_in(line.node):
        before = [each for each in lines if each.place < line.place]
        if not _is_tensor(value, before, text) or _taken_back(name, before):
            continue
        named_loss = _names_loss(value, before)
        graphless = any(_WITHOUT_GRAPH.search(each.said) for each in before[-_WITHOUT_GRAPH_WITHIN:])
        if named_loss and (graphless or _has_method(value, "detach")):
            continue  # a number on the card
        looped = _is_made_before_loop(name, before)
        if _goes_backward(name, line, lines) or (
            grows == "sum" and not (looped or _sums_steps(name, value, text))
        ):
            continue
        yield Kept(name, grows or ("losses" if named_loss else "outputs"), _is_made_before_loop(name, before))
    if (state := _state_with_graph(line.node)) and "retain_graph" in text and not re.search(rf"\b{re.escape(state)}\b[^\n]{{0,40}}\.detach|repackage", text):  # fmt: skip
        yield Kept(state, "graph", looped=True)


_WHOLE_LOSS = late_pattern(
    r"^(?:self\.)?(?:(?:batch|step|iter|train|val|valid|test|cur|current)_?)?loss(?:es)?$"
)


def _sums_steps(name: str, value: ast.expr, text: str) -> bool:
    """Whether a sum whose loop the text does not show is of whole losses, not of the parts of one."""
    import ast

    if name == "loss" or not _LOSS.search(f"{name} {ast.unparse(value)}"):
        return False
    inner = [each for each in ast.walk(value) if isinstance(each, ast.Name | ast.Attribute | ast.Call)]
    said = [ast.unparse(each) for each in inner]
    whole = any(
        _WHOLE_LOSS.match(each) or re.search(rf"\b{re.escape(each)}\.backward\(", text) for each in said
    )
    return whole or any(isinstance(each, ast.Call) and _LOSS.search(_called_name(each)) for each in inner)


def _taken_in(node: ast.stmt) -> Iterator[tuple[str, ast.expr, str]]:
    """Who takes a value in, the value, and ``sum`` where it is added."""
    import ast

    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=method), args=args)):
            if method in ("append", "extend", "add", "appendleft", "push", "put", "insert", "store") and args:
                yield _root_name(owner), args[-1], ""
            elif method == "update" and args and isinstance(args[0], ast.Dict):
                yield _root_name(owner), args[0], ""
        case ast.AugAssign(target=target, op=ast.Add(), value=value) if not isinstance(value, ast.Constant):
            yield _root_name(target), value, "" if isinstance(value, ast.List) else "sum"
        case ast.Assign(targets=[ast.Subscript(value=owner, slice=index)], value=value):
            if not isinstance(index, ast.Constant) and isinstance(index, ast.Name | ast.Attribute | ast.JoinedStr | ast.Tuple):  # fmt: skip
                yield _root_name(owner), value, ""
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value):
            yield from _taken_by_itself(ast.unparse(target), value)


def _taken_by_itself(name: str, value: ast.expr) -> Iterator[tuple[str, ast.expr, str]]:
    """``x = x + y``, ``x = torch.cat([x, y])``, the latter also as one branch of two."""
    import ast

    match value:
        case ast.BinOp(left=left, op=ast.Add(), right=right) if ast.unparse(left) == name:
            yield name, right, "sum"
        case ast.IfExp(body=body, orelse=other):
            yield from _taken_by_itself(name, body)
            yield from _taken_by_itself(name, other)
        case ast.Call(func=ast.Attribute(attr="cat" | "concat" | "concatenate" | "vstack" | "hstack" | "stack"), args=[ast.List(elts=parts) | ast.Tuple(elts=parts), *_]):  # fmt: skip
            if any(ast.unparse(part) == name for part in parts[:-1]):
                yield name, parts[-1], ""
        case _:
            return


def _root_name(node: ast.expr) -> str:
    """``acts`` of ``acts.setdefault(n, [])``, ``self.cache`` of ``self.cache[i]``."""
    import ast

    match node:
        case ast.Call(func=ast.Attribute(value=owner)) | ast.Subscript(value=owner):
            return _root_name(owner)
        case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
            return f"self.{attribute}"
        case ast.Attribute(value=owner):
            return _root_name(owner)
        case ast.Name(id=name):
            return name
    return ""


def _called_name(node: ast.Call) -> str:
    import ast

    return ast.unparse(node.func)


def _is_tensor(value: ast.expr, before: Sequence[_Line], text: str, depth: int = 0) -> bool:
    """Whether a value is a tensor on the card, or holds one."""
    import ast

    if depth > DEEPEST:
        return False

    def is_one(node: ast.expr | None) -> bool:
        return node is not None and _is_tensor(node, before, text, depth + 1)

    match value:
        case ast.Name(id=name):
            made = _made_as(name, before)
            if made is None:
                return _is_of_hook(name, before, text) or bool(_TENSORS.match(name))
            return is_one(made) or _is_loss_of_call(name, made)
        case ast.Attribute(attr=attribute) if attribute in _NO_TENSOR:
            return False
        case ast.Attribute(value=owner, attr=attribute):
            return is_one(owner) or (not isinstance(owner, ast.Name) and bool(_TENSORS.match(attribute)))
        case ast.Subscript(value=owner) | ast.UnaryOp(operand=owner) | ast.Starred(value=owner):
            return is_one(owner)
        case ast.BinOp(left=left, right=right):
            return is_one(left) or is_one(right)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return any(map(is_one, parts))
        case ast.Dict(values=parts):
            return any(map(is_one, parts))
        case ast.Call():
            return _makes_tensor(value, is_one)
    return False


def _is_loss_of_call(name: str, made: ast.expr) -> bool:
    """Whether what a call whose name says nothing made is called a loss, and did not leave the card."""
    import ast

    if not isinstance(made, ast.Call) or not _LOSS.search(name):
        return False
    called = _called_name(made)
    return called.rpartition(".")[2] not in _OFF_CARD and called not in _OFF_CARD_CALLS


DEEPEST = 12
"""How far back the making of a value is followed."""


def _makes_tensor(call: ast.Call, is_one: Callable[[ast.expr], bool]) -> bool:
    import ast

    name = _called_name(call)
    last = name.rpartition(".")[2]
    moved = any(isinstance(each, ast.Constant) and each.value == "cpu" for each in (*call.args, *(word.value for word in call.keywords)))  # fmt: skip
    if last in _OFF_CARD or name in _OFF_CARD_CALLS or moved:
        return False
    if isinstance(call.func, ast.Attribute) and is_one(call.func.value):
        return True
    if last in ("cuda", "to"):
        return (
            any("cuda" in ast.unparse(each) or "device" in ast.unparse(each) for each in call.args)
            or last == "cuda"
        )
    of_torch = name.startswith(("F.", "torch.nn.functional.", "nn.functional."))
    on_card = any(word.arg == "device" and "cuda" in ast.unparse(word.value) for word in call.keywords)
    made = of_torch or on_card or (bool(_MAKERS.search(name)) and "loader" not in name and name[:1] != "[")
    return made or (name.startswith("torch.") and any(map(is_one, call.args)))


def _made_as(name: str, before: Sequence[_Line]) -> ast.expr | None:
    """What a name was last made as, in lines before."""
    import ast

    for line in reversed(before):
        node = line.node
        if isinstance(node, ast.Assign) and any(name in _names_of(each) for each in node.targets):
            return node.value
    return None


def _names_of(node: ast.expr) -> set[str]:
    import ast

    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _is_of_hook(name: str, before: Sequence[_Line], text: str) -> bool:
    """Whether a name is what a hook of a module is given."""
    import ast

    heads = [each.node for each in before if isinstance(each.node, ast.FunctionDef)]
    return (
        bool(heads) and "forward_hook" in text and any(name == each.arg for each in heads[-1].args.args[-2:])
    )


def _names_loss(value: ast.expr, before: Sequence[_Line]) -> bool:
    import ast

    if isinstance(value, ast.Name) and not _LOSS.search(value.id):
        made = _made_as(value.id, before)
        return isinstance(made, ast.Call) and bool(_LOSS.search(_called_name(made)))
    return bool(_LOSS.search(ast.unparse(value)))


def _has_method(value: ast.expr, method: str) -> bool:
    import ast

    return any(isinstance(each, ast.Attribute) and each.attr == method for each in ast.walk(value))


def _is_loop(line: _Line) -> bool:
    """Whether a line begins a loop over rounds."""
    import ast

    match line.node:
        case ast.For(iter=over) | ast.AsyncFor(iter=over):
            return not _ROUNDLESS.search(ast.unparse(over))
        case ast.While():
            return True
    return False


def _reset_place(name: str, before: Sequence[_Line]) -> int | None:
    """Where a name was last made anew."""
    import ast

    places = (
        line.place for line in reversed(before)
        if isinstance(line.node, ast.Assign | ast.AnnAssign) and not any(True for _ in _taken_in(line.node))
        and name in {ast.unparse(each) for each in (line.node.targets if isinstance(line.node, ast.Assign) else [line.node.target])}
    )  # fmt: skip
    return next(places, None)


def _taken_back(name: str, before: Sequence[_Line]) -> bool:
    """Whether what keeps it is made anew in each round: behind the loop's head, or a function's."""
    import ast

    made = _reset_place(name, before)
    between = [each for each in before if made is not None and each.place > made]
    apart = any(_is_loop(each) or isinstance(each.node, ast.FunctionDef) for each in between)
    return made is not None and not apart and _stands_in_loop(made, before)


def _stands_in_loop(place: int, before: Sequence[_Line]) -> bool:
    import ast

    return any(
        isinstance(each.node, ast.For | ast.While | ast.FunctionDef) for each in before if each.place < place
    )


def _is_made_before_loop(name: str, before: Sequence[_Line]) -> bool:
    made = _reset_place(name, before)
    return made is not None and any(_is_loop(each) for each in before if each.place > made)


def _goes_backward(name: str, line: _Line, lines: Sequence[_Line]) -> bool:
    """Whether all that is kept is what one step's backward pass starts from."""
    bare = name.removeprefix("self.")
    own = rf"\b{re.escape(bare)}\b"
    for each in lines:
        if re.search(rf"{own}[^\n]{{0,40}}\.backward\(|backward\([^\n]{{0,20}}{own}", each.said):
            return True
        if each.place > line.place and (found := re.match(rf"(\w+)\s?=\s?[^\n]{{0,60}}{own}", each.said)):
            goal = found[1]
            if goal != bare and any(re.search(rf"\b{re.escape(goal)}\b[^\n]{{0,40}}\.backward\(", other.said) for other in lines if other.place > each.place):  # fmt: skip
                return True
    return False


def _state_with_graph(node: ast.stmt) -> str:
    """A name that a call is given and makes anew: a state that goes from round to round."""
    import ast

    match node:
        case ast.Assign(targets=[target], value=ast.Call() as call):
            given = {each.id for each in call.args if isinstance(each, ast.Name)}
            return next(iter(sorted(_names_of(target) & given)), "")
    return ""
