"""The other engines that `./millrace bench wordcount` compares Millrace with, on the same input and machine.

`job` makes the input, `run` starts one engine and reads its answer, `environment` makes the virtual environment
the engines live in. The other modules are one engine each: scripts that import nothing of Millrace but their
siblings here, so that they run where Millrace's own dependencies are missing or have other versions.
"""
