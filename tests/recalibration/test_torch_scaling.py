"""Recalibrated logits in PyTorch, beside `transform` and derivatives by differences."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit, softmax

import calibscale as cs

METHODS = {
    "identity": 2,
    "temperature": 2,
    "platt": 2,
    "temperature of classes": 4,
    "vector": 4,
    "matrix": 4,
    "dirichlet": 4,
}
ROWS = 400


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch", reason="tensors of torch")


@pytest.fixture(scope="module")
def scaling(torch):
    from calibscale.torch import LogitScaling

    return LogitScaling


@pytest.fixture(scope="module")
def logits():
    """Logits of two and of four classes."""
    rng = np.random.default_rng(3)
    return {classes: 2.0 * rng.standard_normal((ROWS, classes)) for classes in (2, 4)}


def fit(logits, method):
    """Fit of a method to labels that other logits have drawn."""
    z = logits[METHODS[method]]
    classes = z.shape[1]
    p = softmax(0.6 * z + np.linspace(0.2, -0.2, classes), axis=1)
    rng = np.random.default_rng(4)
    labels = (p.cumsum(axis=1) < rng.random((len(z), 1))).sum(axis=1).clip(0, classes - 1)
    source = cs.from_arrays(logits=z, labels=labels)
    return cs.recalibrate(source, method.split()[0], validate=False)


pytestmark = [pytest.mark.long, pytest.mark.process]  # torch starts ldconfig when it is imported


@pytest.mark.parametrize("method", METHODS)
def test_softmax_of_scaled_logits__is_transform(torch, scaling, logits, method):
    fitted, z = fit(logits, method), logits[METHODS[method]]
    # Some logits are far apart.
    z = np.concatenate([z, 40.0 * z[:50]])
    module = scaling(fitted, dtype=torch.float64)
    scaled = module(torch.tensor(z))
    assert scaled.dtype == torch.float64
    # Both have the rounding of the sums over classes.
    np.testing.assert_allclose(
        scaled.softmax(-1).numpy(), fitted.transform(logits=z), rtol=1e-9, atol=1e-15
    )


@pytest.mark.parametrize("method", ["temperature", "platt", "identity"])
def test_log_odds__of_two_classes_are_scaled_in_any_shape(torch, scaling, logits, method):
    fitted = fit(logits, method)
    z = np.random.default_rng(1).normal(size=(5, 2, 3))
    scaled = scaling(fitted, binary=True, dtype=torch.float64)(torch.tensor(z))
    expected = logit(fitted.transform(expit(z.ravel())))
    np.testing.assert_allclose(scaled.numpy().ravel(), expected, rtol=1e-10)


@pytest.mark.parametrize("method", ["platt", "vector", "matrix"])
def test_gradients__are_those_of_differences(torch, scaling, logits, method):
    module = scaling(fit(logits, method), dtype=torch.float64)
    z = torch.tensor(logits[METHODS[method]][:3], requires_grad=True)
    # gradcheck compares with central differences.
    assert torch.autograd.gradcheck(module, (z,))
    assert not list(module.parameters())


def test_shapes__have_classes_last(torch, scaling, logits):
    module = scaling(fit(logits, "matrix"), dtype=torch.float64)
    z = torch.tensor(logits[4])
    images = z.reshape(20, 5, 4, 4)
    torch.testing.assert_close(module(images).reshape(-1, 4), module(z))
    torch.testing.assert_close(module(z[0]), module(z)[0])


@pytest.mark.parametrize(("name", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_types__of_the_logits_are_kept(torch, scaling, logits, name, tolerance):
    """Half the digits of a type: the largest scaled logits are about 10."""
    fitted = fit(logits, "vector")
    z = torch.tensor(logits[4], dtype=getattr(torch, name))
    scaled = scaling(fitted)(z)
    assert scaled.dtype == z.dtype
    exact = scaling(fitted, dtype=torch.float64)(z.double())
    np.testing.assert_allclose(
        scaled.double().numpy(), exact.numpy(), rtol=tolerance, atol=tolerance
    )


def test_module__moves_and_is_stored_with_others(torch, scaling, logits):
    module = scaling(fit(logits, "vector"))
    network = torch.nn.Sequential(torch.nn.Linear(7, 4), module)
    assert set(network.state_dict()) == {"0.weight", "0.bias", "1.weight", "1.offset"}
    other = scaling(fit(logits, "vector"))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other.weight, module.weight)
    # A device without numbers shows where the result would be.
    moved = module.to("meta")
    assert moved(torch.zeros(2, 4, device="meta")).device.type == "meta"
    assert "classes=4" in repr(network)


def test_fits_and_logits__that_do_not_suit_are_refused(torch, scaling, logits):
    z = logits[2]
    labels = (np.random.default_rng(0).random(ROWS) < expit(z[:, 1] - z[:, 0])).astype(int)
    isotonic = cs.recalibrate(cs.from_arrays(logits=z, labels=labels), "isotonic", validate=False)
    with pytest.raises(cs.OptionError, match="isotonic is no linear map of logits: identity"):
        scaling(isotonic)
    vector = fit(logits, "vector")
    with pytest.raises(cs.OptionError, match="binary=True is for two classes; the fit is of 4"):
        scaling(vector, binary=True)
    module = scaling(vector)
    with pytest.raises(cs.OptionError, match=r"logits must have 4 columns, not \(3, 5\)"):
        module(torch.zeros(3, 5))
    with pytest.raises(cs.OptionError, match=r"logits must be floating point, not torch\.int64"):
        module(torch.zeros(3, 4, dtype=torch.int64))
