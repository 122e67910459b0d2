"""A second generator of change histories, for `make fuzz` and its short form.

It shares no code with the product, its simulator or the other generators of the tests: a tiny database engine of its
own (`engine`), and files written by fastavro and json alone (`files`). What is right is what the engine holds.
"""
