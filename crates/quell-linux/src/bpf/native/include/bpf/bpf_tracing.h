/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* Not by their own names: on_exit() is the C library's. */
#define BPF_PROG(name, ...) monitor_##name(__VA_ARGS__)
