"""The flow of chunks between tasks: channels with credits, routing by grouping, acks."""
