"""The lines of a run, as CNTK prints them: pure functions, whose formats log parsers rely on."""

from __future__ import annotations


def epoch_line(epoch: int, *, loss: float, error: float, samples: int, seconds: float) -> str:
    """CNTK's line at the end of an epoch; `loss` a mean per sample, `error` a fraction of 1."""
    return (
        f"Finished Epoch [{epoch}]: [Training] loss = {loss:.6f} * {samples}, "
        f"metric = {100 * error:.1f}% * {samples} {seconds:.3f}s "
        f"({samples / seconds if seconds > 0 else 0.0:5.1f} samples per second)"
    )


def evaluation_line(number: int, *, minibatches: int, error: float, samples: int) -> str:
    """CNTK's line after an evaluation; `error` a fraction of 1."""
    return (
        f"Finished Evaluation [{number}]: Minibatch[1-{minibatches}]: "
        f"metric = {100 * error:.2f}% * {samples}"
    )


def quantization_line(bits: int, *, sample: int, warmup: int) -> str:
    """Said when the first quantized step starts."""
    return f"Quantization: {bits} bit{'s' * (bits != 1)} from sample {sample} (warm-up {warmup})"


def parallel_line(ranks: int, *, sample: int, warmup: int) -> str:
    """Said when a replicated warm start ends and the ranks share the minibatch."""
    return f"Data parallelism: {ranks} ranks from sample {sample} (warm-up {warmup})"


def skipped_line(sample: int) -> str:
    """Said when a step was skipped."""
    return f"Skipped a step at sample {sample}: a gradient was not finite on some rank"


def more_skipped_line(epoch: int, more: int) -> str:
    """Said at the end of an epoch in which more steps were skipped than were named."""
    return f"Skipped {more} more step{'s' * (more != 1)} in epoch {epoch}"
