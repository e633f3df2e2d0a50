"""Random numbers, and labels and rows drawn from predictions."""

from __future__ import annotations

import math

import numpy as np

from calibscale.compiled.elementary import exp, sincos
from calibscale.compiled.jit import inlined, kernel

# Multipliers, increments of the key, and number of rounds of Philox4x32-10 (Salmon et al. 2011,
# "Parallel random numbers: as easy as 1, 2, 3").
_MASK = np.uint64(0xFFFFFFFF)
_M0 = np.uint64(0xD2511F53)
_M1 = np.uint64(0xCD9E8D57)
_W0 = np.uint64(0x9E3779B9)
_W1 = np.uint64(0xBB67AE85)
_32, _12, _ZERO = np.uint64(32), np.uint64(12), np.uint64(0)
_ROUNDS = 10
# 2^-52: with one more bit, (u + ½)·unit could round to 1.
_UNIT = 1.0 / 4503599627370496.0


@inlined(first=True)
def _word(bits):
    """Low 32 bits as uint32."""
    return np.uint32(np.uint64(bits) & _MASK)


@inlined(first=True)
def philox(c0, c1, c2, c3, k0, k1):
    """Four 32-bit words (in uint64) from a counter of four words and a key of two.

    The words are uint32 between the products, so that LLVM sees products of 32 bits.  It vectorises
    such products, which takes an eighth of the time.
    """
    x0, x1, x2, x3 = _word(c0), _word(c1), _word(c2), _word(c3)
    for _ in range(_ROUNDS):
        a = _M0 * np.uint64(x0)
        b = _M1 * np.uint64(x2)
        x0, x1 = _word(_word(b >> _32) ^ x1 ^ _word(k0)), _word(b)
        x2, x3 = _word(_word(a >> _32) ^ x3 ^ _word(k1)), _word(a)
        k0 = (k0 + _W0) & _MASK
        k1 = (k1 + _W1) & _MASK
    return np.uint64(x0), np.uint64(x1), np.uint64(x2), np.uint64(x3)


@inlined(first=True)
def uniforms(seed, stream, row, index):
    """Two independent uniforms on (0, 1), never 0 or 1."""
    a, b, c, d = philox(
        np.uint64(row) & _MASK,
        np.uint64(row) >> _32,
        np.uint64(index) & _MASK,
        np.uint64(stream) & _MASK,
        np.uint64(seed) & _MASK,
        np.uint64(seed) >> _32,
    )
    # The conversion of signed numbers to floating point is vectorised on more CPUs.
    first = np.float64(np.int64(((a << _32) | b) >> _12))
    second = np.float64(np.int64(((c << _32) | d) >> _12))
    return (first + 0.5) * _UNIT, (second + 0.5) * _UNIT


@kernel
def uniform_rows(seed, stream, start, out):
    """Pair of uniforms for each row and index.

    Axes:
        out (rows, count, 2), where row i is row start + i of the stream
    """
    rows, count, _ = out.shape
    for i in range(rows):
        for j in range(count):
            u, v = uniforms(seed, stream, start + i, j)
            out[i, j, 0] = u
            out[i, j, 1] = v


@kernel
def uniform_at(seed, stream, rows, out):
    """One uniform for each row number.

    Axes:
        rows, out (rows,)
    """
    for i in range(rows.size):
        out[i], _ = uniforms(seed, stream, rows[i], 0)


def of_rows(rows, seed, stream):
    """Uniform number of each row number (c,), which does not depend on the cut of the rows."""
    out = np.empty(len(rows))
    uniform_at(np.uint64(seed), np.uint64(stream), rows, out)
    return out


def table(rows, columns, seed, stream, start=_ZERO):
    """Pairs of uniform numbers (rows, columns, 2), of the rows of a stream from `start` on."""
    out = np.empty((rows, columns, 2))
    uniform_rows(np.uint64(seed), np.uint64(stream), start, out)
    return out


def drawn_pairs(count, rows, seed):
    """First and second row of random pairs of different rows (count,)."""
    u = table(count, 1, seed, PAIRS)[:, 0]
    first, second = (u[:, 0] * rows).astype(np.int64), (u[:, 1] * (rows - 1)).astype(np.int64)
    # Skipping the first row makes the second uniform over the other rows.
    return first, second + (second >= first)


# Each purpose has a stream, so that equal seeds do not give equal draws.
FREQUENCIES = 1
SAMPLE = 2  # rows that are read before a pass
PREDICTIONS = 3
LABELS = 4
COVARIATES = 5
SPLIT = 6  # folds and test part of a cross-validation
SUBSET = 7
LANDMARKS = 8
PAIRS = 9
HOLD_OUT = 10
KEPT = 11  # rows in the sample of a Nyström sum
REPLICATES = 12
PERMUTATIONS = 13
GROUPS = 14  # groups of rows of intervals
NOISE = 15  # rows and outcomes of a noise floor
PIT = 16  # place of an outcome within a step of its distribution
RESPONSES = 17  # rows in a sample of responses
SETS = 18  # set of labels that a replicate takes in a segment of the rows


# ---------------------------------------------------------------- Labels drawn from predictions


_FEISTEL_ROUNDS = 8
_ROWS = 256  # rows with running sums that stay in cache


@kernel
def class_starts(q, classes, out):
    """Sum of the probabilities of the classes before a given one, added up as `labels` does.

    Axes:
        q (c, K)
        classes, out (c,)
    """
    for i in range(out.size):
        total = 0.0
        for k in range(classes[i]):
            total += q[i, k]
        out[i] = total


@kernel
def events(seed, rows, p, start, first, out):
    """Residuals δ* = p − event of events drawn with probability p: start ≤ u < start + p.

    With the sum of the probabilities of the classes before a class as `start`, the event occurs
    where `labels` draws this class.

    Axes:
        rows, p, start (c,)
        out (B, c), of replicates from number `first`
    """
    B = out.shape[0]
    # One call of Philox gives the numbers of the replicates 2j and 2j + 1.  At the ends of a range
    # of replicates one of the two may lie outside.
    for j in range(first // 2, (first + B + 1) // 2):
        a, b = 2 * j - first, 2 * j + 1 - first
        for i in range(p.size):
            u, v = uniforms(seed, REPLICATES, rows[i], j)
            u, v = u - start[i], v - start[i]
            if a >= 0:
                out[a, i] = p[i] - 1.0 if 0.0 <= u < p[i] else p[i]
            if b < B:
                out[b, i] = p[i] - 1.0 if 0.0 <= v < p[i] else p[i]


@inlined()
def _binomial_table(n, p, table):
    """Fill a table with relative cumulative probabilities of Bin(n, p), and return lowest and size.

    The ratios of neighbouring probabilities start at the mode.  By Bernstein's inequality, less
    than 1e-17 lies outside of the table.
    """
    mode = min(int((n + 1) * p), n)
    reach = binomial_reach(n, p)
    lowest, highest = max(mode - reach, 0), min(mode + reach, n)
    odds = p / (1.0 - p)
    table[mode - lowest] = 1.0
    # P(k)/P(k − 1) is rise/k with rise = (n − k + 1)·odds, upwards and downwards from the mode.
    for k in range(mode, lowest, -1):
        place = k - lowest
        rise = (n - k + 1) * odds
        table[place - 1] = table[place] * k / rise
    for k in range(mode + 1, highest + 1):
        place = k - lowest
        rise = (n - k + 1) * odds
        table[place] = table[place - 1] * rise / k
    size = highest - lowest + 1
    for k in range(1, size):
        table[k] += table[k - 1]
    return lowest, size


@inlined()
def binomial_reach(n, p):
    """Distance from the mode of Bin(n, p) beyond which there is a probability below 1e-17.

    P(|X − np| ≥ t) ≤ 2 exp(−t²/(2(v + t/3))) with v = np(1 − p) [Bernstein 1924].  With
    L = log(2e17) this is 1e-17 at t = L/3 + √(L²/9 + 2Lv), and the mode is within 1 of np.
    """
    return int(13.3 + math.sqrt(176.0 + 79.7 * n * p * (1.0 - p))) + 2


@inlined()
def _rank(table, size, u):
    """Position of the first number of an increasing table above the share u of the last one."""
    level = u * table[size - 1]
    low, high = 0, size - 1
    while low < high:
        middle = (low + high) // 2
        if table[middle] > level:
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def mean_events(seed, rows, counts, p, first, out):
    """Mean residuals δ* = p − k/n of n rows, of which k have an event of probability p.

    The number of events is drawn by inversion of its binomial distribution.

    Axes:
        rows, counts, p (c,), with positive counts and p in (0, 1)
        out (B, c), of replicates from number `first`
    """
    B = out.shape[0]
    largest = 0
    for i in range(p.size):
        largest = max(largest, 2 * binomial_reach(counts[i], p[i]) + 1)
    table = np.empty(largest)
    for i in range(p.size):
        n = counts[i]
        lowest, size = _binomial_table(n, p[i], table)
        # The numbers of replicates come in pairs, see `events`.
        for j in range(first // 2, (first + B + 1) // 2):
            a, b = 2 * j - first, 2 * j + 1 - first
            u, v = uniforms(seed, REPLICATES, rows[i], j)
            if a >= 0:
                out[a, i] = p[i] - (lowest + _rank(table, size, u)) / n
            if b < B:
                out[b, i] = p[i] - (lowest + _rank(table, size, v)) / n


@kernel
def uniform_pairs(seed, rows, index, out):
    """Pair of uniforms of the replicates 2·index and 2·index + 1 for each row number.

    Axes:
        rows (c,)
        out (2, c)
    """
    for i in range(rows.size):
        out[0, i], out[1, i] = uniforms(seed, REPLICATES, rows[i], index)


_COUNTED = 256  # classes up to which it is faster to compare a number with the ends of all shares


def labels(seed, rows, q, first, out):
    """Labels drawn from the predictions.

    The shares of the classes divide [0, total), and the drawn class is the one with u·total in its
    share.  A class of probability 0 is never drawn.  One of two kernels draws them.

    Axes:
        rows (c,)
        q (c, K)
        out (B, c) int32, of replicates from number `first`
    """
    draw = _labels_by_count if q.shape[1] <= _COUNTED else _labels_by_search
    draw(seed, rows, q, first, out)


@kernel
def _labels_by_count(seed, rows, q, first, out):
    """`labels` by the number of shares that end below u·total, in loops over rows."""
    B = out.shape[0]
    c, K = q.shape
    ends = np.empty((K, _ROWS))
    last = np.empty(_ROWS, np.int32)  # last class with a probability above 0
    place = np.empty(_ROWS, np.int32)
    u = np.empty((2, _ROWS))
    for start in range(0, c, _ROWS):
        size = min(_ROWS, c - start)
        for i in range(size):
            total = 0.0
            last[i] = 0
            for k in range(K):
                if total + q[start + i, k] > total:
                    last[i] = k
                total += q[start + i, k]
                ends[k, i] = total
        for j in range(first // 2, (first + B + 1) // 2):
            for i in range(size):
                u[0, i], u[1, i] = uniforms(seed, REPLICATES, rows[start + i], j)
            for side in range(2):
                b = 2 * j + side - first
                if b < 0 or b >= B:
                    continue
                x = u[side]
                for i in range(size):
                    x[i] *= ends[K - 1, i]
                    place[i] = 0
                for k in range(K - 1):
                    end = ends[k]
                    for i in range(size):
                        place[i] += np.int32(end[i] <= x[i])
                for i in range(size):
                    # Rounding may put x at the end, behind classes of probability 0.
                    out[b, start + i] = min(place[i], last[i])


@inlined()
def _class(x, ends):
    """First class with an end of its share above x."""
    k, high = 0, ends.size - 1
    while k < high:
        middle = (k + high) // 2
        if ends[middle] <= x:
            k = middle + 1
        else:
            high = middle
    return k


@kernel
def _labels_by_search(seed, rows, q, first, out):
    """`labels` by bisection of the ends of the shares of each row."""
    B = out.shape[0]
    c, K = q.shape
    ends = np.empty(K)
    for i in range(c):
        total = 0.0
        last = 0  # last class with a probability above 0
        for k in range(K):
            if total + q[i, k] > total:
                last = k
            total += q[i, k]
            ends[k] = total
        for j in range(first // 2, (first + B + 1) // 2):
            a, b = 2 * j - first, 2 * j + 1 - first
            u, v = uniforms(seed, REPLICATES, rows[i], j)
            if a >= 0:
                out[a, i] = min(_class(u * total, ends), last)
            if b < B:
                out[b, i] = min(_class(v * total, ends), last)


@kernel
def signs(seed, rows, first, out):
    """Independent signs ±1 of probability one half.

    Axes:
        rows (c,)
        out (B, c) float64, of replicates from number `first`
    """
    for i in range(rows.size):
        row = np.uint64(rows[i])
        block = np.int64(-1)
        low = np.uint64(0)
        high = np.uint64(0)
        for r in range(out.shape[0]):
            # The four words of one call are the signs of 128 replicates, a bit each.
            replicate = first + r
            if replicate // 128 != block:
                block = replicate // 128
                a, b, c, d = philox(
                    row & _MASK,
                    row >> _32,
                    np.uint64(block),
                    np.uint64(REPLICATES),
                    np.uint64(seed) & _MASK,
                    np.uint64(seed) >> _32,
                )
                low, high = (a << _32) | b, (c << _32) | d
            bit = np.uint64(replicate % 64)
            word = low if replicate % 128 < 64 else high
            out[r, i] = 1.0 if (word >> bit) & np.uint64(1) else -1.0


@kernel
def resampled(seed, rows, first, n, out):
    """Positions in 0..n−1 drawn with replacement.

    Axes:
        rows (c,)
        out (B, c) int64, of replicates from number `first`
    """
    B = out.shape[0]
    for j in range(first // 2, (first + B + 1) // 2):
        a, b = 2 * j - first, 2 * j + 1 - first
        for i in range(rows.size):
            u, v = uniforms(seed, REPLICATES, rows[i], j)
            if a >= 0:
                out[a, i] = min(np.int64(u * n), n - 1)
            if b < B:
                out[b, i] = min(np.int64(v * n), n - 1)


@kernel
def permuted(seed, ranks, first, n, out):
    """Images of positions among n under an independent permutation for each replicate.

    The permutation is a Feistel network on the next power of four, at least 256 as smaller ones
    favour some permutations, iterated until the image is below n (cycle walking).

    Axes:
        ranks (c,) in 0..n−1
        out (B, c) int64, of replicates from number `first`
    """
    # The network encrypts numbers of 2·half bits.  Any round function makes it a permutation.
    half = 4
    while (np.int64(1) << (2 * half)) < n:
        half += 1
    mask = (np.uint64(1) << np.uint64(half)) - np.uint64(1)
    shift = np.uint64(half)
    for r in range(out.shape[0]):
        for i in range(ranks.size):
            x = np.uint64(ranks[i])
            while True:
                left, right = x >> shift, x & mask
                for turn in range(_FEISTEL_ROUNDS):
                    word, _, _, _ = philox(
                        right,
                        np.uint64(turn),
                        np.uint64(first + r),
                        np.uint64(PERMUTATIONS),
                        np.uint64(seed) & _MASK,
                        np.uint64(seed) >> _32,
                    )
                    left, right = right, left ^ (word & mask)
                x = (left << shift) | right
                if x < np.uint64(n):
                    break
            out[r, i] = np.int64(x)


# ---------------------------------------------------------------- Simulated rows


# Attempts are counted in the high bits of the stream, above the numbers of the purposes.
_ATTEMPT = 256


@inlined()
def _log_gamma(seed, row, k, alpha):
    """log of a Gamma(alpha) variate: Gamma(alpha) = Gamma(alpha + 1)·U^{1/alpha}, never 0.

    Gamma(alpha + 1) by rejection from a cubed normal (Marsaglia & Tsang 2000).
    """
    d = alpha + 2.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    stream = np.int64(PREDICTIONS)  # a literal would compile `uniforms` twice
    while True:
        u, angle = uniforms(seed, stream, row, 2 * k)
        accept, boost = uniforms(seed, stream, row, 2 * k + 1)
        _, cosine = sincos(2.0 * math.pi * angle)
        x = math.sqrt(-2.0 * math.log(u)) * cosine
        root = 1.0 + c * x
        if root > 0.0:
            v = root * root * root
            # This sufficient condition is mostly true, and needs no logarithm.
            if accept < 1.0 - 0.0331 * (x * x) * (x * x):
                return math.log(d * v) + math.log(boost) / alpha
            if math.log(accept) < 0.5 * x * x + d * (1.0 - v + math.log(v)):
                return math.log(d * v) + math.log(boost) / alpha
        stream += _ATTEMPT


@kernel
def log_gamma_rows(seed, start, alpha, out):
    """log Gamma(alpha) variates.

    `label_rows` normalises a row of them to log P, where P has a Dirichlet(alpha) distribution.

    Axes:
        out (rows, K), where row i is row start + i of the simulation
    """
    rows, K = out.shape
    for i in range(rows):
        for k in range(K):
            out[i, k] = _log_gamma(seed, start + i, k, alpha)


@kernel
def label_rows(seed, start, logits, labels):
    """logits ← log P with P = softmax(logits), and y ~ P: the first k with P_0 + … + P_k > U.

    Axes:
        logits (rows, K) float64
        labels (rows,)
    """
    rows, K = logits.shape
    e = np.empty(K)
    for i in range(rows):
        row = logits[i]
        largest = row[0]
        for k in range(1, K):
            largest = max(largest, row[k])
        for k in range(K):
            e[k] = exp(row[k] - largest)
        total = 0.0
        for k in range(K):
            total += e[k]
        threshold = uniforms(seed, LABELS, start + i, 0)[0] * total
        y = 0
        running = e[0]
        while running <= threshold and y < K - 1:
            y += 1
            running += e[y]
        labels[i] = y
        shift = largest + math.log(total)
        for k in range(K):
            row[k] -= shift
