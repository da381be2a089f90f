"""Ray: map_batches with the engine in each worker's process, on three nodes of one machine."""
import numpy as np
import pytest
from reference import LLAMA, draw, rotated

import ropeserve as rs

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

BLOCKS, ROWS, TOKENS = 12, 8, 5


class Rotate:
    """One engine for each worker."""

    def __init__(self):
        self.rope = rs.local(threads=1)

    def __call__(self, batch):
        rotated = self.rope.rotate(batch["k"], config=LLAMA, starts=batch["start"])
        node = ray.get_runtime_context().get_node_id()
        return {"row": batch["row"], "k": rotated, "node": np.array([node] * len(rotated))}


@pytest.fixture
def three_nodes():
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False)
    ray.data.DataContext.get_current().wait_for_min_actors_s = 60
    yield
    ray.shutdown()
    cluster.shutdown()


def test_batches_are_rotated_on_every_node(three_nodes):
    k = draw(BLOCKS * ROWS, TOKENS, 2, 64)
    starts = np.arange(BLOCKS * ROWS) * 1000
    rows = [{"row": i, "k": k[i], "start": starts[i]} for i in range(len(k))]
    data = ray.data.from_items(rows, override_num_blocks=BLOCKS)
    done = data.map_batches(Rotate, batch_size=ROWS, compute=ray.data.ActorPoolStrategy(size=3),
                            num_cpus=1).take_all()
    assert len({each["node"] for each in done}) == 3
    assert sorted(each["row"] for each in done) == list(range(len(k)))
    for each in done:
        want = rotated(k[each["row"]], starts[each["row"]] + np.arange(TOKENS))
        np.testing.assert_allclose(each["k"], want, atol=1e-5)
