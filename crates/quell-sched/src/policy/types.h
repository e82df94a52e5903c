/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * The integers of the policy headers, which are compiled for the kernel and natively alike: they
 * call nothing and know nothing of BPF. Repeating a typedef is legal since C11.
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
