"""Numbers of other people are held against each other, the model's FLOP and the peak, at the printed digits."""

import pytest

from analysis.importers import reported_rows
from analysis.importers._checks import flop_unit
from model.measure.flops import of_run
from model.record.config import CallConfig, DataConfig, InferenceConfig, ModelConfig, RunConfig, TrainConfig
from model.record.records import Override
from model.record.reported import Reported
from tests.analysis.fabricate import plan

GH200 = "NVIDIA GH200 120GB"
EIGHT = RunConfig(  # the llama of seeds/000 and 001: 51.54 GFLOP per token
    model=ModelConfig(),
    data=DataConfig(path="t.parquet"),
    train=TrainConfig(sequence_length=4096, batch_size=1),
)


def rows(config=EIGHT, hardware=GH200, gpus=1, overridden=None, **numbers):
    entry = Reported(numbers=numbers, hardware=hardware, gpus=gpus, source="a paper", read_from="table")
    run = plan("a" * 12, config=config, reported=[entry], overridden=overridden or {})
    (row,) = reported_rows(run)
    assert row["numbers"] == numbers, "as printed"
    return row


def flags(*args, **numbers):
    return rows(*args, **numbers)["flags"]


def test_the_rows_of_seed_001_agree_with_each_other_and_with_the_model_and_the_peak():
    assert (
        flags(tokens_per_second="7893.10", training_tokens_percentage="22.59", mfu="41.13", tflops="406.82")
        == []
    )
    assert (
        flags(tokens_per_second="8127.71", training_tokens_percentage="22.59", mfu="42.36", tflops="418.91")
        == []
    )


def test_rates_that_imply_another_flop_per_token_are_flagged():
    """As in seeds/000, where the compiled run's count has the input embedding in it."""
    (flag,) = flags(tokens_per_second="8000.0", tflops="438.06")
    assert flag == (
        "tflops / tokens_per_second is 54.76 GFLOP per token, and the model of the study has 51.54 "
        "(6 N + 12 L H Q T, N without the input embedding): rule tflops = tokens_per_second x FLOP per token"
    )


def test_digits_that_were_not_printed_accuse_nobody():
    assert flags(tokens_per_second="8000", tflops="412.33") == []
    assert flags(tokens_per_second="8e3", tflops="420") == [], "8e3 is anything from 7500 to 8500"
    assert len(flags(tokens_per_second="8000", tflops="420")) == 1


def test_an_mfu_over_another_peak_is_flagged_with_or_without_tflops():
    (flag,) = flags(mfu="50.00", tflops="378.00")
    assert (
        "mfu is that of a peak of 756.0 TFLOP/s, and that of NVIDIA GH200 120GB is 989.4 in bfloat16" in flag
    )
    assert flag.endswith("rule mfu = tflops / peak")
    (flag,) = flags(mfu="50.00", tokens_per_second="7334.2")
    assert flag.endswith("rule mfu = tflops / peak")
    assert flags(mfu="38.20", tokens_per_second="7334.2") == []


def test_rates_above_the_peak_and_shares_above_everything_are_flagged():
    assert [flag.rpartition("rule ")[2] for flag in flags(tflops="1100.5")] == ["tflops <= peak"]
    (flag,) = flags(tokens_per_second="25000")
    assert flag.startswith(
        "1,288.5 TFLOP/s or more is above the peak of NVIDIA GH200 120GB, 989.4 TFLOP/s in bfloat16"
    )
    assert flags(tokens_per_second="25000", gpus=2) == [], "of two GPUs together it can be"
    assert flags(mfu="101", hardware="a GPU") == ["mfu is 101 %, and at most 100 % can be: rule mfu <= 100"]


def test_hardware_whose_peak_nobody_knows_is_held_to_none_and_that_is_said():
    row = rows(tflops="1100.5", hardware="L4 (32GB)")
    assert (row["flags"], row["unchecked"]) == (
        [],
        ["not held to a peak: none is known of 'L4 (32GB)' in bfloat16"],
    )
    assert len(rows(tokens_per_second="8000", hardware="one Hopper GPU")["unchecked"]) == 1
    assert rows(mfu="50.00", final_loss="6.7", hardware="L4 (32GB)")["unchecked"] == [], "no rate"
    assert rows(tflops="378.00", mfu="38.21")["unchecked"] == []


def test_a_card_is_held_to_its_peak_by_its_usual_name():
    (flag,) = flags(tflops="1100.5", hardware="H100 SXM")
    assert flag.startswith("1100.5 TFLOP/s is above the peak of H100 SXM, 989.4 TFLOP/s in bfloat16")


def test_a_name_of_several_cards_is_held_to_the_fastest_of_them_and_that_is_said():
    """989.4 TFLOP/s of the SXM, 835 of the NVL, 756 of the PCIe."""
    row = rows(tflops="995.5", hardware="NVIDIA H100")
    (flag,) = row["flags"]
    assert flag.startswith("995.5 TFLOP/s is above the peak of H100 SXM, 989.4 TFLOP/s in bfloat16")
    assert row["unchecked"] == [
        "'NVIDIA H100' can be H100 SXM or H100 PCIe or H100 NVL: held to the peak of the fastest, H100 SXM"
    ]
    assert rows(tflops="900.5", hardware="H100")["flags"] == [], "an SXM can"
    assert rows(final_loss="6.7", hardware="H100")["unchecked"] == [], "no rate"


def test_an_mfu_may_be_over_the_peak_of_any_card_that_a_name_can_mean():
    assert flags(mfu="50.00", tflops="378.00", hardware="H100") == [], "of a PCIe"
    assert flags(mfu="50.00", tflops="494.70", hardware="H100") == [], "of an SXM"
    (flag,) = flags(mfu="50.00", tflops="200.00", hardware="H100")
    assert flag.startswith(
        "mfu is that of a peak of 400.0 TFLOP/s, and that of H100 SXM is 989.4, that of H100 PCIe is 756.0, "
        "that of H100 NVL is 835.0 in bfloat16 ("
    )


@pytest.mark.parametrize("hardware", ["H", "NVIDIA", "AMD Instinct", "Tesla", "B100"])
def test_a_name_that_begins_no_several_cards_is_held_to_none(hardware):
    assert "none is known of" in rows(tflops="9000", hardware=hardware)["unchecked"][0]


def contradicted(*entries):
    """Flags of entries about the same runs: of each, what differs from a default, and its numbers."""
    default = {"hardware": GH200, "source": "table 1", "read_from": "table"}
    reported = [Reported(**default | entry) for entry in entries]
    return [row["flags"] for row in reported_rows(plan("a" * 12, config=EIGHT, reported=reported))]


def test_entries_of_one_source_that_disagree_are_both_flagged():
    numbers, others = {"tflops": "500.2"}, {"tflops": "406.82", "final_loss": "6.70"}
    (flag,), (other_flag,) = contradicted({"numbers": numbers}, {"numbers": others})
    assert flag == (
        "tflops is 500.2 here, and 406.82 in another entry of the same runs, hardware and source: "
        "rule one number of one measurement"
    )
    assert other_flag.startswith("tflops is 406.82 here, and 500.2 in another entry")


@pytest.mark.parametrize(
    "other",
    [
        {"numbers": {"tflops": "500"}},  # anything from 499.5 to 500.5
        {"numbers": {"tflops": "500.20"}},
        {"numbers": {"mfu": "41.1"}},
        {"numbers": {"tflops": "406.82"}, "source": "table 2"},
        {"numbers": {"tflops": "406.82"}, "hardware": "H200"},
        {"numbers": {"tflops": "406.82"}, "gpus": 8},
    ],
)
def test_what_another_source_or_machine_or_fewer_digits_say_contradicts_nothing(other):
    assert contradicted({"numbers": {"tflops": "500.2"}}, other) == [[], []]


def test_entries_disagree_also_where_a_scale_cannot_be_undone():
    reported = [
        Reported(numbers={"tflops": text}, hardware=GH200, source="t", read_from="table")
        for text in ("406.82", "500.2")
    ]
    overridden = {"model.dim": Override(own="wide", by="scale laptop")}
    run = plan("a" * 12, config=EIGHT, reported=reported, overridden=overridden)
    assert [len(row["flags"]) for row in reported_rows(run)] == [1, 1]


def test_rates_in_float32_are_held_to_its_peak():
    config = EIGHT.model_copy(update={"train": EIGHT.train.model_copy(update={"dtype": "float32"})})
    assert flags(config, tflops="60.5") == []
    (flag,) = flags(config, tflops="70.5")
    assert "67.0 TFLOP/s in float32 (NVIDIA GH200 datasheet, dense, float32 without TF32)" in flag


def test_numbers_are_about_the_study_as_it_is_written_and_not_about_a_scale_that_changes_its_model():
    small = EIGHT.model_copy(
        update={
            "device": "cpu",
            "model": ModelConfig(dim=192, layers=3, heads=6, kv_heads=2, ffn_dim=512, vocab_size=512),
        }
    )
    model = {"dim": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn_dim": 14336, "vocab_size": None}
    overridden = {f"model.{name}": Override(own=value, by="scale laptop") for name, value in model.items()}
    numbers = {"tokens_per_second": "7893.10", "tflops": "406.82"}
    assert flags(small, overridden=overridden, **numbers) == [], "vocab_size at its default, which is 131,072"
    assert len(flags(small, **numbers)) == 1


def test_the_count_of_a_small_model_is_in_a_unit_that_shows_it():
    small = EIGHT.model_copy(
        update={"model": ModelConfig(dim=16, layers=1, heads=2, kv_heads=2, ffn_dim=32, vocab_size=64)}
    )
    (flag,) = flags(small, tokens_per_second="1000", tflops="1")
    assert flag.startswith(
        "tflops / tokens_per_second is 1000000.00 kFLOP per token, and the model of the study has "
    )
    assert float(flag.partition("study has ")[2].partition(" ")[0]) == pytest.approx(
        of_run(small) / 1e3, abs=0.01
    )


@pytest.mark.parametrize(
    ("counts", "unit"),
    [
        ((51.5e9, 54.7e9), "GFLOP"),
        ((51.5e9, 3e6), "MFLOP"),
        ((2e3,), "kFLOP"),
        ((3.0,), "FLOP"),
        ((0.0,), "GFLOP"),
    ],
)
def test_no_count_is_rounded_to_nothing(counts, unit):
    assert flop_unit(*counts)[0] == unit


def test_a_prompt_has_a_count_of_its_own():
    config = RunConfig(task="inference", data=DataConfig(path="t.parquet"), inference=InferenceConfig())
    assert flags(config, prefill_milliseconds="150.28", tokens_per_second="27256") == []
    (flag,) = flags(config, tokens_per_second="27256", tflops="1404.8")[:1]
    assert "GFLOP per token, and the model of the study has 1" in flag


def called(dtype="float16", hardware="Tesla T4", **numbers):
    """Flags of a call of causal attention with 240.5 GFLOP in both passes, as seeds/002 has it."""
    call = CallConfig(shape="B16 T2048 H8 D64", dtype=dtype, backends="math")
    entry = Reported(numbers=numbers, hardware=hardware, source="a paper", read_from="plot", backend="math")
    (row,) = reported_rows(
        plan("a" * 12, config=RunConfig(task="attention", call=call), data_file=None, tokenizer=None,
             data_fingerprint=None, reported=[entry])
    )  # fmt: skip
    return row["flags"]


def test_times_and_rates_of_attention_alone_are_held_against_its_flop():
    assert called(both_milliseconds="90", both_tflops="2.7") == []
    (flag,) = called(both_milliseconds="90", both_tflops="9")
    assert flag == (
        "both_tflops x both_milliseconds is 810.00 GFLOP, and a forward and its backward at the shape of the "
        "study has 240.52: rule tflops x milliseconds = FLOP"
    )


def test_calls_above_the_peak_are_flagged_by_their_time_or_their_rate():
    assert [flag.rpartition("rule ")[2] for flag in called(forward_milliseconds="1.00")] == ["tflops <= peak"]
    (flag,) = called("float32", forward_tflops="9")
    assert flag.startswith("8.5 TFLOP/s or more in a forward is above the peak of Tesla T4, 8.1 TFLOP/s")
    assert called("float32", "one T4 (15GB)", forward_tflops="9") == []


def test_a_whole_call_is_its_forward_and_its_backward():
    parts = {"forward_milliseconds": "8.4", "backward_milliseconds": "21.6"}
    assert called(**parts, both_milliseconds="30") == []
    (flag,) = called(**parts, both_milliseconds="26")
    assert flag == "8.4 ms and 21.6 ms are not 26 ms together: rule both = forward + backward"


def test_rates_of_8_bits_are_held_to_the_peak_of_8_bits():
    assert called("float8_e4m3fn", "NVIDIA H200", forward_tflops="1055") == []
    (flag,) = called("float8_e4m3fn", "NVIDIA H200", forward_tflops="2010")
    assert "1,978.9 TFLOP/s in float8" in flag


def test_entries_of_two_backends_of_a_call_contradict_nothing_and_of_one_do():
    call = CallConfig(shape="B16 T2048 H8 D64", dtype="float16", backends="math tiled")
    config = RunConfig(task="attention", call=call)

    def flagged(*backends):
        reported = [
            Reported(
                numbers={"both_tflops": text}, hardware="H200", source="t", read_from="table", backend=name
            )
            for name, text in zip(backends, ("100.5", "500.2"), strict=True)
        ]
        run = plan("a" * 12, config=config, data_file=None, tokenizer=None, data_fingerprint=None,
                   reported=reported)  # fmt: skip
        return [row["flags"] for row in reported_rows(run)]

    assert flagged("math", "tiled") == [[], []]
    assert ["both_tflops is 100.5 here, and 500.2" in flag for (flag,) in flagged("math", "math")] == [
        True,
        False,
    ]


def test_bytes_without_their_unit_are_flagged():
    """Output and gradients of B16 T2048 H8 D64 in float16: 4 tensors of 33,554,432 bytes."""
    assert called(call_memory_bytes="4.5e9", both_dram_bytes="40.3e9") == []
    assert called(call_memory_bytes="32.77") == [
        "call_memory_bytes is 32.77, a part of a byte, as where a unit is missing (40.3 GB are 40.3e9): "
        "rule bytes are whole numbers"
    ]
    assert called(both_dram_bytes="40") == [
        "both_dram_bytes is 40, below the 268,435,456 bytes that Q, K, V, the output and the gradients of all "
        "four take, as where a unit is missing (40.3 GB are 40.3e9): rule bytes >= those of the tensors "
        "themselves"
    ]
    (flag,) = called(call_memory_bytes="134217000")
    assert "the 134,217,728 bytes that the output and the gradients of Q, K and V take" in flag
    assert called(call_memory_bytes="134.2e6") == [], "134,250,000 is printed so, too"
    assert called("float8_e4m3fn", "NVIDIA H200", call_memory_bytes="40") == [], "without gradients"


def test_the_memory_of_a_model_holds_its_parameters():
    assert flags(peak_memory_bytes="65.3e9") == []
    assert flags(peak_memory_bytes="65.3") == [
        "peak_memory_bytes is 65.3, a part of a byte, as where a unit is missing (40.3 GB are 40.3e9): "
        "rule bytes are whole numbers"
    ]
    (flag,) = flags(peak_memory_bytes="65")
    assert "below the 8,053,329,920 bytes that the parameters, a byte each, take" in flag
    assert flags(peak_memory_bytes="2e9", gpus=8) == [], "each of eight has a part"
