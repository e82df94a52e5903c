/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the monitor's programs take from libbpf and the kernel, for the native build: ../../books.c says how.
 *
 * Problem: the programs are to be compiled as they are, without their meaning being changed.
 * How:     this folder stands in libbpf's place on the include path. Maps are told apart by their address.
 *          The caller tells the programs one event at a time, so locks do nothing.
 */
#ifndef QUELL_BOOKS_BPF_HELPERS_H
#define QUELL_BOOKS_BPF_HELPERS_H

struct task_struct;
struct cgroup;

#define SEC(name)
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name

void *books_lookup(const void *map, const void *key);
long books_update(const void *map, const void *key, const void *value);
long books_delete(const void *map, const void *key);
long books_push(const void *map, const void *value);
long books_pop(const void *map, void *value);

#define bpf_map_lookup_elem(map, key) books_lookup(map, key)
#define bpf_map_update_elem(map, key, value, flags) books_update(map, key, value)
#define bpf_map_delete_elem(map, key) books_delete(map, key)
#define bpf_map_push_elem(map, value, flags) books_push(map, value)
#define bpf_map_pop_elem(map, value) books_pop(map, value)
#define bpf_spin_lock(lock) ((void)(lock))
#define bpf_spin_unlock(lock) ((void)(lock))
#define bpf_probe_read_kernel(to, size, from) ((long)-1)

unsigned long long bpf_ktime_get_ns(void);
unsigned int bpf_get_smp_processor_id(void);
struct task_struct *bpf_get_current_task_btf(void);

#endif
