from millrace import Bolt, Grouping, Topology
from millrace.workloads.wordcount import Lines


class Split(Bolt):
    outputs = ["word"]

    def process(self, tup):
        for word in tup.values.line.split():
            self.emit([word])


class Count(Bolt):
    outputs = ["word", "count"]

    def process(self, tup):
        word = tup.values.word
        self.state[word] = self.state.get(word, 0) + 1  # survives the loss of its worker
        self.emit([word, self.state[word]])


class WordCount(Topology):
    lines = Lines.spec(par=2, config={"rate": 1000})
    split = Split.spec(inputs=[lines], par=2)
    count = Count.spec(inputs={split: Grouping.fields("word")}, par=2)
