"""Other engines that the benchmarks compare Millrace with, on the same input and machine.

`job` makes the input, `run` starts one engine and reads its result, `environment` makes the virtual environment of the
engines. The other modules are one engine each: scripts that import nothing of Millrace but their siblings here, so that they
run where Millrace's own dependencies are missing or have other versions.
"""
