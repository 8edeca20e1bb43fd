"""Import circles: no module imports itself through others, in functions neither. Types alone may."""

from graphlib import TopologicalSorter

import grimp

PACKAGES = (
    *("benchmarks", "trainer", "trainyard", "trainyard_agent", "trainyard_cli", "trainyard_trainer"),
    *("trainyard_programs", "trainyard_protocol", "trainyard_server", "trainyard_storage"),
)


def test_no_module_imports_itself_through_others() -> None:
    graph = grimp.build_graph(*PACKAGES, exclude_type_checking_imports=True, cache_dir=None)
    TopologicalSorter(
        {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    ).prepare()  # raises CycleError, with the circle
