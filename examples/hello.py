from millrace import Bolt, CounterState, Grouping, Topology
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.sinks import JsonLinesSink


class Words(GeneratorSpout):
    outputs = ["word"]
    text = ["to", "be", "or", "not", "to", "be"]

    def generate(self, position):
        return [self.text[position]]


class Count(Bolt):
    outputs = ["word", "count"]
    counts = CounterState()  # kept by key; survives the loss of its worker

    def process(self, tup):
        self.emit([tup.values.word, self.counts.add(tup.values.word)])


class Hello(Topology):
    words = Words.spec(config={"limit": len(Words.text)})
    count = Count.spec(inputs={words: Grouping.fields("word")}, par=2)
    files = JsonLinesSink.spec(inputs=[count], config={"path": "/tmp/hello"})
