/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/* The native build's kernel has the fields that the simulator keeps, and none that only observing needs. */
#define bpf_core_field_exists(field) 0
#define bpf_core_field_offset(type, field) 0
#define bpf_core_read(to, size, from) ((long)-1)
#define BPF_CORE_READ_BITFIELD(from, field) ((from)->field)
#define bpf_core_enum_value_exists(type, value) 1
#define bpf_core_enum_value(type, value) value
