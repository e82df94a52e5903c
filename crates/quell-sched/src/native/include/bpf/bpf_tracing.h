/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
#define BPF_PROG(name, ...) name(__VA_ARGS__)
