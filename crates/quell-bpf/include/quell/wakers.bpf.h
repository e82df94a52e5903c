/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * Wakers: which threads wake a thread, the most frequent first.
 *
 * Problem: Lowering a late thread's latency does not help if the thread that wakes it is late itself; so the
 *          frequent wakers must be known, in bounded memory.
 * How:     A table of WAKERS entries per thread. A waker that is not in the table replaces the entry with the
 *          lowest score and takes over that score plus one (the space-saving algorithm of Metwally, Agrawal
 *          and El Abbadi, 2005), so a frequent waker stays. Scores are halved every WAKER_WINDOW wakeups, so
 *          that old wakers do not block new ones. The count that is reported is exact since the waker entered
 *          the table.
 * Limits:  Interrupts are no wakers. Wakers that each cause less than 1/WAKERS of the wakeups may push each
 *          other out.
 */
#ifndef QUELL_WAKERS_BPF_H
#define QUELL_WAKERS_BPF_H

#define WAKER_WINDOW 256

/* Counts a wakeup by the thread id. The woken thread's pi_lock is held: no other CPU writes the table. */
static __always_inline void count_waker(struct thread_slot *slot, u64 id)
{
	u32 lowest = 0, lowest_score = ~0U;

	if (++slot->scored >= WAKER_WINDOW) {
		slot->scored = 0;
		for (u32 i = 0; i < WAKERS; i++)
			slot->wakers[i].score /= 2;
	}
	for (u32 i = 0; i < WAKERS; i++) {
		struct waker *w = &slot->wakers[i];
		if (w->id == id) {
			w->count++;
			w->score++;
			return;
		}
		u32 score = w->id ? w->score : 0;
		if (score < lowest_score) {
			lowest_score = score;
			lowest = i;
		}
	}
	if (lowest >= WAKERS)
		return;
	struct waker *w = &slot->wakers[lowest];
	/* In this order, so that no reader sees the old waker's count under the new waker's id. */
	*(volatile u32 *)&w->count = 0;
	*(volatile u64 *)&w->id = id;
	*(volatile u32 *)&w->count = 1;
	w->score = lowest_score + 1;
}

#endif
