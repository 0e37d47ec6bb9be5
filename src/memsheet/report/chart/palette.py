"""One colour for each component, the same in every picture.

From Paul Tol, Colour Schemes, SRON/EPS/TN/09-002 issue 3.2 (https://sronpersonalpages.nl/~pault): "muted" for
what a step mostly holds, "light", "vibrant" and greys for the rest, all made to be told apart by colour-blind
eyes. Components that lie next to each other in a step's stack differ in lightness too, so that a grey print
still shows where one ends.
"""

from __future__ import annotations

from memsheet.sheet import Component

COLOURS: dict[Component, str] = {
    Component.PARAMETERS: "#332288",  # indigo
    Component.MASTER_WEIGHTS: "#88CCEE",  # cyan
    Component.GRADIENTS: "#117733",  # green
    Component.OPTIMIZER_STATES: "#44AA99",  # teal
    Component.BUFFERS: "#999933",  # olive
    Component.INPUTS: "#77AADD",  # light blue
    Component.SAVED_ACTIVATIONS: "#DDCC77",  # sand
    Component.TEMPORARIES: "#CC6677",  # rose
    Component.AUTOGRAD_DETAIL: "#882255",  # wine
    Component.UNSHARDED_PARAMETERS: "#AA4499",  # purple
    Component.COMMUNICATION: "#EE7733",  # orange
    Component.KV_CACHE: "#EEDD88",  # light yellow
    Component.CUDA_GRAPHS: "#FFAABB",  # pink
    Component.WORKSPACES: "#BBCC33",  # pear
    Component.ALLOCATOR_SLACK: "#DDDDDD",
    Component.CONTEXT: "#AAAAAA",
    Component.UNEXPLAINED: "#000000",
}
INK, QUIET, FAINT, ALARM = "#222222", "#666666", "#DDDDDD", "#BB3311"
