/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The test's kernel has the fields of the newest one on x86. */
#define bpf_core_field_exists(field) (__builtin_strcmp(#field, "arm->thread_info.preempt_count") != 0)
#define bpf_core_field_offset(type, field) 0
#define bpf_core_read(to, size, from) ((long)-1)
#define BPF_CORE_READ_BITFIELD(from, field) ((from)->field)
