"""What a declaration accepts, and how it refuses the rest: with the remedy and the nearest right name."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, Optional, Protocol, TypedDict, TypeVar, Union

import pytest

from holdfast import Cancel, ConfigurationError, Holdfast, InvalidName, Limit, Router, Snooze, Step, Workflow
from holdfast.core.workflows.graph import Exhausted, Graph, Node

T = TypeVar("T")


class Point(TypedDict):
    x: int


class Sized(Protocol):
    size: int


class Named:
    size = 1


class Pair(Generic[T], list[int]):
    pass


async def a(ctx: Step, n: int) -> str:
    return str(n)


async def b(a: str) -> None: ...


def flow() -> Workflow:
    return Router().workflow("flow")


def declared() -> Workflow:
    made = flow()
    made.step(a)
    made.step(after=a)(b)
    return made


def test_a_graph_follows_from_the_steps() -> None:
    made = declared()

    @made.step(after=["a", b], manual=True, exhausted="block")
    def c(a: str, n: int) -> None: ...

    graph = made.declaration.graph
    assert (graph.first, graph.last, graph.order) == (("a",), ("c",), ("a", "b", "c"))
    assert graph.nodes["c"] == Node("c", ("a", "b"), manual=True, exhausted=Exhausted.BLOCK, takes=("n",), needs=("n",))
    assert graph.nodes["c"].joins == 3
    assert graph.ancestors("c") == {"a", "b"}
    assert graph.descendants("a") == {"b", "c"}
    assert made.declaration.parameters.names == {"n"}


def test_a_graph_survives_its_json() -> None:
    graph = declared().declaration.graph
    again = Graph.from_json("flow", 1, graph.to_json())
    assert (again.nodes, again.hash) == (graph.nodes, graph.hash)


def test_the_hash_depends_on_steps_and_order_and_not_on_budgets() -> None:
    plain = Graph("flow", 1, [Node("a"), Node("b", ("a",))])
    assert Graph("flow", 1, [Node("b", ("a",)), Node("a", exhausted=Exhausted.BLOCK)]).hash == plain.hash
    assert Graph("flow", 1, [Node("a"), Node("b")]).hash != plain.hash
    assert Graph("flow", 1, [Node("a"), Node("b", ("a",), manual=True)]).hash != plain.hash


def _unknown(made: Workflow) -> None:
    @made.step(after="aa")
    def c() -> None: ...


def _foreign(made: Workflow) -> None:
    def other() -> None: ...

    @made.step(after=other)
    def c() -> None: ...


def _twice(made: Workflow) -> None:
    made.step(a)


def _after_twice(made: Workflow) -> None:
    @made.step(after=[a, "a"])
    def c() -> None: ...


def _not_before(made: Workflow) -> None:
    @made.step
    def c(b: None) -> None: ...


def _wrong_type(made: Workflow) -> None:
    @made.step(after=a)
    def c(a: dict[str, int]) -> None: ...


def _input_of_another_type(made: Workflow) -> None:
    @made.step(after=a)
    def c(n: str) -> None: ...


def _input_with_another_default(made: Workflow) -> None:
    @made.step(after=a)
    def c(n: int = 1) -> None: ...


def _named_like_an_input(made: Workflow) -> None:
    @made.step
    def n() -> None: ...


def _misspelt_result(made: Workflow) -> None:
    @made.step
    def reserve() -> None: ...

    @made.step(after=reserve)
    def c(reserv: None) -> None: ...


def _exhausted(made: Workflow) -> None:
    made.step(exhausted="blocked")


def _manual(made: Workflow) -> None:
    made.step(manual="yes")  # type: ignore[call-overload]


def _option(made: Workflow) -> None:
    made.step(retries=3)  # type: ignore[call-overload]


def _keep_runs(made: Workflow) -> None:
    made.step(keep_runs=True)


def _queue(made: Workflow) -> None:
    @made.step(queue="a queue")
    def c() -> None: ...


def _variadic(made: Workflow) -> None:
    @made.step
    def c(*numbers: int) -> None: ...


def _class(made: Workflow) -> None:
    made.step(dict)


def _undo(made: Workflow) -> None:
    @made.step(undo=3)  # type: ignore[call-overload]
    def c() -> None: ...


def _undo_of_a_later_result(made: Workflow) -> None:
    def undo(b: None) -> None: ...

    @made.step(after=a, undo=undo)
    def c() -> None: ...


def _context_without_annotation(made: Workflow) -> None:
    @made.step
    def c(ctx, n: int) -> None: ...


def _limit_by_a_result(made: Workflow) -> None:
    @made.step(after="a", limit=Limit(2, by="a"))
    def c(a: str, n: int) -> None: ...


REFUSED: list[tuple[Callable[[Workflow], None], str]] = [
    (_unknown, "after 'aa', which is not declared above it; did you mean a?"),
    (_foreign, "after 'other', which is not a step of this workflow; decorate it with @flow.step first"),
    (_twice, "two steps named a; give one of them another name="),
    (_after_twice, "names a step twice in after=; name it once"),
    (_not_before, "takes the result of step b, which does not run before it; add b to after="),
    (_wrong_type, r"takes a: dict\[str, int\], but step a returns str; give both the same type"),
    (_input_of_another_type, "takes n: str, but step a takes n: int; give both the same type"),
    (_input_with_another_default, "different defaults in steps a and c"),
    (_named_like_an_input, "is named like a parameter of step a"),
    (
        _misspelt_result,
        "parameter reserv of step c would be an argument of start; did you mean the result of step reserve?",
    ),
    (_exhausted, "exhausted is 'blocked'; did you mean 'block'?"),
    (_manual, "manual is 'yes'; give True or False"),
    (_option, "has no option 'retries'; give a policy"),
    (_keep_runs, "has no option 'keep_runs'"),
    (_queue, "queue name 'a queue' is invalid"),
    (_variadic, "cannot be stored by name"),
    (_class, "decorate a function"),
    (_undo, "undo= of step c of workflow flow is 3; decorate a function"),
    (
        _context_without_annotation,
        "step c: ctx has no annotation, so it would be an argument of the call; write ctx: Step",
    ),
    (_limit_by_a_result, "flow/c: by='a' is not a field of the payload; it has n"),
    (_undo_of_a_later_result, "takes the result of step b, which does not run before it"),
]


@pytest.mark.parametrize(("declare", "remedy"), REFUSED, ids=[one.__name__ for one, _ in REFUSED])
def test_what_cannot_work_is_refused_when_it_is_declared(declare: Callable[[Workflow], None], remedy: str) -> None:
    with pytest.raises((ConfigurationError, InvalidName), match=remedy):
        declare(declared())


FITTING = [
    (list[int], list[int]),
    (list[int], Sequence[int]),
    (list[int], list),
    (list, list[int]),
    (list[Any], list[int]),
    (list[int], list[float]),
    (list[int | None], list[int | str | None]),
    (int | None, int | str | None),
    (Optional[int], Union[str, int, None]),  # noqa: UP007, UP045
    (Annotated[int, "id"], int | None),
    (bool, int),
    (int | Snooze | Cancel, int),
    (dict[str, list[int]], Mapping[str, Sequence[int]]),
    (tuple[int, ...], tuple[int, str]),
    (dict[str, int], Point),
    (Named, Sized),
    (Pair[str], list[int]),
]
MISFITS = [
    (list[int], list[str]),
    (list[int], Sequence[str]),
    (dict[str, int], dict[str, str]),
    (dict[str, list[int]], dict[str, list[str]]),
    (int | None, int),
    (Optional[int], int),  # noqa: UP045
    (int | str, int | None),
    (list[int | None], list[int]),
    (int, str | None),
    (list[int], int | None),
]


def connected(returned: Any, taken: Any) -> None:
    made = flow()

    def first() -> None: ...

    def second(first: object) -> None: ...

    first.__annotations__["return"], second.__annotations__["first"] = returned, taken
    made.step(first)
    made.step(after=first)(second)


@pytest.mark.parametrize(("returned", "taken"), FITTING, ids=str)
def test_a_step_takes_each_value_that_the_step_before_it_may_return(returned: Any, taken: Any) -> None:
    connected(returned, taken)


@pytest.mark.parametrize(("returned", "taken"), MISFITS, ids=str)
def test_a_step_that_takes_another_type_than_the_step_before_it_returns_is_refused(returned: Any, taken: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"step second takes first: .* but step first returns"):
        connected(returned, taken)


def test_steps_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="steps a, b wait for each other"):
        Graph("flow", 1, [Node("a", ("b",)), Node("b", ("a",)), Node("c")])


def test_a_graph_with_an_unknown_step_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="which is not a step; did you mean charge"):
        Graph("flow", 1, [Node("charge"), Node("b", ("charg",))])


NAMES: list[tuple[dict[str, Any], str]] = [
    ({"name": "a b"}, "workflow name 'a b' is invalid"),
    ({"name": "a/b"}, "it has a slash"),
    ({"name": "x" * 60}, "it is too long"),
    ({"name": "f", "version": 0}, "0 is not a version"),
    ({"name": "f", "version": True}, "True is not a version"),
    ({"name": "f", "version": 2, "compatible_with": (2,)}, "names 2, which is not older"),
    ({"name": "f", "version": 2, "compatible_with": ("1",)}, "'1' is not a version"),
]


@pytest.mark.parametrize(("given", "remedy"), NAMES)
def test_wrong_names_and_versions_are_refused(given: dict[str, Any], remedy: str) -> None:
    with pytest.raises((ConfigurationError, InvalidName), match=remedy):
        Router().workflow(given.pop("name"), **given)


def test_a_bare_decorator_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs parentheses"):
        Router().workflow(a)  # type: ignore[arg-type]


def test_two_workflows_of_one_name_are_refused() -> None:
    router = Router()
    router.workflow("flow")
    with pytest.raises(ConfigurationError, match="two workflows are named 'flow'"):
        router.workflow("flow")


def test_a_step_stays_an_ordinary_function() -> None:
    made = flow()

    @made.step
    def double(n: int) -> int:
        return n * 2

    assert double(2) == 4


def test_a_start_takes_the_values_that_steps_take(sqlite_dsn: str) -> None:
    hf = Holdfast(sqlite_dsn)
    made = hf.workflow("flow")

    @made.step
    def one(sku: str, count: int = 1) -> None: ...

    for args, kwargs, problem in (
        ((), {}, "missing a required argument: 'sku'"),
        (("a", 1, 2), {}, "too many positional arguments"),
        (("a",), {"key": "k"}, r"write workflow.using\(key=...\).start"),
    ):
        with pytest.raises(TypeError, match=problem):
            made.sync.start(*args, **kwargs)


def test_a_workflow_without_steps_is_refused_at_its_start(sqlite_dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="workflow flow has no steps"):
        Holdfast(sqlite_dsn).workflow("flow").sync.start()


def test_a_handler_that_is_no_step_cannot_take_a_step() -> None:
    router = Router()
    with pytest.raises(ConfigurationError, match="takes a Step, which only steps of a workflow get"):

        @router.consumer("order.placed")
        async def bill(ctx: Step, order: dict[str, Any]) -> None: ...


async def test_the_values_of_a_step_that_is_declared_later_belong_to_the_start(hf: Holdfast) -> None:
    flow = hf.workflow("flow")

    @flow.step
    async def first(sku: str) -> None: ...

    with pytest.raises(TypeError, match="missing a required argument: 'sku'"):
        await flow.start()

    @flow.step(after=first)
    async def second(count: int) -> None: ...

    with pytest.raises(TypeError, match="missing a required argument: 'count'"):
        await flow.start("lamp")
