/* Sum over i < j of s_i s_j exp(-d_ij^2) in three coordinates: the plain loop, in float32.

   -DOWN: our polynomial (-DC1=... -DC5=...) in place of the library's expf; with -DSCALED the
   coordinates come scaled for powers of two, as ours do, and a multiplication is saved. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef OWN
static inline float kernel(float t)
{
#ifndef SCALED
    t *= 1.44269504f;
#endif
    t = fmaxf(t, -126.0f);
    float k = rintf(t), f = t - k;
    float p = 1.0f + f * (C1 + f * (C2 + f * (C3 + f * (C4 + f * C5))));
    int32_t bits = ((int32_t)k + 127) << 23;
    float power;
    memcpy(&power, &bits, 4);
    return p * power;
}
#else
#define kernel expf
#endif

double pair_sum(const float *x, const float *y, const float *z, const float *s, long n, int threads)
{
    double total = 0;
#pragma omp parallel for schedule(dynamic, 16) reduction(+ : total) num_threads(threads)
    for (long i = 0; i < n; i++) {
        float row = 0, a = x[i], b = y[i], c = z[i];
        for (long j = i + 1; j < n; j++) {
            float d = x[j] - a, e = y[j] - b, f = z[j] - c;
            row += s[j] * kernel(-(d * d + e * e + f * f));
        }
        total += (double)row * s[i];
    }
    return total;
}
