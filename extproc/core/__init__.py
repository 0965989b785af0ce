"""The sans-IO core: values in, values out; time, chance and state are arguments.

From a body to a decision and back: `features` makes the request that is decided upon, `router` holds the state and its
few transitions, `snapshot` and `columns` are what a decision looks at, `decide` makes it. What they stand on, lowest
first: `values`; `fleet`, `flight`, `health`, `prefixes`, `speeds`, `tokens`, which each know one thing; `pricing` and
`eligibility`, which judge an instance; `pairs`, which judges two; `reasons`, which tells why.
"""
