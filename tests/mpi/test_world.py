"""World on any number of ranks."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import mpisgd
from mpisgd import waiting
from mpisgd.world import RankFailure, SetupError, World

pytestmark = pytest.mark.mpi


def test_who_is_who(world: World, comm: Any) -> None:
    assert (world.rank, world.size) == (comm.rank, comm.size)
    assert world.is_main == (comm.rank == 0)
    # The tests run on one machine.
    assert (world.node, world.nodes) == (0, 1)
    assert (world.local_rank, world.local_size) == (comm.rank, comm.size)
    assert world.device == torch.device("cpu")
    assert world.cores >= 1
    assert torch.get_num_threads() == world.threads >= 1
    assert world.mpi_version.startswith(("MPICH ", "Open MPI "))
    assert len(set(comm.allgather(tuple(world.warnings)))) == 1


def test_too_many_ranks_are_warned_of(world: World) -> None:
    union = len(set().union(*world.comm.allgather(waiting.os.sched_getaffinity(0))))
    said = any("ranks on" in line for line in world.warnings)
    assert said == (world.size > union)


def test_private_communicator(comm: Any) -> None:
    with World(comm, device="cpu") as world:
        assert world.comm != comm
        # A message of the caller's is not seen by the World, nor the other way round.
        request = comm.Isend(np.arange(3.0), dest=(comm.rank + 1) % comm.size)
        assert not world.comm.Iprobe()
        received = np.empty(3)
        comm.Recv(received)
        request.Wait()
    assert received.tolist() == [0, 1, 2]


def test_half_of_the_ranks_are_a_world(comm: Any) -> None:
    half = comm.Split(comm.rank % 2, key=-comm.rank)
    with World(half, device="cpu") as world:
        assert (world.rank, world.size) == (half.rank, half.size)
        total = world.sum(np.array([comm.rank], np.int64))
    assert total.tolist() == [sum(range(comm.rank % 2, comm.size, 2))]
    half.Free()


def test_threads_as_asked(comm: Any) -> None:
    with World(comm, device="cpu", threads=3) as world:
        assert world.threads == torch.get_num_threads() == 3
    with World(comm, device="cpu", threads=1):
        assert torch.get_num_threads() == 1


def test_threads_of_the_environment(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with World(comm, device="cpu") as world:
        assert world.threads == 2


def test_close_twice_and_unused_duplicates(comm: Any) -> None:
    world = World(comm, device="cpu")
    world.dup()
    world.close()
    world.close()


def test_many_worlds_come_and_go(comm: Any) -> None:
    for _ in range(40):
        World(comm, device="cpu", threads=1).close()


@pytest.mark.parametrize("device", ["gpu", "cuda:99"])
def test_no_such_device(comm: Any, device: str) -> None:
    with pytest.raises(SetupError, match="device: "):
        World(comm, device=device)


def test_one_bad_setting_fails_everywhere(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if comm.rank == comm.size - 1:
        monkeypatch.setenv("MPISGD_STALL_WARN", "soon")
    with pytest.raises(SetupError, match="MPISGD_STALL_WARN: 'soon'") as caught:
        World(comm, device="cpu")
    assert len(set(comm.allgather(str(caught.value)))) == 1
    named = f"(rank {comm.size - 1})" in str(caught.value)
    assert named == (comm.size > 1)


def test_agree(world: World) -> None:
    world.agree(True, "all is well")
    last = world.size - 1
    with pytest.raises(RankFailure, match=rf"disk {last} is full \(failed on rank {last}\)"):
        world.agree(world.rank != last, f"disk {world.rank} is full")
    with pytest.raises(RankFailure, match="disk 0 is full"):
        world.agree(False, f"disk {world.rank} is full")


def test_collect_errors(world: World) -> None:
    world.collect_errors(None)
    error = FileNotFoundError("no data") if world.rank == 0 else None
    with pytest.raises(SetupError, match="no data") as caught:
        world.collect_errors(error)
    assert str(caught.value) == ("no data (rank 0)" if world.size > 1 else "no data")
    assert caught.value.__cause__ is error
    with pytest.raises(SetupError, match=r"^no data$"):
        world.collect_errors(OSError("no data"))
    with pytest.raises(SetupError, match=r"^KeyError$"):
        world.collect_errors(KeyError())


def test_check_same(world: World) -> None:
    world.check_same("options", [])
    world.check_same("options", [("lr", "0.1"), ("note", "any \0 text\n")])
    odd = world.size - 1
    own = [("lr", "0.1"), ("batch", "64" if world.rank == odd else "128")]
    if world.size == 1:
        world.check_same("options", own)
        return
    with pytest.raises(ValueError, match=f"options: batch is '128' on .*'64' on rank {odd}") as e:
        world.check_same("options", own)
    assert len(set(world.comm.allgather(str(e.value)))) == 1


def test_versions_are_compared(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if comm.size == 1:
        World(comm, device="cpu").close()
        return
    if comm.rank == 1:
        monkeypatch.setattr(torch, "__version__", "0.4.1")
    with pytest.raises(ValueError, match=r"versions: torch is .* and '0\.4\.1' on rank 1"):
        World(comm, device="cpu")


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5)])
def test_sum(world: World, dtype: Any, shape: tuple[int, ...]) -> None:
    own = np.full(shape, world.rank + 1, dtype)
    before = world.control_bytes
    total = world.sum(own)
    assert total.dtype == dtype
    assert total.shape == shape
    np.testing.assert_array_equal(total, np.full(shape, world.size * (world.size + 1) // 2, dtype))
    np.testing.assert_array_equal(own, np.full(shape, world.rank + 1, dtype))
    assert world.control_bytes - before == 2 * (world.size - 1) * own.nbytes // world.size


def test_sum_refuses_types_that_lose(world: World) -> None:
    with pytest.raises(TypeError, match="sum: got float32"):
        world.sum(np.ones(2, np.float32))


def tensors_of(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    plain = torch.randn(2, 3, 4, 5, generator=generator)
    return [
        plain,
        plain.clone().to(memory_format=torch.channels_last),
        plain.double(),
        plain.half(),
        plain.bfloat16(),
        torch.tensor(rank + 7),  # 0-d, as num_batches_tracked
        torch.tensor(rank == 0),
        torch.empty(3, 0),
        torch.arange(rank, rank + 3, dtype=torch.uint8),  # odd length: what follows is unaligned
        torch.complex(plain[0], plain[1]).conj(),
        plain.clone()[:, 1].transpose(0, 2),  # a view with gaps
        torch.nn.Parameter(torch.full((2,), float(rank))),
    ]


def test_broadcast(world: World) -> None:
    tensors = tensors_of(world.rank)
    strides = [tensor.stride() for tensor in tensors]
    world.broadcast(iter(tensors))
    for tensor, expected in zip(tensors, tensors_of(0), strict=True):
        assert torch.equal(tensor, expected)
    assert [tensor.stride() for tensor in tensors] == strides
    assert tensors[-1].requires_grad


def test_broadcast_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpisgd.control._BROADCAST_BYTES", 100)
    tensors = tensors_of(world.rank)
    world.broadcast(tensors)
    for tensor, expected in zip(tensors, tensors_of(0), strict=True):
        assert torch.equal(tensor, expected)


def test_broadcast_refuses(world: World) -> None:
    with pytest.raises(ValueError, match=r"broadcast: tensor 1: .*sparse"):
        world.broadcast([torch.ones(1), torch.eye(2).to_sparse()])
    if world.size > 1:
        with pytest.raises(ValueError, match="broadcast: tensor 0 is 'float32"):
            world.broadcast([torch.ones(2 + (world.rank == 1))])


def test_main_first(world: World, comm: Any) -> None:
    with world.main_first():
        turn = comm.rank
        if turn == 0:
            for rank in range(1, comm.size):
                comm.Send(b"0", dest=rank)
        else:
            assert comm.Iprobe(source=0), "rank 0's block has run"
            comm.Recv(bytearray(1), source=0)


def test_main_fails_first(world: World) -> None:
    ran = []

    def take_turns() -> None:
        with world.main_first():
            ran.append(world.rank)
            raise OSError("no space")

    with pytest.raises(OSError if world.is_main else RankFailure, match="no space"):
        take_turns()
    assert ran == ([0] if world.is_main else [])


def test_barrier(world: World) -> None:
    world.barrier()


def test_waits_in_two_threads_do_not_mix(world: World) -> None:
    """The communication thread and the main thread each have a communicator of their own."""
    other = world.dup()
    sums = []

    def exchange() -> None:
        for step in range(50):
            total = np.empty(1)
            world.wait([other.Iallreduce(np.array([float(step)]), total)], "the other thread")
            sums.append(total[0])

    thread = threading.Thread(target=exchange)
    thread.start()
    own = [world.sum(np.array([step], np.int64))[0] for step in range(50)]
    thread.join()
    assert own == [step * world.size for step in range(50)]
    assert sums == [float(step * world.size) for step in range(50)]


def test_null_requests(world: World) -> None:
    request = world.comm.Ibarrier()
    request.Wait()
    world.wait([request], "a request that is complete")
    world.wait([request, world.comm.Ibarrier()], "one complete and one open")
    world.wait([], "nothing")


def test_public_names() -> None:
    assert mpisgd.World is World
    assert mpisgd.RankFailure is RankFailure
