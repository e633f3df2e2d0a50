"""Slow, obvious references.  Imports nothing from the package."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
from scipy.special import gammaln, softmax, xlogy


def residuals(q, y):
    return q - np.eye(q.shape[1])[y]


def scores(logits, y, w=None):
    q = softmax(np.asarray(logits, float), axis=1)
    d = residuals(q, y)
    top = q.argmax(1)
    return {
        "accuracy": np.average(top == y, weights=w),
        "brier": np.average((d**2).sum(1), weights=w),
        "nll": np.average(-np.log(q[np.arange(len(y)), y]), weights=w),
        "confidence_gap": np.average(q.max(1), weights=w) - np.average(top == y, weights=w),
    }


def bin_rows(p, edges, left_closed=False):
    """Row indices of each bin, by comparing with both edges."""
    B = len(edges) - 1
    members = []
    for b in range(B):
        low, high = edges[b], edges[b + 1]
        if left_closed:
            inside = (p >= low) & ((p < high) if b < B - 1 else (p <= high))
        else:
            inside = ((p > low) if b > 0 else (p >= low)) & (p <= high)
        members.append(np.flatnonzero(inside))
    return members


def binned(p, event, edges, w=None, left_closed=False):
    """ece, mce, tce2, and both ways to take its bias off, of one column."""
    w = np.ones(len(p)) if w is None else w
    out = dict(ece=0.0, mce=0.0, tce2=0.0, tce2_debiased=0.0, tce2_kumar=0.0)
    for rows in bin_rows(p, edges, left_closed):
        if len(rows) == 0:
            continue
        share = w[rows].sum() / w.sum()
        conf = np.average(p[rows], weights=w[rows])
        acc = np.average(event[rows], weights=w[rows])
        n_b = w[rows].sum() ** 2 / (w[rows] ** 2).sum()
        out["ece"] += share * abs(conf - acc)
        out["mce"] = max(out["mce"], abs(conf - acc))
        out["tce2"] += share * (conf - acc) ** 2
        if len(rows) > 1:
            out["tce2_kumar"] += share * ((conf - acc) ** 2 - acc * (1 - acc) / (n_b - 1))
            pairs = ~np.eye(len(rows), dtype=bool)
            d, v = (p - event)[rows], w[rows]
            products = np.outer(v * d, v * d)[pairs].sum() / np.outer(v, v)[pairs].sum()
            out["tce2_debiased"] += share * products
    return out


def decomposition(p, event, edges):
    """(calibration, refinement) of the Brier score and of the log loss."""
    parts = np.zeros(4)
    for rows in bin_rows(p, edges):
        if len(rows) == 0:
            continue
        share, conf, acc = len(rows) / len(p), p[rows].mean(), event[rows].mean()
        entropy = -xlogy(acc, acc) - xlogy(1 - acc, 1 - acc)
        cross = -xlogy(acc, conf) - xlogy(1 - acc, 1 - conf)
        parts += share * np.array([(conf - acc) ** 2, acc * (1 - acc), cross - entropy, entropy])
    return parts


def class_wise(q, y, edges, w=None):
    return [binned(q[:, k], (y == k).astype(float), edges, w)["tce2"] for k in range(q.shape[1])]


def simplex_ece(q, y):
    cells = {}
    for i in range(len(q)):
        key = tuple(0 if v <= 1 / 3 else 1 if v <= 2 / 3 else 2 for v in q[i])
        cells.setdefault(key, []).append(i)
    e = np.eye(q.shape[1])[y]
    return sum(
        len(rows) / len(q) * np.abs(q[rows].mean(0) - e[rows].mean(0)).sum()
        for rows in cells.values()
    )


def kernel(q, bandwidth, linear=True):
    squared = ((q[:, None, :] - q[None, :, :]) ** 2).sum(-1)
    return np.exp(-squared / (2 * bandwidth**2)) + (q @ q.T if linear else 0.0)


def cmmd(K, d, ridge, level=0, w=None):
    """‖C (S + λnI)⁻¹ (S/n)^{s/2}‖² of a kernel matrix, by the dual (weights in Φ, Δ)."""
    n = len(K) if w is None else w.sum()
    root = np.ones(len(K)) if w is None else np.sqrt(w)
    K = K * np.outer(root, root)
    d = d * root[:, None]
    W = np.linalg.solve(K + ridge * n * np.eye(len(K)), d)
    middle = K @ np.linalg.matrix_power(K / n, level)
    return float(np.trace(W.T @ middle @ W))


def ckce_centred(K, d, ridge, w=None):
    """‖C A‖² less its pairs of a row with itself, row by row, by the dual."""
    n = len(K) if w is None else w.sum()
    root = np.ones(len(K)) if w is None else np.sqrt(w)
    inverse = np.linalg.inv(K * np.outer(root, root) + ridge * n * np.eye(len(K)))
    between = inverse @ (K * np.outer(root, root)) @ inverse
    d = d * root[:, None]
    return sum(
        between[i, j] * float(d[i] @ d[j]) for i in range(len(K)) for j in range(len(K)) if i != j
    )


def jkce(K, d, w=None, unbiased=True):
    """Sum over ordered pairs, one at a time."""
    n = len(K)
    w = np.ones(n) if w is None else w
    total = pairs = 0.0
    for i in range(n):
        for j in range(n):
            if unbiased and i == j:
                continue
            total += w[i] * w[j] * K[i, j] * float(d[i] @ d[j])
            pairs += w[i] * w[j]
    return total / pairs


def fourier(q, frequencies):
    """[q, cos, sin] features of the kernel pᵀq + Gaussian, from the given frequencies (F, K)."""
    z = q @ frequencies.T
    F = len(frequencies)
    return np.hstack([q, np.cos(z) / np.sqrt(F), np.sin(z) / np.sqrt(F)])


def ece_exact(p, event, edges):
    """Expected calibration error in rational arithmetic over the float64 numbers given."""
    total = Fraction(0)
    for rows in bin_rows(p, edges):
        total += abs(sum((Fraction(float(p[i])) - int(event[i]) for i in rows), Fraction(0)))
    return total / len(p)


# ---------------------------------------------------------------- selection by risk


def calibration_risk(delta, h, w=None):
    """Mean over ordered pairs i ≠ j of (⟨δ_i, δ_j⟩ − h_ij)² [GB eq. 20], one pair at a time."""
    n = len(delta)
    w = np.ones(n) if w is None else w
    total = pairs = 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                total += w[i] * w[j] * (float(delta[i] @ delta[j]) - h[i, j]) ** 2
                pairs += w[i] * w[j]
    return total / pairs


def pair_losses(delta, h, w=None):
    """For each row the mean over all other rows of (⟨δ_i, δ_j⟩ − h_ij)²."""
    w = np.ones(len(delta)) if w is None else w
    loss = (delta @ delta.T - h) ** 2
    pairs = np.tile(w, (len(w), 1))
    np.fill_diagonal(pairs, 0.0)
    return (loss * pairs).sum(1) / pairs.sum(1)


def notion_problems(notion, q, y):
    """The (points, residuals) of each problem that a notion poses, as columns."""
    one_hot = np.eye(q.shape[1])[y]
    if notion == "canonical":
        return [(q, q - one_hot)]
    if notion == "class_wise":
        return [(q[:, [k]], q[:, [k]] - one_hot[:, [k]]) for k in range(q.shape[1])]
    if notion == "positive":
        return [(q[:, [1]], q[:, [1]] - one_hot[:, [1]])]
    p = q.max(1)[:, None]
    return [(p, p - (q.argmax(1) == y)[:, None])]


def _training_sizes(w):
    """Σw, and the number of rows of weight one that are as good."""
    return w.sum(), w.sum() ** 2 / (w**2).sum()


def bin_function(p, d, w, bins, debiased=False):
    """h of histogram binning: conf − acc of both bins, an empty bin predicts the global means."""
    p, d = p[:, 0], d[:, 0]
    edges = np.linspace(0, 1, bins + 1)
    gap, diagonal = np.zeros(bins), np.zeros(bins)
    for b, rows in enumerate(bin_rows(p, edges)):
        if w[rows].sum() == 0:
            gap[b] = np.average(d, weights=w)
            continue
        gap[b] = np.average(d[rows], weights=w[rows])
        acc = np.average(p[rows] - d[rows], weights=w[rows])
        several = np.count_nonzero(w[rows]) > 1
        size = w[rows].sum() ** 2 / (w[rows] ** 2).sum()
        diagonal[b] = acc * (1 - acc) / (size - 1) if several else gap[b] ** 2

    def place(x):
        out = np.empty(len(x), int)
        for b, rows in enumerate(bin_rows(x[:, 0], edges)):
            out[rows] = b
        return out

    def h(x, z):
        a, b = place(x), place(z)
        same_bin = a[:, None] == b[None, :]
        return np.outer(gap[a], gap[b]) - (same_bin * diagonal[a][:, None] if debiased else 0.0)

    return h


def plug_in(residual):
    """h(x, z) = ⟨r̂(x), r̂(z)⟩."""
    return lambda x, z: residual(x) @ residual(z).T


def kde_function(p, d, w, bandwidth):
    """h of the Dirichlet kernel density ratio [GB eq. 25]: f is the training row [GB eq. 11]."""
    scalar = p.shape[1] == 1
    simplex = (lambda x: np.hstack([1 - x, x])) if scalar else (lambda x: x)
    training, event = simplex(p), p - d

    def residual(x):
        at = simplex(x)
        log_k = np.empty((len(at), len(training)))
        for i, f in enumerate(training):
            alpha = f / bandwidth + 1
            log_b = gammaln(alpha).sum() - gammaln(alpha.sum())
            log_k[:, i] = xlogy(f / bandwidth, at).sum(1) - log_b
        k = w * np.exp(log_k - log_k[:, w > 0].max(1, keepdims=True))
        return x - (k @ event) / k.sum(1, keepdims=True)

    return plug_in(residual)


def _gaussian(x, z, bandwidth=2**-0.5):
    return np.exp(-((x[:, None, :] - z[None, :, :]) ** 2).sum(-1) / (2 * bandwidth**2))


def ukkr_function(p, d, w, reg, kernel=_gaussian):
    """h of eq. 32 in the dual: r̂(x) = k(x, X)√w (√w K √w + λnI)⁻¹ √w Δ, λn = reg·Σw·n_eff^(−¼)."""
    total, effective = _training_sizes(w)
    root = np.sqrt(w)[:, None]
    damped = root * kernel(p, p) * root.T + reg * total * effective**-0.25 * np.eye(len(p))
    alpha = root * np.linalg.solve(damped, root * d)
    return plug_in(lambda x: kernel(x, p) @ alpha)


def kkr_function(p, d, w, reg, kernel=_gaussian):
    """h of eq. 28 by its Kronecker system, λn² = reg·(Σw)²·n_eff^(−½): n² unknowns."""
    total, effective = _training_sizes(w)
    root = np.sqrt(w)[:, None]
    K = root * kernel(p, p) * root.T
    damped = np.kron(K, K) + reg * total**2 * effective**-0.5 * np.eye(len(p) ** 2)
    target = (root * d) @ (root * d).T
    A = np.linalg.solve(damped, target.reshape(-1)).reshape(target.shape)
    A = root * A * root.T
    return lambda x, z: kernel(x, p) @ A @ kernel(z, p).T


def kkr_function_by_eigenvalues(p, d, w, reg, kernel=_gaussian):
    """The same from the eigenvectors of the weighted kernel matrix, for more rows."""
    total, effective = _training_sizes(w)
    root = np.sqrt(w)[:, None]
    sigma, V = np.linalg.eigh(root * kernel(p, p) * root.T)
    target = V.T @ (root * d) @ (root * d).T @ V
    target /= np.outer(sigma, sigma) + reg * total**2 * effective**-0.5
    A = root * (V @ target @ V.T) * root.T
    return lambda x, z: kernel(x, p) @ A @ kernel(z, p).T


def isotonic_function(p, d, w):
    """h of r̂(x) = x − the isotonic regression of the event, by scikit-learn."""
    from sklearn.isotonic import IsotonicRegression

    seen = w > 0
    event = np.rint(p - d)[seen, 0]
    model = IsotonicRegression(out_of_bounds="clip").fit(p[seen, 0], event, w[seen])
    return plug_in(lambda x: x - model.predict(x[:, 0])[:, None])


def mass_function(p, d, w, sweep):
    """h of conf − acc of equal-mass bins: ⌈n^(1/3)⌉, or as many as have increasing frequencies.

    Bins end after the score at which the cumulative weight is nearest to a quantile, the larger of
    two. r̂ is linear between the last score of a bin and the first of the next.
    """
    p, d, w = p[w > 0, 0], d[w > 0, 0], w[w > 0]
    scores = np.unique(p)
    mass = np.array([w[p <= s].sum() for s in scores])

    def fitted(bins):
        gaps = [abs(np.append(0.0, mass) - mass[-1] * b / bins) for b in range(1, bins)]
        last = {int(np.flatnonzero(gap == gap.min())[-1]) - 1 for gap in gaps} - {-1}
        parts = np.split(scores, [i + 1 for i in sorted(last - {len(scores) - 1})])
        means = [
            np.average(np.column_stack([d, p - d])[rows], axis=0, weights=w[rows])
            for part in parts
            for rows in [np.isin(p, part)]
        ]
        return parts, *np.transpose(means)

    bins = 1 if sweep else next(b for b in range(1, len(p) + 1) if b**3 >= len(p))
    while sweep and bins < len(scores) and (np.diff(fitted(bins + 1)[2]) > -1e-12).all():
        bins += 1
    parts, gap, _ = fitted(bins)
    knots, values = np.concatenate(parts), np.repeat(gap, [len(part) for part in parts])
    return plug_in(lambda x: np.interp(x[:, 0], knots, values)[:, None])


def smooth_function(p, d, w, bandwidth):
    """h of a Gaussian kernel estimate of E[δ | p], ½ wide either way.

    Points in (0, 1) are reflected at 0 and 1, those at 0 and 1 at the other end.
    """
    images = [(p, 1.0), (-p, p.T > 0), (2 - p, p.T < 1)]

    def residual(x):
        k = sum(
            there * (abs(x - image.T) <= 0.5) * np.exp(-((x - image.T) ** 2) / (2 * bandwidth**2))
            for image, there in images
        )
        return ((w * k) @ d) / (w * k).sum(1, keepdims=True)

    return plug_in(residual)


def tempered(p, theta):
    """q − softmax(θ log q), or p − σ(θ logit p) of one column."""
    if p.shape[1] == 1:
        return p - p**theta / (p**theta + (1 - p) ** theta)
    return p - p**theta / (p**theta).sum(1, keepdims=True)


def select(problems, folds, fit, w=None):
    """(k,) risks, (k,) estimates [GB eq. 21] and row losses of h = fit(p, δ, w), fold by fold.

    Every fold is left out once. −1 is the test part.  Problems are added up.
    """
    w = np.ones(len(folds)) if w is None else w
    test = folds == -1
    risks, estimates, losses = [], [], []
    for v in range(folds.max() + 1):
        train, judged = (folds >= 0) & (folds != v), folds == v
        risk = estimate = row_losses = 0.0
        for p, d in problems:
            h = fit(p[train], d[train], w[train])
            pairs = h(p[judged], p[judged])
            risk += calibration_risk(d[judged], pairs, w[judged])
            row_losses = row_losses + pair_losses(d[judged], pairs, w[judged])
            estimate += np.average(np.diag(h(p[test], p[test])), weights=w[test])
        risks.append(risk)
        estimates.append(estimate)
        losses.append(row_losses)
    return np.array(risks), np.array(estimates), losses


def difference_error(losses, other_losses, folds, w=None):
    """Standard error of the difference of two risks, from their row losses, fold by fold.

    A U-statistic of pairs has the variance 4·Var(row loss)/n to first order. Folds are
    independent.  The difference is formed row by row.
    """
    w = np.ones(len(folds)) if w is None else w
    variance = 0.0
    for v, (a, b) in enumerate(zip(losses, other_losses, strict=True)):
        weights = w[folds == v]
        gap = (a - b) - np.average(a - b, weights=weights)
        variance += 4 * (weights**2 * gap**2).sum() / weights.sum() ** 2
    return np.sqrt(variance) / len(losses)


def bayesian_bins(p, y, borders):
    """Recalibrated p by the authors' BBQ, with cuts at `borders`: BDeu, posterior means, elbow."""
    n = len(p)
    at_most = np.array([np.sum(p < border) for border in borders])  # rows below each border
    scores, estimates = [], []
    for count in range(
        max(1, int(n ** (1 / 3) / 10)), int(np.ceil(min(n / 5, 10 * n ** (1 / 3)))) + 1
    ):
        cuts = [0.0]
        for k in range(1, count):
            above = at_most[at_most >= n * k / count].min()
            below = at_most[at_most < n * k / count].max()
            up = above - n * k / count <= n * k / count - below  # the nearer
            places = np.flatnonzero(at_most == (above if up else below))
            cuts.append(borders[places[0 if up else -1]])
        cuts = sorted({*cuts, 1.0})
        score, estimate = 0.0, np.zeros(n)
        for low, high in pairwise(cuts):
            rows = np.flatnonzero((p >= low) & ((p < high) | (high == 1.0)))
            events, prior = y[rows].sum(), min(max((low + high) / 2, 0.005), 0.995)
            a, b = 2 * prior, 2 * (1 - prior)
            score += gammaln(2) - gammaln(len(rows) + 2) + gammaln(events + a) - gammaln(a)
            score += gammaln(len(rows) - events + b) - gammaln(b)
            estimate[rows] = (events + a) / (len(rows) + 2)
        scores.append(score)
        estimates.append(estimate)
    weights = np.exp(np.array(scores) - max(scores))
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    last = 0
    while last + 1 < len(order) and weights[order[last]] == weights[order[last + 1]]:
        last += 1
    while last + 1 < len(order) and (
        weights[order[last]] - weights[order[last + 1]] > 0.001 * np.var(weights)
    ):
        last += 1
    best = order[: last + 1]
    return np.average([estimates[i] for i in best], axis=0, weights=weights[best])


def multicalibrated(p, y, groups, alpha, bins, min_rows, rho=None, w=None, z=0.0):
    """p after boosting [La Cava et al. 2023, Algorithm 1] of lists of rows, in their order."""
    p, w = p.copy(), np.ones(len(p)) if w is None else w
    while True:
        categories = [
            group[np.clip(np.ceil(np.round(p[group] * bins, 9)) - 1, 0, None) == b]
            for group in groups
            for b in range(bins)
        ]
        changed = False
        for rows in categories:
            if w[rows].sum() * len(w) / w.sum() < min_rows or not len(rows):
                continue
            frequency = np.average(y[rows], weights=w[rows])
            mean = np.average(p[rows], weights=w[rows])
            gap, variance = frequency - mean, max(mean * (1 - mean), 0)
            size = w[rows].sum() * len(w) / w.sum()
            allowed = alpha * (1.0 if rho is None else max(frequency, rho))
            if abs(gap) > max(allowed, z * np.sqrt(variance / size)):
                p[rows] += gap
                changed = True
        p = np.clip(p, 0.0, 1.0)
        if not changed:
            return p


# ---------------------------------------------------------------- forecasts


def normal_overlap(t, variance, bandwidth):
    """E exp(−(t + X)²/(2b²)) of a normal X of mean 0."""
    total = bandwidth**2 + variance
    return bandwidth / np.sqrt(total) * np.exp(-(t**2) / (2 * total))


def normal_skce(forecasts, y, kernel, bandwidth, weights=None):
    """Unbiased SKCE of normal forecasts [(mean, scale)], Widmann et al. (2021), Example 1.

    The kernel is k_P(p, p')·exp(−(y − y')²/(2b²)), and ``kernel(d, s, i, j)`` is k_P from the
    maximum mean discrepancy d of two forecasts and s = E ℓ(Z, Z').
    """
    n = len(y)
    w = np.ones(n) if weights is None else weights
    total = scale = 0.0
    for i in range(n):
        for j in range(n):
            if i == j:
                continue
            (m, s), (m2, s2) = forecasts[i], forecasts[j]
            shared = normal_overlap(m - m2, s**2 + s2**2, bandwidth)
            norm, norm2 = (normal_overlap(0.0, 2 * v**2, bandwidth) for v in (s, s2))
            h = normal_overlap(y[i] - y[j], 0.0, bandwidth) + shared
            h -= normal_overlap(m - y[j], s**2, bandwidth)
            h -= normal_overlap(m2 - y[i], s2**2, bandwidth)
            distance = np.sqrt(max(norm + norm2 - 2 * shared, 0.0))
            total += w[i] * w[j] * h * kernel(distance, shared, i, j)
            scale += w[i] * w[j]
    return total / scale


def vector_skce(q, delta, kernel):
    """Unbiased SKCE of any vectors, with ``kernel(distance, product)``."""
    n = len(q)
    terms = [
        delta[i] @ delta[j] * kernel(np.linalg.norm(q[i] - q[j]), q[i] @ q[j])
        for i in range(n)
        for j in range(n)
        if i != j
    ]
    return float(np.mean(terms))
