import pytest

from trainyard_agent.engines import capacity
from trainyard_agent.engines.capacity import BadCapacity, parse_cpus, parse_gpus, within_quota
from trainyard_agent.host.accelerators import gpu_type, parse_tpus


def test_cpus_that_may_be_used_are_taken_and_others_refused_with_a_reason() -> None:
    table = {"0": (0,), "0,2": (0, 2), "1-3": (1, 2, 3), "3, 0 - 1": (0, 1, 3), "1,1-2": (1, 2)}
    assert {text: parse_cpus(text, set(range(4))) for text in table} == table
    for text in ("", "a", "0,", "-1", "3-1", "0-", "4", "0-9", "1.5"):
        with pytest.raises(BadCapacity, match="--cpus"):
            parse_cpus(text, set(range(4)))


def test_quota_leaves_as_many_cpus_as_it_pays_for() -> None:
    table = {None: (1, 3, 5), 2.9: (1, 3), 0.5: (1,), 64.0: (1, 3, 5)}
    assert {quota: within_quota({5, 1, 3}, quota) for quota in table} == table


def test_gpu_type_is_the_name_that_the_service_has_for_the_model() -> None:
    table = {
        "Tesla T4": "NVIDIA_TESLA_T4",
        "Tesla V100-SXM2-16GB": "NVIDIA_TESLA_V100",
        "Tesla P100-PCIE-16GB": "NVIDIA_TESLA_P100",
        "Tesla K80": "NVIDIA_TESLA_K80",
        "NVIDIA A100-SXM4-40GB": "NVIDIA_TESLA_A100",
        "NVIDIA A100-SXM4-80GB": "NVIDIA_A100_80GB",
        "NVIDIA A100 80GB PCIe": "NVIDIA_A100_80GB",
        "NVIDIA H100 80GB HBM3": "NVIDIA_H100_80GB",
        "NVIDIA L4": "NVIDIA_L4",
        "NVIDIA GeForce RTX 4090": "NVIDIA_GEFORCE_RTX_4090",
        "Quadro P4000": "NVIDIA_QUADRO_P4000",
    }
    assert {name: gpu_type(name) for name in table} == table


def test_tpu_is_as_many_devices_as_it_has_cores() -> None:
    assert [(one.id, one.type) for one in parse_tpus("2xtpu_v3")] == [("tpu-0", "TPU_V3"), ("tpu-1", "TPU_V3")]
    for wrong in ("8", "0xTPU_V3", "8xNVIDIA_TESLA_T4", "8 TPU_V3"):
        with pytest.raises(ValueError, match="must look like 8xTPU_V3"):
            parse_tpus(wrong)


def test_gpus_are_read_from_the_drivers_answer() -> None:
    first, second = parse_gpus("GPU-8f1c, Tesla T4, 15360\nGPU-77aa, NVIDIA Thing, [N/A]\n\nno devices\n")
    assert (first.id, first.type, first.memory_bytes) == ("GPU-8f1c", "NVIDIA_TESLA_T4", 15360 << 20)
    assert (second.id, second.type, second.memory_bytes) == ("GPU-77aa", "NVIDIA_THING", 0)


def test_detect_finds_this_machine_or_takes_what_the_command_line_says() -> None:
    whole = capacity.detect()
    assert whole.memory_bytes > 1 << 26
    given = capacity.detect(str(whole.cpus[0]), 1.5)
    assert (given.cpus, given.memory_bytes) == (whole.cpus[:1], 1_500_000_000)
