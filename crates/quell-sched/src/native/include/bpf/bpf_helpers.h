/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What the BPF programs take from libbpf and the kernel, for the native build: ../../quell.c says how.
 *
 * Problem: The programs are to be compiled as they are, and must keep their meaning.
 * How:     This folder stands in libbpf's place on the include path. Every kfunc is a function of the
 *          simulator; maps are told apart by their address; one simulation runs on a thread at a time, so
 *          atomics are plain.
 */
#ifndef QUELL_NATIVE_BPF_HELPERS_H
#define QUELL_NATIVE_BPF_HELPERS_H

struct task_struct;
struct cgroup;

#define SEC(name)
#define __ksym
#define __weak
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define __uint(name, value) int(*name)[value]
#define __type(name, value) typeof(value) *name
#define __arg_trusted
#define barrier_var(v) asm volatile("" : "+r"(v))

/*
 * Each simulation has its own. Arrays lie in the simulation's memory: every thread of a program has all that
 * is thread-local.
 */
#define PER_SCHEDULER static _Thread_local
#define ARRAY_PER_SCHEDULER(type, name, count) static _Thread_local type *name
#define SET_BY_LOADER static _Thread_local

#define __sync_fetch_and_add(p, v)                                                                 \
	({                                                                                         \
		typeof(*(p) + 0) old_ = *(p);                                                      \
		*(p) = old_ + (v);                                                                 \
		old_;                                                                              \
	})
#define __sync_lock_test_and_set(p, v)                                                             \
	({                                                                                         \
		typeof(*(p) + 0) old_ = *(p);                                                      \
		*(p) = (v);                                                                        \
		old_;                                                                              \
	})
#define __sync_val_compare_and_swap(p, expected, v)                                                \
	({                                                                                         \
		typeof(*(p) + 0) old_ = *(p);                                                      \
		if (old_ == (expected))                                                            \
			*(p) = (v);                                                                \
		old_;                                                                              \
	})

/* The functions of the newest kernel exist, and no older ones. */
#define bpf_ksym_exists(name) 1

void *quell_native_storage(struct task_struct *p);
void *quell_native_lookup(const void *map, const void *key);
long quell_native_update(const void *map, const void *key, const void *value);
long quell_native_start_timer(const void *timer, unsigned long long ns);

#define bpf_task_storage_get(map, p, value, flags) quell_native_storage(p)
#define bpf_map_lookup_elem(map, key) quell_native_lookup(map, key)
#define bpf_map_update_elem(map, key, value, flags) quell_native_update(map, key, value)
/* Groups are not removed, and the maps that the monitor lends stay empty. */
#define bpf_map_delete_elem(map, key) ((void)(key))
#define bpf_map_push_elem(map, value, flags) ((void)(value))
#define bpf_map_pop_elem(map, value) ((long)-1)
#define bpf_spin_lock(lock) ((void)(lock))
#define bpf_spin_unlock(lock) ((void)(lock))
#define bpf_timer_init(timer, map, clock) 0
#define bpf_timer_set_callback(timer, callback) ((void)(callback), 0)
#define bpf_timer_start(timer, ns, flags) quell_native_start_timer(timer, ns)
#define bpf_probe_read_kernel(to, size, from) ((long)-1)
#define bpf_probe_read_kernel_str(to, size, from) ((void)(from))
#define ___bpf_narg(...) 1
#define ___bpf_fill(array, ...) ((void)(array))

unsigned int quell_native_this_cpu(void);
unsigned long long bpf_ktime_get_ns(void);
struct task_struct *quell_native_current(void);

#define bpf_get_smp_processor_id() quell_native_this_cpu()
#define bpf_get_current_task_btf() quell_native_current()

#endif
