"""Recalibration of logits in PyTorch, on their device and with their gradients."""

from __future__ import annotations

from typing import Any

from calibscale.errors import require
from calibscale.recalibration.fits import FittedRecalibration
from calibscale.recalibration.parametric import MASKED

try:
    import torch
except ImportError as error:
    raise ImportError(
        "calibscale.torch needs PyTorch, which is not installed: pip install torch"
    ) from error


class LogitScaling(torch.nn.Module):
    """Module that returns recalibrated logits, of which a softmax is the recalibrated prediction.

    It is for fits of ``identity``, ``temperature``, ``platt``, ``vector``, ``matrix``,
    ``dirichlet`` and ``structured``, which are linear maps of logits or of log-probabilities.
    Nothing leaves the device of the logits, and gradients pass through the module to the network,
    for example to train or to attack it with the recalibration in place.  The numbers of the fit
    are buffers: they move with `torch.nn.Module.to`, are in the `state_dict`, and are not trained.
    Fits of ``identity``, ``temperature`` and ``platt`` keep the logit −∞ of an excluded class.  The
    exception is a slope that is not positive, which only ``platt`` may have: then the logit is
    finite, as the one that `calibscale.FittedRecalibration.transform` uses.  Fits of ``vector``,
    ``matrix``, ``dirichlet`` and ``structured`` raise log-probabilities to the logarithm of their
    ``clip``, as ``transform`` does, so that an excluded class gets a finite logit and a small
    probability.

    A module loads the state of another one only if both have the same inputs of the linear map:
    logits, log-probabilities, or centred log-probabilities.

    Parameters
    ----------
    fitted : FittedRecalibration
        Result of `calibscale.recalibrate` or `calibscale.load_recalibration`, fitted to logits or
        to probabilities.
    binary : bool
        Whether the input has log-odds of two classes in any shape, instead of logits (…, K).
    device, dtype
        Of the buffers, as of other modules.  Default: the CPU, and the default type of PyTorch.

    Raises
    ------
    OptionError
        If the fit is no linear map of logits, or `binary` is set for more than two classes.

    See Also
    --------
    calibscale.FittedRecalibration.to_onnx : The recalibration as an ONNX model.

    Examples
    --------
    >>> import numpy as np, calibscale, torch
    >>> from calibscale.torch import LogitScaling
    >>> logits = np.tile([2.0, 0.0], (1000, 1))
    >>> labels = (np.arange(1000) % 4 == 0).astype(int)
    >>> source = calibscale.from_arrays(logits=logits, labels=labels)
    >>> scaling = LogitScaling(calibscale.recalibrate(source, "temperature"))
    >>> scaling(torch.tensor([[2.0, 0.0]])).softmax(-1).numpy().round(3)
    array([[0.75, 0.25]], dtype=float32)
    """

    def __init__(
        self,
        fitted: FittedRecalibration,
        *,
        binary: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        scaling = fitted.fit.logit_map
        self.classes = fitted.fit.classes
        require(
            self.classes == 2 or not binary,
            f"binary=True is for two classes; the fit is of {self.classes:,}",
        )
        self.binary = binary
        self.lowest = scaling.lowest
        self.centred = scaling.centred
        for name in ("weight", "offset"):
            # Buffers, and not parameters, because a fit is not trained further.
            values = torch.tensor(
                getattr(scaling, name).tolist(),
                device=device,
                dtype=torch.get_default_dtype() if dtype is None else dtype,
            )
            self.register_buffer(name, values)

    def forward(self, logits: Any) -> Any:
        """Recalibrated logits, in the shape and with the type and device of the logits.

        Parameters
        ----------
        logits : (…, K) tensor of floating point
            Logits, or with ``binary`` log-odds in any shape.
        """
        require(logits.is_floating_point(), "logits must be floating point", logits.dtype)
        # Numbers of 16 bits have too few digits for sums over classes.
        kind = torch.promote_types(logits.dtype, torch.float32)
        weight, offset = (part.to(logits.device, kind) for part in (self.weight, self.offset))
        x = logits.to(kind)
        if self.binary:
            # A slope of 0 times ∞ is not a number, unlike the log-odds that the fit has for it.
            x = torch.where(torch.isinf(x), x.sign() * -MASKED, x)
            # The log-odds are the difference of the logits of both classes.
            return (weight * x + (offset[1] - offset[0])).to(logits.dtype)
        require(
            logits.ndim > 0 and logits.shape[-1] == self.classes,
            f"logits must have {self.classes:,} columns",
            tuple(logits.shape),
        )
        if self.lowest is None:
            return self._scaled(x, weight, offset).to(logits.dtype)
        x = torch.log_softmax(x, dim=-1).clamp(min=self.lowest)
        if self.centred:
            x = x - x.mean(dim=-1, keepdim=True)
        scaled = x @ weight if weight.ndim == 2 else x * weight
        return (scaled + offset).to(logits.dtype)

    @staticmethod
    def _scaled(x: Any, weight: Any, offset: Any) -> Any:
        """Logits times one slope, with classes of −∞ that remain excluded."""
        excluded = torch.isneginf(x)
        # A product with −∞ would be ∞ for a negative slope, and not a number for a slope of 0.
        lowest = x.detach().amax(dim=-1, keepdim=True) + MASKED
        scaled = torch.where(excluded, lowest, x) * weight + offset
        return scaled.masked_fill(excluded & (weight > 0), -torch.inf)

    def get_extra_state(self) -> Any:
        """Kind of the inputs of the linear map, which a `state_dict` has beside the numbers.

        It is a tensor, as files of tensors alone require.
        """
        lowest = -torch.inf if self.lowest is None else self.lowest
        return torch.tensor([lowest, float(self.centred)], dtype=torch.float64, device="cpu")

    def set_extra_state(self, state: Any) -> None:
        """Require the kind of inputs of this module."""
        require(
            torch.equal(state.to("cpu", torch.float64), self.get_extra_state()),
            "the state is of a map with other inputs; make the module from a fit of the same "
            "method, with the same clip",
        )

    def extra_repr(self) -> str:
        """Settings that `print` shows."""
        return f"classes={self.classes}, binary={self.binary}"
