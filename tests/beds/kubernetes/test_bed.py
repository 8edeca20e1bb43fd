"""The bed has roles. Tests of Kubernetes show that it is a cluster, and how it breaks."""

from collections.abc import Iterator

import pytest

from beds.kubernetes.bed import Bed
from beds.kubernetes.kube_api import KubeApi, Refused

pytestmark = pytest.mark.long


@pytest.fixture
def api(kubernetes: Bed) -> Iterator[KubeApi]:
    with KubeApi(kubernetes.admin) as api:
        yield api


def test_role_allows_what_its_rules_list_and_in_its_namespace(kubernetes: Bed, api: KubeApi) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    with KubeApi(kubernetes.with_role("reader", rules)) as reader:
        assert reader.get("/api/v1/namespaces/reader/pods")["items"] == []
        for path in ("namespaces/reader/secrets", "namespaces/default/pods", "nodes"):
            with pytest.raises(Refused) as refused:
                reader.get(f"/api/v1/{path}")
            assert refused.value.code == 403
    api.delete("/api/v1/namespaces/reader")
