"""Declarations: valid ones become specs, invalid ones are refused with advice."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from millrace.api.bolt import BatchingBolt, Bolt, TicklessBatchingBolt
from millrace.api.component import Component
from millrace.api.grouping import Grouping
from millrace.api.spout import ReliableSpout, ReplayableSpout, Spout
from millrace.api.topology import ComponentSpec, SpecInput, Stream, StreamRef, Topology, mode_of
from millrace.api.tuple import DEAD_LETTER_FIELDS
from millrace.errors import MillraceError, TopologyError


class Lines(Spout):
    outputs = ["line", Stream(["reason"], name="errors"), Stream(["line"], name="chosen", direct=True)]

    def next_tuple(self) -> None: ...


class Mute(Spout):
    def next_tuple(self) -> None: ...


class Named(Spout):
    """Has no default stream."""

    outputs = [Stream(["x"], name="only")]

    def next_tuple(self) -> None: ...


class Split(Bolt):
    outputs = ("word", "length")

    def process(self, tup: Any) -> None: ...


class Sink(Bolt):
    def process_rows(self, rows: list[Any]) -> None: ...


class ArrowSink(Bolt):
    def process_arrow(self, batch: Any) -> None: ...


class Batches(BatchingBolt):
    def process_batch(self, key: Any, tups: list[Any]) -> None: ...


class Merging(Sink):
    @staticmethod
    def merge(one: Any, other: Any) -> Any: ...


class WordCount(Topology):
    config = {"topology.message.timeout.secs": 30}
    lines = Lines.spec(par=2)
    split = Split.spec(inputs=[lines], par=4, config={"speed": [1, 2]})
    count = Sink.spec(name="counter", inputs={split: Grouping.fields("word"), lines["errors"]: Grouping.ALL}, par=8)


def declare(**body: Any) -> type[Topology]:
    """Declare a topology with this class body."""
    return type("Bad", (Topology,), body)


# ---- valid declarations ----


def test_specs_are_in_order_and_named_after_their_attributes_unless_named() -> None:
    assert [spec.name for spec in WordCount.specs] == ["lines", "split", "counter"]
    assert WordCount.specs == [WordCount.lines, WordCount.split, WordCount.count]
    assert [spec.par for spec in WordCount.specs] == [2, 4, 8]
    assert WordCount.split.component_cls is Split
    assert WordCount.split.config == {"speed": [1, 2]}
    assert WordCount.config == {"topology.message.timeout.secs": 30}


def test_inputs_name_their_sources() -> None:
    assert WordCount.lines.inputs == ()
    assert WordCount.split.inputs == (SpecInput("lines", "default", Grouping.SHUFFLE),)
    assert WordCount.count.inputs == (SpecInput("split", "default", Grouping.fields("word")),
                                      SpecInput("lines", "errors", Grouping.ALL))


def test_outputs_mix_field_names_and_streams() -> None:
    assert WordCount.lines.outputs == (Stream(["line"]), Stream(["reason"], "errors"), Stream(["line"], "chosen", True))
    assert WordCount.split.outputs == (Stream(["word", "length"]),)
    assert WordCount.count.outputs == ()


def test_stream_defaults() -> None:
    assert (Stream().fields, Stream().name, Stream().direct) == ((), "default", False)
    with pytest.raises(AttributeError):
        Stream().name = "other"  # type: ignore[misc]


def test_class_attributes_are_the_defaults_of_a_spec() -> None:
    class Tuned(Split):
        par = 3
        config = {"a": 1}

    assert (Tuned.spec().par, Tuned.spec().config) == (3, {"a": 1})
    assert (Tuned.spec(par=5).par, Tuned.spec(config={"b": 2}).config) == (5, {"b": 2})
    assert Tuned.spec(par={"prod": 8, "beta": 1}).par == {"prod": 8, "beta": 1}


@pytest.mark.parametrize("form", [lambda spec: spec, lambda spec: [spec], lambda spec: (spec,),
                                  lambda spec: spec["default"], lambda spec: {spec: Grouping.SHUFFLE}])
def test_the_forms_of_inputs(form: Callable[[ComponentSpec], Any]) -> None:
    lines = Lines.spec()
    topology = declare(lines=lines, split=Split.spec(inputs=form(lines)))
    assert topology.specs[1].inputs == (SpecInput("lines", "default", Grouping.SHUFFLE),)


def test_a_direct_stream_in_a_list_is_read_directly() -> None:
    lines = Lines.spec()
    assert declare(lines=lines, sink=Sink.spec(inputs=[lines["chosen"]])).specs[1].inputs == (
        SpecInput("lines", "chosen", Grouping.DIRECT),)
    later = declare(sink=Sink.spec(inputs=[StreamRef("lines", "chosen")]), lines=lines)
    assert later.specs[0].inputs == (SpecInput("lines", "chosen", Grouping.DIRECT),)


def test_the_callers_dicts_are_neither_changed_nor_kept() -> None:
    lines = Lines.spec()
    inputs, config = {lines: Grouping.SHUFFLE}, {"list": [1]}
    split = Split.spec(inputs=inputs, config=config)
    topology = declare(lines=lines, split=split)
    assert (inputs, config) == ({lines: Grouping.SHUFFLE}, {"list": [1]})
    inputs.clear()
    config["list"].append(2)
    assert topology.specs[1].config == {"list": [1]}
    assert len(topology.specs[1].inputs) == 1


def test_a_spec_may_be_placed_in_two_topologies() -> None:
    lines = Lines.spec()
    split = Split.spec(inputs=[lines])
    first = declare(lines=lines, split=split)
    second = declare(source=lines, words=split)
    assert [spec.name for spec in first.specs] == ["lines", "split"]
    assert [spec.name for spec in second.specs] == ["source", "words"]
    assert first.specs[1].inputs[0].source == "lines"
    assert second.specs[1].inputs[0].source == "source"
    assert lines.name is None and split.inputs[0].source is lines
    first.specs[0].config["only here"] = 1
    assert lines.config == second.specs[0].config == {}


def test_components_of_another_topology_may_be_placed_again() -> None:
    again = declare(text=WordCount.lines, split=WordCount.split, count=WordCount.count)
    assert [spec.name for spec in again.specs] == ["text", "split", "counter"]
    assert again.specs[2].inputs[1] == SpecInput("text", "errors", Grouping.ALL)


def test_dead_letters_of_a_bolt_are_a_stream_that_is_not_among_its_outputs() -> None:
    lines = Lines.spec()
    split = Split.spec(inputs=[lines])
    topology = declare(lines=lines, split=split, sink=Sink.spec(
        inputs={split.dead_letters: Grouping.fields("component"), split["default"]: Grouping.SHUFFLE}))
    assert topology.specs[2].inputs[0] == SpecInput("split", "dead-letters", Grouping.fields("component"))
    assert split.stream("dead-letters").fields == DEAD_LETTER_FIELDS
    assert [stream.name for stream in split.outputs] == ["default"]


def test_a_component_class_may_be_defined_in_the_body_if_it_has_a_spec() -> None:
    class Nested(Topology):
        class Source(Spout):
            outputs = ["x"]

            def next_tuple(self) -> None: ...

        source = Source.spec()
        errors = None  # attributes that are not components are ignored

    assert [spec.name for spec in Nested.specs] == ["source"]


def test_a_subclass_inherits_settings_and_no_components() -> None:
    class Smaller(WordCount):
        other = Lines.spec()

    assert [spec.name for spec in Smaller.specs] == ["other"]
    assert Smaller.config == WordCount.config and Smaller.config is not WordCount.config


def test_a_spec_never_changes_and_can_be_pickled() -> None:
    with pytest.raises(AttributeError, match=r"immutable.*Split\.spec"):
        WordCount.split.par = 7
    with pytest.raises(AttributeError, match="immutable"):
        del WordCount.split.par
    copied = pickle.loads(pickle.dumps(WordCount.split))
    assert (copied.name, copied.par, copied.inputs) == ("split", 4, WordCount.split.inputs)
    assert repr(copied) == "<spec of Split, name='split', par=4>"


def test_a_topology_is_never_instantiated() -> None:
    with pytest.raises(TypeError, match="WordCount is a declaration"):
        WordCount()


@pytest.mark.parametrize(("component", "mode"), [(Lines, "next_tuple"), (Split, "process"), (Sink, "process_rows"),
                                                 (ArrowSink, "process_arrow"), (Batches, "process")])
def test_mode(component: type[Component], mode: str) -> None:
    assert mode_of(component) == mode


def test_an_inherited_method_can_be_put_aside() -> None:
    class Rows(Split):
        process = None  # type: ignore[assignment]

        def process_rows(self, rows: list[Any]) -> None: ...

    assert mode_of(Rows) == "process_rows"


# ---- refused declarations ----

VALUE, TYPE, KEY = TopologyError, TypeError, KeyError


def cyclic() -> None:
    lines = Lines.spec()
    a = Split.spec(inputs=[lines, StreamRef("c")])
    b = Split.spec(inputs=[a])
    declare(lines=lines, a=a, b=b, c=Split.spec(inputs=[b]))


def combining(key: str, combine: Any, sink: type[Bolt] = Sink) -> Callable[[], type[Topology]]:
    """Declare a topology whose sink reads the words of Split by this key, combined."""

    def build() -> type[Topology]:
        lines = Lines.spec()
        split = Split.spec(inputs=[lines])
        return declare(lines=lines, split=split, sink=sink.spec(inputs={split: Grouping.fields(key, combine=combine)}))

    return build


def reading(make: Callable[[ComponentSpec], Any]) -> Callable[[], object]:
    """Declare a topology whose sink reads the inputs that `make` returns for the spec of Lines."""

    def build() -> type[Topology]:
        lines = Lines.spec()
        return declare(lines=lines, sink=Sink.spec(inputs=make(lines)))

    return build


def component(base: type[Component], **body: Any) -> Callable[[], object]:
    odd: Any = type("Odd", (base,), body)
    return lambda: odd.spec()


def outputs(value: Any) -> Callable[[], object]:
    return component(Split, outputs=value)


def inherited() -> None:
    class Sub(WordCount):
        mine = Lines.spec()
        count2 = Sink.spec(inputs=[WordCount.split])


def twice() -> None:
    lines = Lines.spec()
    declare(one=lines, two=lines)


def nested() -> None:
    class Bad(Topology):
        lines = Lines.spec()

        class Forgotten(Spout):
            outputs = ["x"]

            def next_tuple(self) -> None: ...


def several(self: Any, *args: Any) -> None: ...


@pytest.mark.parametrize(("combine", "sink"), [({"length": "max"}, Sink), ("merge", Merging), ({"length": "max"}, Merging)])
def test_the_tuples_of_a_stream_may_be_combined(combine: Any, sink: type[Bolt]) -> None:
    topology = combining("word", combine, sink)()
    assert topology.specs[2].inputs[0].grouping == Grouping.fields("word", combine=combine)


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "empty": (declare, VALUE, r"Bad has no components.*add at least a spout"),
    "empty subclass": (lambda: type("Sub", (WordCount,), {}), VALUE, r"WordCount are not inherited"),
    "no spout": (lambda: declare(a=Split.spec(inputs=[StreamRef("b")]), b=Split.spec(inputs=[StreamRef("a")])),
                 VALUE, r"no spout.*add one"),
    "bolt without inputs": (lambda: declare(lines=Lines.spec(), split=Split.spec()), VALUE,
                            r"'split' in Bad has no inputs.*inputs=\["),
    "bolt with an empty list of inputs": (reading(lambda lines: []), VALUE, r"'sink' in Bad has no inputs"),
    "spout without outputs": (lambda: declare(mute=Mute.spec()), VALUE, r"'mute' in Bad has no outputs.*Mute\.outputs"),
    "duplicate name": (lambda: declare(a=Lines.spec(name="x"), x=Lines.spec()), VALUE, r"a and x are both named 'x'"),
    "one spec twice": (twice, VALUE, r"one and two are the same spec; call Lines\.spec"),
    "a component named specs": (lambda: declare(specs=Lines.spec()), VALUE, r"rename"),
    "cycle": (cyclic, VALUE, r"Bad has a cycle, a -> b -> c -> a: .*remove one of its inputs"),
    "cycle of one": (lambda: declare(lines=Lines.spec(), a=Split.spec(inputs=[StreamRef("a")])), VALUE, r"a -> a:"),
    "unknown field": (reading(lambda lines: {lines: Grouping.fields("wrod")}), VALUE,
                      r"'sink' groups stream 'default' of 'lines' by the field 'wrod'.*its fields are line"),
    "empty fields": (reading(lambda lines: {lines: Grouping.fields()}), ValueError, r"at least one field"),
    "combine of an unknown field": (combining("word", {"wrod": "sum", "length": "sum"}), VALUE,
                                    r"'sink' combines stream 'default' of 'split' by an aggregate of the field 'wrod', .*"
                                    r"its fields are word, length"),
    "combine that leaves a field": (reading(lambda lines: {StreamRef("sink", "dead-letters"): Grouping.fields(
        "component", combine={"task": "sum"})}), VALUE, r"says nothing about 'stream', 'values', 'error'.*or group by it"),
    "combine by a merge that is none": (combining("word", "merge"), VALUE,
                                        r"combine=\"merge\", but Sink has no static method merge\(one, other\): define it, or"),
    "combine of a direct stream": (reading(lambda lines: {lines["chosen"]: Grouping.fields("line", combine={"n": "sum"})}),
                                   VALUE, r"'chosen' of 'lines' by fields\(line; sum n\), but that stream is direct"),
    "direct on a stream that is not": (reading(lambda lines: {lines: Grouping.DIRECT}), VALUE,
                                       r"'sink' reads stream 'default' of 'lines' by direct.*direct=True"),
    "direct stream by shuffle": (reading(lambda lines: {lines["chosen"]: Grouping.SHUFFLE}), VALUE,
                                 r"'sink' reads stream 'chosen' of 'lines' by shuffle.*use Grouping\.DIRECT"),
    "same stream twice": (reading(lambda lines: [lines, lines["default"]]), VALUE, r"'default' of 'lines' twice"),
    "par 0": (lambda: Lines.spec(par=0), VALUE, r"par of Lines is 0.*at least 1"),
    "par 0 somewhere": (lambda: Lines.spec(par={"beta": 0}), VALUE, r"Lines in environment 'beta' is 0"),
    "par of nothing": (lambda: Lines.spec(par={}), VALUE, r"empty dict"),
    "par bool": (lambda: Lines.spec(par=True), TYPE, r"not True \(bool\)"),
    "par str": (lambda: Lines.spec(name="in", par="2"), TYPE, r"par of 'in' must be an int.*'2' \(str\)"),
    "par float": (lambda: Lines.spec(par=1.5), TYPE, r"1\.5 \(float\)"),
    "par in a number": (lambda: Lines.spec(par={1: 2}), TYPE, r"the key 1"),
    "par of par": (lambda: Lines.spec(par={"a": {"b": 1}}), TYPE, r"for 'a' must be an int"),
    "inputs of a spout": (lambda: ComponentSpec(Lines, inputs=[]), TYPE, r"takes no inputs"),
    "inputs str": (reading(lambda lines: "lines"), TYPE, r"inputs of Sink must be a list.*'lines' \(str\)"),
    "inputs holding a str": (reading(lambda lines: ["lines"]), TYPE, r"holds 'lines' \(str\).*spec\[\"stream\"\]"),
    "inputs holding a class": (reading(lambda lines: [Lines]), TYPE, r"holds .*Lines"),
    "no grouping": (reading(lambda lines: {lines: "shuffle"}), TYPE, r"needs a Grouping, not 'shuffle' \(str\)"),
    "grouping None": (reading(lambda lines: {lines: None}), TYPE, r"needs a Grouping, not None"),
    "outputs str": (outputs("word"), TYPE, r"outputs of Odd must be a list.*'word' \(str\)"),
    "outputs holding int": (outputs(["word", 3]), TYPE, r"holds 3 \(int\)"),
    "two streams of one name": (outputs(["a", Stream(["b"])]), VALUE, r"stream 'default' twice"),
    "own dead letters": (outputs([Stream(["a"], "dead-letters")]), VALUE, r"rename yours"),
    "field with a dash": (outputs(["user-id"]), VALUE, r"outputs of Odd: field 'user-id'.*letters, digits"),
    "field that is a keyword": (outputs(["class"]), VALUE, r"'class'"),
    "field with an underscore": (outputs(["_x"]), VALUE, r"'_x'"),
    "field twice": (outputs(["a", "b", "a"]), VALUE, r"field 'a' occurs twice in stream 'default' \(a, b, a\)"),
    "stream fields str": (lambda: Stream("word"), TYPE, r"not 'word' \(str\)"),
    "stream fields int": (lambda: Stream([1]), TYPE, r"not 1 \(int\)"),  # type: ignore[list-item]
    "stream name": (lambda: Stream(["a"], name=3), TYPE, r"not 3 \(int\)"),  # type: ignore[arg-type]
    "stream direct": (lambda: Stream(["a"], direct=1), TYPE, r"not 1 \(int\)"),  # type: ignore[arg-type]
    "stream without a name": (lambda: Stream(["a"], name=""), VALUE, r"must not be empty"),
    "stream of the engine": (lambda: Stream(["a"], name="__tick"), VALUE, r"begin with '__'"),
    "config list": (lambda: Lines.spec(config=[1]), TYPE, r"config of Lines must be a dict, not \[1\] \(list\)"),
    "config key": (lambda: Lines.spec(config={1: 2}), TYPE, r"the key 1 \(int\)"),
    "config value": (lambda: Lines.spec(config={"a": 1, "when": object()}), VALUE, r"config 'when' of Lines cannot"),
    "config number": (lambda: Lines.spec(config={"big": 2**70}), VALUE, r"config 'big' of Lines"),
    "topology config": (lambda: declare(config=[], lines=Lines.spec()), TYPE, r"config of topology Bad must be a dict"),
    "topology config value": (lambda: declare(config={"f": several}, lines=Lines.spec()), VALUE, r"'f' of topology"),
    "name of a task": (lambda: Lines.spec(name="a[1]"), VALUE, r"'a\[1\]'.*brackets"),
    "name of the engine": (lambda: Lines.spec(name="__acker"), VALUE, r"'__acker'"),
    "no name": (lambda: Lines.spec(name=""), VALUE, r"must not be empty"),
    "name int": (lambda: Lines.spec(name=3), TYPE, r"not 3 \(int\)"),
    "instance": (lambda: declare(lines=Lines()), TYPE, r"Bad\.lines is an instance of Lines.*lines = Lines\.spec"),
    "class": (lambda: declare(lines=Lines.spec(), split=Split), TYPE, r"Bad\.split is the class Split.*Split\.spec"),
    "class defined in the body and forgotten": (nested, TYPE, r"Bad\.Forgotten is the class Forgotten"),
    "class that has a spec too": (lambda: declare(lines=Lines.spec(), other=Lines), TYPE, r"Bad\.other is the class"),
    "spec of Component": (Component.spec, TYPE, r"neither a Spout nor a Bolt"),
    "spec of anything": (lambda: ComponentSpec(int), TYPE, r"subclass of Spout or Bolt"),  # type: ignore[arg-type]
    "unknown stream": (lambda: Lines.spec()["nope"], KEY, r"Lines has no stream 'nope'; it has 'default', 'errors'"),
    "dead letters of a spout": (lambda: Lines.spec().dead_letters, KEY, r"no stream 'dead-letters'"),
    "no default stream": (lambda: Sink.spec(inputs=[Named.spec()]), KEY, r"no stream 'default'; it has 'only'"),
    "source not in the body": (lambda: declare(lines=Lines.spec(), sink=Sink.spec(inputs=[Lines.spec()])), KEY,
                               r"'sink' in Bad reads Lines, which is not declared.*The class body has lines, sink"),
    "inherited source": (inherited, KEY, r"'count2' in Sub reads 'split'.*not inherited.*declare it here"),
    "unknown source by name": (reading(lambda lines: [StreamRef("liens")]), KEY, r"reads 'liens'"),
    "unknown stream by name": (reading(lambda lines: [StreamRef("lines", "nope")]), KEY, r"no stream 'nope'"),
    "reference to a number": (lambda: StreamRef(3), TYPE, r"not 3 \(int\)"),  # type: ignore[arg-type]
    "spout without next_tuple": (component(ReliableSpout, outputs=["a"]), VALUE, r"Odd.*no next_tuple: define it"),
    "replayable spout without seek": (component(ReplayableSpout, next_tuple=several), VALUE, r"no seek"),
    "bolt without process": (component(Bolt), VALUE, r"none of process, process_rows, process_arrow: define one"),
    "bolt with two": (component(Split, process_rows=several), VALUE, r"process and process_rows.*keep one"),
    "bolt with two new": (component(Bolt, process_rows=several, process_arrow=several), VALUE, r"process_arrow.*keep"),
    "batching bolt without process_batch": (component(TicklessBatchingBolt), VALUE, r"no process_batch: define it"),
    "batching bolt by rows": (component(Batches, process_rows=several), VALUE, r"process and process_rows"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    make, error, message = REFUSED[case]
    with pytest.raises(error, match=message) as caught:
        make()
    assert not str(caught.value).startswith(("'\\", '"')), "a KeyError must show its message, not the repr of it"


def test_a_deep_topology_is_checked_in_no_time() -> None:
    body = {"lines": Lines.spec()}
    above = [body["lines"]]
    for level in range(40):  # 2 ** 40 ways from the top to the bottom
        above = [Split.spec(inputs=above), Split.spec(inputs=above)]
        body |= {f"left{level}": above[0], f"right{level}": above[1]}
    assert len(declare(**body).specs) == 81


def test_what_streamparse_calls_a_value_error_is_one_of_ours_too() -> None:
    assert issubclass(TopologyError, ValueError) and issubclass(TopologyError, MillraceError)
