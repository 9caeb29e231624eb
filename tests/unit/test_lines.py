from __future__ import annotations

from mpisgd import lines


def test_epoch_line_is_cntks():
    line = lines.epoch_line(1, loss=1.675002, error=0.6249, samples=50176, seconds=112.019)
    assert line == (
        "Finished Epoch [1]: [Training] loss = 1.675002 * 50176, metric = 62.5% * 50176 "
        "112.019s (447.9 samples per second)"
    )


def test_epoch_line_of_nothing_does_not_divide_by_zero():
    line = lines.epoch_line(1, loss=float("nan"), error=0.0, samples=0, seconds=0.0)
    assert "loss = nan * 0" in line


def test_evaluation_line_is_cntks():
    line = lines.evaluation_line(1, minibatches=79, error=0.0823, samples=10000)
    assert line == "Finished Evaluation [1]: Minibatch[1-79]: metric = 8.23% * 10000"


def test_quantization_line():
    line = lines.quantization_line(1, sample=50048, warmup=50000)
    assert line == "Quantization: 1 bit from sample 50048 (warm-up 50000)"
    assert "8 bits from sample 0" in lines.quantization_line(8, sample=0, warmup=0)


def test_other_lines():
    assert lines.parallel_line(4, sample=128, warmup=100) == (
        "Data parallelism: 4 ranks from sample 128 (warm-up 100)"
    )
    assert lines.more_skipped_line(3, 1) == "Skipped 1 more step in epoch 3"
    assert "at sample 640" in lines.skipped_line(640)
