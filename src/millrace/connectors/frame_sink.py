"""The former path of dataframe_sink.py, which programs may still import."""

from millrace.connectors.dataframe_sink import DataFrameSink as DataFrameSink
