"""Several parameters in one tensor that is cut into N equal shards, one for each rank.

Shards of one long tensor are equal up to a few numbers of padding, whatever the shapes of the
parameters; and one collective moves them all. A parameter is a view into the flat tensor, so a
gather that fills the flat tensor fills its parameters. A shard may begin in the middle of a matrix:
AdamW works on numbers, not on matrices.

A flat tensor can be freed and gathered again. Its storage is resized to 0 bytes and back. The
backward pass keeps views of weights, such as the transposed weight of a linear layer. They refer to
the same storage, so they see the weights that are gathered again, and hold no memory in between.

Sources: ZeRO (Rajbhandari et al. 2020), section 5; PyTorch FSDP (Zhao et al. 2023), section 4.2
(FlatParameter). Chapter: acceleration/parallelism.
"""

from torch import Tensor, nn

from course_pkg.acceleration.parallel.collectives import Group


class FlatParameter:
    """Parameters of one dtype, flat: (N · shard_size,), of which rank r has shard r.

    parameters: by name; all have one dtype, and all or none are trained. Rank 0's values replace
    those of the others. Until `keep_only_shard`, the flat tensor is whole on each rank.

    flat: the whole tensor, or one without memory. shard: (shard_size,), this rank's part of it.
    gradient: None, or after `reduce_gradients` the sum over the ranks: (shard_size,), or in
    `whole` form (N · shard_size,), in which only this rank's part is the sum.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], group: Group):
        first = next(iter(parameters.values()))
        self.group = group
        self.parameters = parameters
        self.shapes = {name: parameter.shape for name, parameter in parameters.items()}
        self.trained = first.requires_grad
        self.numbers = sum(parameter.numel() for parameter in parameters.values())
        self.shard_size = -(-self.numbers // group.size)  # rounded up
        self.flat = first.new_zeros(group.size * self.shard_size)
        for view, parameter in zip(self.views(self.flat), parameters.values(), strict=True):
            view.copy_(parameter.detach())
        group.broadcast(self.flat)
        self.shard = self.own_part(self.flat)
        self.gradient: Tensor | None = None
        self._attach()

    @property
    def padding(self) -> int:
        """Numbers at the end of the flat tensor that belong to no parameter; at most N − 1."""
        return len(self.flat) - self.numbers

    @property
    def shard_padding(self) -> int:
        """Those of them that lie in this rank's shard."""
        end = (self.group.rank + 1) * self.shard_size
        return min(self.shard_size, max(0, end - self.numbers))

    def views(self, flat: Tensor) -> list[Tensor]:
        """The parameters' parts of a tensor (at least `numbers`,), in their shapes."""
        sizes = [shape.numel() for shape in self.shapes.values()]
        parts = flat[: self.numbers].split(sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes.values(), strict=True)]

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """The views by name."""
        return dict(zip(self.shapes, self.views(flat), strict=True))

    def own_part(self, flat: Tensor) -> Tensor:
        """This rank's shard of a flat tensor, as a view."""
        return flat.chunk(self.group.size)[self.group.rank]

    def keep_only_shard(self) -> None:
        """Copy the shard out of the flat tensor, and free that."""
        self.shard = self.shard.clone()
        self.free()

    def free(self) -> None:
        """Give the flat tensor's memory back; the parameters have no numbers until `gather`."""
        for parameter in self.parameters.values():
            parameter.data = parameter.data.new_empty(0)  # reading freed memory would crash
        self.flat.untyped_storage().resize_(0)

    def gather(self) -> None:
        """Fill the flat tensor from all ranks' shards, if it is freed; a collective."""
        storage = self.flat.untyped_storage()
        if storage.nbytes() == 0:
            storage.resize_(self.flat.nbytes)
            self.group.all_gather(self.shard, into=self.flat)
            self._attach()

    def share_shards(self) -> None:
        """After ranks have changed their shards: fill the rest of a flat tensor that is kept."""
        self.group.all_gather(self.shard, into=self.flat)

    def reduce_gradients(self, whole: bool) -> None:
        """Add the parameters' gradients, summed over the ranks, to `gradient`; a collective.

        whole: keep a flat gradient of all ranks' sizes, of which the parameters' gradients are
        views. Otherwise keep the shard, and free the parameters' gradients. A parameter without a
        gradient counts as zero.
        """
        flat = self.flat.new_zeros(self.group.size * self.shard_size, device=self.shard.device)
        for view, parameter in zip(self.views(flat), self.parameters.values(), strict=True):
            if parameter.grad is not None:
                view.copy_(parameter.grad)
            parameter.grad = view if whole else None
        shard = self.group.reduce_scatter(flat)
        if whole:
            self.own_part(flat).copy_(shard)
            self.gradient = flat
        elif self.gradient is None:
            self.gradient = shard
        else:
            self.gradient += shard

    @property
    def gradient_shard(self) -> Tensor:
        """This rank's part of the sum of the gradients: (shard_size,). Needs `gradient`."""
        if len(self.gradient) == self.shard_size:
            return self.gradient
        return self.own_part(self.gradient)

    def drop_gradients(self) -> None:
        """Free all gradients."""
        self.gradient = None
        for parameter in self.parameters.values():
            parameter.grad = None

    def copy_part(self, name: str, values: Tensor, shard: Tensor) -> None:
        """Copy from one parameter's numbers those that belong to this rank's shard: (shard_size,).

        values: of the parameter's shape, another dtype is converted.
        """
        before = 0
        for other, shape in self.shapes.items():
            if other == name:
                break
            before += shape.numel()
        start = before - self.group.rank * self.shard_size  # of the parameter, in the shard
        first = max(0, start)
        last = min(self.shard_size, start + values.numel())
        if first < last:
            shard[first:last].copy_(values.reshape(-1)[first - start : last - start])

    def is_attached(self) -> bool:
        """Whether the parameters are still views of the flat tensor."""
        here = self.flat.untyped_storage().data_ptr()
        return all(p.untyped_storage().data_ptr() == here for p in self.parameters.values())

    def _attach(self) -> None:
        """Make the parameters views of the flat tensor."""
        for view, parameter in zip(self.views(self.flat), self.parameters.values(), strict=True):
            parameter.data = view
