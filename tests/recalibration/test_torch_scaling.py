"""Recalibrated logits in PyTorch, beside `transform` and derivatives by differences."""

from __future__ import annotations

import io
from dataclasses import replace

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
    "structured": 4,
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
    numbers = {"0.weight", "0.bias", "1.weight", "1.offset"}
    assert set(network.state_dict()) == {*numbers, "1._extra_state"}
    other = scaling(fit(logits, "vector"))
    other.load_state_dict(module.state_dict())
    assert torch.equal(other.weight, module.weight)
    # A device without numbers shows where the result would be.
    moved = module.to("meta")
    assert moved(torch.zeros(2, 4, device="meta")).device.type == "meta"
    assert "classes=4" in repr(network)


@pytest.mark.parametrize("slope", [0.7, -0.7, 0.0])
def test_excluded_classes__have_the_probabilities_of_transform(torch, scaling, logits, slope):
    """A slope that is not positive gives an excluded class no logit of −∞."""
    fitted = fit(logits, "platt")
    fitted = replace(fitted, state={**fitted.state, "slope": slope})
    z = logits[2][:4].copy()
    z[0, 1] = z[1, 0] = -np.inf
    module = scaling(fitted, dtype=torch.float64)
    x = torch.tensor(z, requires_grad=True)
    scaled = module(x)
    expected = fitted.transform(logits=z)
    np.testing.assert_allclose(scaled.softmax(-1).detach().numpy(), expected, atol=1e-15)
    scaled.softmax(-1)[:, 0].sum().backward()
    assert torch.isfinite(x.grad).all()
    assert torch.isneginf(scaled).sum() == (2 if slope > 0 else 0)
    log_odds = torch.tensor(z[:, 1] - z[:, 0])
    scaled = scaling(fitted, binary=True, dtype=torch.float64)(log_odds)
    np.testing.assert_allclose(expit(scaled.numpy()), expected[:, 1], atol=1e-15)


@pytest.mark.parametrize("method", ["temperature of classes", "vector", "matrix", "dirichlet"])
def test_excluded_classes__of_many_have_equal_probabilities(torch, scaling, logits, method):
    fitted, z = fit(logits, method), logits[4][:50].copy()
    z[:, 1] = -np.inf
    scaled = scaling(fitted, dtype=torch.float64)(torch.tensor(z)).softmax(-1)
    # Both have the rounding of the sums over classes.
    np.testing.assert_allclose(scaled.numpy(), fitted.transform(logits=z), rtol=1e-9, atol=1e-15)


def test_state__of_a_map_with_other_inputs_is_refused(torch, scaling, logits):
    matrix, dirichlet = (scaling(fit(logits, name)) for name in ("matrix", "dirichlet"))
    assert matrix.weight.shape == dirichlet.weight.shape
    with pytest.raises(cs.OptionError, match="the state is of a map with other inputs"):
        dirichlet.load_state_dict(matrix.state_dict())
    stream = io.BytesIO()
    torch.save(matrix.state_dict(), stream)
    stream.seek(0)
    scaling(fit(logits, "matrix")).load_state_dict(torch.load(stream, weights_only=True))


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
