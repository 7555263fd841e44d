from millrace import Bolt, CounterState, Grouping, Topology
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.sinks import JsonLinesSink

TEXT = ["to", "be", "or", "not", "to", "be"]


class Words(GeneratorSpout):
    outputs = ["word"]

    def generate(self, position):
        return [TEXT[position]]


class Count(Bolt):
    outputs = ["word", "count"]
    counts = CounterState()  # kept by key; survives the loss of its worker

    def process(self, tup):
        self.counts[tup.values.word] += 1
        self.emit([tup.values.word, self.counts[tup.values.word]])


class Hello(Topology):
    words = Words.spec(config={"limit": len(TEXT)})
    count = Count.spec(inputs={words: Grouping.fields("word")}, par=2)
    files = JsonLinesSink.spec(inputs=[count], config={"path": "/tmp/hello"})
