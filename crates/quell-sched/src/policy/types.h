/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Integer types of the policy headers. The policy headers are compiled for BPF and natively from the same
 * source: they call no function outside policy/ and use nothing of BPF. C11 allows to repeat a typedef.
 */
#ifndef QUELL_POLICY_TYPES_H
#define QUELL_POLICY_TYPES_H

typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed long long s64;
#ifndef __cplusplus
#define bool _Bool
#endif

#define NS_PER_US 1000ULL
#define NS_PER_MS 1000000ULL
#define NS_PER_S 1000000000ULL

#endif
